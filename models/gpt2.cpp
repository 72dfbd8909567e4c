// GPT-2 (Radford et al. 2019): learned positions, pre-norm layers, biases everywhere, tanh GELU, tied head.
#include <cmath>

#include "cuboid/models/parts.h"

#include "families.h"

namespace cuboid {
namespace {

class Gpt2 final : public Model {
 public:
  std::string family() const override { return "gpt2"; }

  ModelConfig tiny() const override {
    ModelConfig c = Model::tiny();
    c.hidden = c.heads * c.head_dim;
    c.kv_heads = c.heads;
    c.tied = c.attention_bias = c.attention_output_bias = c.mlp_bias = true;
    return c;
  }

  ParameterTable parameters(const ModelConfig& c) const override {
    using namespace parts;
    std::vector<ParameterInfo> rows;
    rows.push_back(split(matrix("embedding.weight", c.vocab, c.hidden, 0, c.init_std), 0, {vocabulary_piece(c)}));
    rows.push_back(matrix("positions.weight", c.positions, c.hidden, 0, c.init_std));
    // Projections into the residual stream start smaller: 2L of them add up.
    const double output_std = c.init_std / std::sqrt(2.0 * static_cast<double>(c.layers));
    for (int i = 0; i < c.layers; ++i) {
      const int block = i + 1;
      add_norm(rows, layer_name(i, "attention_norm"), c.hidden, block);
      add_attention(rows, c, i, output_std);
      add_norm(rows, layer_name(i, "mlp_norm"), c.hidden, block);
      const Piece inner{.units = c.ffn};
      rows.push_back(split(matrix(layer_name(i, "mlp.up.weight"), c.ffn, c.hidden, block, c.init_std), 0, {inner}));
      rows.push_back(
          split(vector_parameter(layer_name(i, "mlp.up.bias"), c.ffn, block, Initializer::zeros), 0, {inner}));
      rows.push_back(split(matrix(layer_name(i, "mlp.down.weight"), c.hidden, c.ffn, block, output_std), 1, {inner}));
      rows.push_back(vector_parameter(layer_name(i, "mlp.down.bias"), c.hidden, block, Initializer::zeros));
    }
    const int head = static_cast<int>(c.layers) + 1;
    add_norm(rows, "final_norm", c.hidden, head);
    rows.push_back(split(matrix("head.weight", c.vocab, c.hidden, head, c.init_std), 0, {vocabulary_piece(c)}));
    if (c.tied) rows.back().tied_with = "embedding.weight";
    return ParameterTable(std::move(rows));
  }

  Var embed(Forward& f, const Tensor& tokens) const override {
    Var x = vocabulary_parallel_embedding(f.tape, f.tp, tokens, f["embedding.weight"], f.first_vocabulary_row());
    x = ops::add_positions(f.tape, x, f["positions.weight"], f.rows());  // (T,B,C)
    return ops::dropout(f.tape, x, f.dropout(0, "embedding"));
  }

  Var layer(Forward& f, int i, const Var& input) const override {
    Var x = input;  // (T,B,C)
    Var h = ops::layer_norm(f.tape, x, f.layer(i, "attention_norm.weight"), f.layer(i, "attention_norm.bias"),
                            f.config.norm_eps);
    h = parts::self_attention(f, i, h, {});
    x = ops::dropout_add(f.tape, h, x, f.dropout(i + 1, "attention_residual"));
    h = ops::layer_norm(f.tape, x, f.layer(i, "mlp_norm.weight"), f.layer(i, "mlp_norm.bias"), f.config.norm_eps);
    h = column_linear(f.tape, f.tp, h, f.layer(i, "mlp.up.weight"), &f.layer(i, "mlp.up.bias"));  // (T,B,F/tp)
    h = ops::gelu(f.tape, h);
    h = row_linear(f.tape, f.tp, h, f.layer(i, "mlp.down.weight"), &f.layer(i, "mlp.down.bias"));  // (T,B,C)
    return ops::dropout_add(f.tape, h, x, f.dropout(i + 1, "mlp_residual"));
  }

  bool splits_context() const override { return true; }

  Var final_norm(Forward& f, const Var& x) const override {
    return ops::layer_norm(f.tape, x, f["final_norm.weight"], f["final_norm.bias"], f.config.norm_eps);
  }

  std::vector<HfTensor> hugging_face_tensors(const ModelConfig& c) const override {
    std::vector<HfTensor> names = {{"transformer.wte.weight", "embedding.weight"},
                                   {"transformer.wpe.weight", "positions.weight"}};
    for (int i = 0; i < c.layers; ++i) {
      const std::string hf = "transformer.h." + std::to_string(i) + ".";
      const auto add = [&](const char* theirs, const char* ours, bool transposed = false) {
        names.push_back({hf + theirs, parts::layer_name(i, ours), -1, transposed});
      };
      add("ln_1.weight", "attention_norm.weight");
      add("ln_1.bias", "attention_norm.bias");
      add("attn.c_attn.weight", "attention.qkv.weight", true);  // Conv1D: stored (in, out)
      add("attn.c_attn.bias", "attention.qkv.bias");
      add("attn.c_proj.weight", "attention.output.weight", true);
      add("attn.c_proj.bias", "attention.output.bias");
      add("ln_2.weight", "mlp_norm.weight");
      add("ln_2.bias", "mlp_norm.bias");
      add("mlp.c_fc.weight", "mlp.up.weight", true);
      add("mlp.c_fc.bias", "mlp.up.bias");
      add("mlp.c_proj.weight", "mlp.down.weight", true);
      add("mlp.c_proj.bias", "mlp.down.bias");
    }
    names.push_back({"transformer.ln_f.weight", "final_norm.weight"});
    names.push_back({"transformer.ln_f.bias", "final_norm.bias"});
    if (!c.tied) names.push_back({"lm_head.weight", "head.weight"});
    return names;
  }

 private:
  static void add_norm(std::vector<ParameterInfo>& rows, const std::string& name, std::int64_t size, int block) {
    rows.push_back(parts::vector_parameter(name + ".weight", size, block, Initializer::ones));
    rows.push_back(parts::vector_parameter(name + ".bias", size, block, Initializer::zeros));
  }
};

}  // namespace

std::unique_ptr<Model> make_gpt2() {
  return std::make_unique<Gpt2>();
}

}  // namespace cuboid
