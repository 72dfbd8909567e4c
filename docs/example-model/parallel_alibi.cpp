#include "parallel_alibi.h"

#include <cuboid/models/parts.h>

#include "alibi_attention.h"

namespace example {
namespace {

using namespace cuboid;

constexpr const char* kFamily = "parallel-alibi";
constexpr const char* kMaxBias = "alibi_max_bias";

class ParallelAlibi final : public Model {
 public:
  std::string family() const override { return kFamily; }

  ModelConfig tiny() const override {
    ModelConfig c = Model::tiny();
    c.extra[kMaxBias] = 8;
    return c;
  }

  // One row a parameter: how it is shaped, initialised, and cut over tensor ranks.
  ParameterTable parameters(const ModelConfig& c) const override {
    using namespace parts;
    std::vector<ParameterInfo> rows;
    rows.push_back(split(matrix("embedding.weight", c.vocab, c.hidden, 0, c.init_std), 0, {vocabulary_piece(c)}));
    for (int i = 0; i < c.layers; ++i) {
      const int block = i + 1;
      const Piece inner{.units = c.ffn};
      rows.push_back(vector_parameter(layer_name(i, "norm.weight"), c.hidden, block, Initializer::ones));
      add_attention(rows, c, i, c.init_std);
      rows.push_back(split(matrix(layer_name(i, "mlp.up.weight"), c.ffn, c.hidden, block, c.init_std), 0, {inner}));
      rows.push_back(split(matrix(layer_name(i, "mlp.down.weight"), c.hidden, c.ffn, block, c.init_std), 1, {inner}));
    }
    const int head = static_cast<int>(c.layers) + 1;
    rows.push_back(vector_parameter("final_norm.weight", c.hidden, head, Initializer::ones));
    rows.push_back(split(matrix("head.weight", c.vocab, c.hidden, head, c.init_std), 0, {vocabulary_piece(c)}));
    if (c.tied) rows.back().tied_with = "embedding.weight";
    return ParameterTable(std::move(rows));
  }

  Var embed(Forward& f, const Tensor& tokens) const override {
    const Var x = vocabulary_parallel_embedding(f.tape, f.tp, tokens, f["embedding.weight"], f.first_vocabulary_row());
    return ops::dropout(f.tape, x, f.dropout(0, "embedding"));  // (T,B,C)
  }

  // The same code on one rank and on a grid: column_linear and row_linear know how they are split.
  Var layer(Forward& f, int i, const Var& x) const override {
    const Var h = ops::rms_norm(f.tape, x, f.layer(i, "norm.weight"), f.config.norm_eps);
    Var attention = column_linear(f.tape, f.tp, h, f.layer(i, "attention.qkv.weight"), nullptr);  // (T,B,(H+2K)*D/tp)
    const Alibi shape{.heads = {f.local_heads(), f.local_kv_heads(), f.config.head_dim},
                      .first_head = f.tp.rank() * f.local_heads(),
                      .all_heads = f.config.heads,
                      .max_bias = f.config.extra.at(kMaxBias)};
    attention = alibi_attention(f.tape, attention, shape);                                            // (T,B,H*D/tp)
    attention = row_linear(f.tape, f.tp, attention, f.layer(i, "attention.output.weight"), nullptr);  // (T,B,C)
    Var mlp = column_linear(f.tape, f.tp, h, f.layer(i, "mlp.up.weight"), nullptr);                   // (T,B,F/tp)
    mlp = row_linear(f.tape, f.tp, ops::gelu(f.tape, mlp), f.layer(i, "mlp.down.weight"), nullptr);   // (T,B,C)
    const Var sum = ops::add(f.tape, attention, mlp);
    return ops::dropout_add(f.tape, sum, x, f.dropout(i + 1, "residual"));
  }

  Var final_norm(Forward& f, const Var& x) const override {
    return ops::rms_norm(f.tape, x, f["final_norm.weight"], f.config.norm_eps);
  }

  std::vector<HfTensor> hugging_face_tensors(const ModelConfig& c) const override {
    std::vector<HfTensor> names = {{"model.embed_tokens.weight", "embedding.weight"}};
    for (int i = 0; i < c.layers; ++i) {
      const std::string hf = "model.layers." + std::to_string(i) + ".";
      const auto add = [&](const std::string& theirs, const char* ours, int piece = -1) {
        names.push_back({hf + theirs, parts::layer_name(i, ours), piece});
      };
      add("norm.weight", "norm.weight");
      add("self_attn.q_proj.weight", "attention.qkv.weight", 0);
      add("self_attn.k_proj.weight", "attention.qkv.weight", 1);
      add("self_attn.v_proj.weight", "attention.qkv.weight", 2);
      add("self_attn.o_proj.weight", "attention.output.weight");
      add("mlp.up_proj.weight", "mlp.up.weight");
      add("mlp.down_proj.weight", "mlp.down.weight");
    }
    names.push_back({"model.norm.weight", "final_norm.weight"});
    if (!c.tied) names.push_back({"lm_head.weight", "head.weight"});
    return names;
  }
};

}  // namespace

std::unique_ptr<Model> make_parallel_alibi() {
  return std::make_unique<ParallelAlibi>();
}

ConfigFamily parallel_alibi_configuration() {
  return {.type = kFamily,
          .classes = {"ParallelAlibiForCausalLM"},
          .rotary = false,
          .activation = "gelu_pytorch_tanh",
          .extra = {{kMaxBias, 8}}};
}

}  // namespace example
