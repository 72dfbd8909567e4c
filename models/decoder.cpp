#include "decoder.h"

namespace cuboid {

ParameterTable Decoder::parameters(const ModelConfig& c) const {
  using namespace parts;
  std::vector<ParameterInfo> rows;
  rows.push_back(split(matrix("embedding.weight", c.vocab, c.hidden, 0, c.init_std), 0, {vocabulary_piece(c)}));
  for (int i = 0; i < c.layers; ++i) {
    const int block = i + 1;
    rows.push_back(vector_parameter(layer_name(i, "attention_norm.weight"), c.hidden, block, norm_initializer()));
    add_attention(rows, c, i, c.init_std);
    rows.push_back(vector_parameter(layer_name(i, "mlp_norm.weight"), c.hidden, block, norm_initializer()));
    add_mlp(rows, c, i);
  }
  const int head = static_cast<int>(c.layers) + 1;
  rows.push_back(vector_parameter("final_norm.weight", c.hidden, head, norm_initializer()));
  rows.push_back(split(matrix("head.weight", c.vocab, c.hidden, head, c.init_std), 0, {vocabulary_piece(c)}));
  if (c.tied) rows.back().tied_with = "embedding.weight";
  return ParameterTable(std::move(rows));
}

Var Decoder::embed(Forward& f, const Tensor& tokens) const {
  const Var x = vocabulary_parallel_embedding(f.tape, f.tp, tokens, f["embedding.weight"], f.first_vocabulary_row());
  return ops::dropout(f.tape, x, f.dropout(0, "embedding"));  // (T,B,C)
}

Var Decoder::layer(Forward& f, int i, const Var& input) const {
  Var x = input;  // (T,B,C)
  Var h = norm(f, x, f.layer(i, "attention_norm.weight"));
  h = parts::self_attention(f, i, h, f.rope());
  x = ops::dropout_add(f.tape, h, x, f.dropout(i + 1, "attention_residual"));
  h = norm(f, x, f.layer(i, "mlp_norm.weight"));
  h = mlp(f, i, h);
  return ops::dropout_add(f.tape, h, x, f.dropout(i + 1, "mlp_residual"));
}

Var Decoder::final_norm(Forward& f, const Var& x) const {
  return norm(f, x, f["final_norm.weight"]);
}

std::vector<HfTensor> Decoder::hugging_face_tensors(const ModelConfig& c) const {
  std::vector<HfTensor> names = {{"model.embed_tokens.weight", "embedding.weight"}};
  for (int i = 0; i < c.layers; ++i) {
    const std::string hf = "model.layers." + std::to_string(i) + ".";
    const auto add = [&](const std::string& theirs, const std::string& ours, int piece = -1) {
      names.push_back({hf + theirs, parts::layer_name(i, ours), piece});
    };
    add("input_layernorm.weight", "attention_norm.weight");
    constexpr const char* kProjections[] = {"q_proj", "k_proj", "v_proj"};
    for (int piece = 0; piece < 3; ++piece) {
      const std::string projection = std::string("self_attn.") + kProjections[piece];
      add(projection + ".weight", "attention.qkv.weight", piece);
      if (c.attention_bias) add(projection + ".bias", "attention.qkv.bias", piece);
    }
    if (c.qk_norm) {
      add("self_attn.q_norm.weight", "attention.q_norm.weight");
      add("self_attn.k_norm.weight", "attention.k_norm.weight");
    }
    add("self_attn.o_proj.weight", "attention.output.weight");
    if (c.attention_output_bias) add("self_attn.o_proj.bias", "attention.output.bias");
    add("post_attention_layernorm.weight", "mlp_norm.weight");
    for (const HfTensor& tensor : mlp_tensors(c, i)) add(tensor.hf_name, tensor.parameter, tensor.piece);
  }
  names.push_back({"model.norm.weight", "final_norm.weight"});
  if (!c.tied) names.push_back({"lm_head.weight", "head.weight"});
  return names;
}

void Decoder::add_mlp(std::vector<ParameterInfo>& rows, const ModelConfig& c, int layer) const {
  using namespace parts;
  const int block = layer + 1;
  rows.push_back(split(matrix(layer_name(layer, "mlp.gate_up.weight"), 2 * c.ffn, c.hidden, block, c.init_std), 0,
                       gate_up_pieces(c)));
  if (c.mlp_bias) {
    rows.push_back(split(vector_parameter(layer_name(layer, "mlp.gate_up.bias"), 2 * c.ffn, block, Initializer::zeros),
                         0, gate_up_pieces(c)));
  }
  rows.push_back(
      split(matrix(layer_name(layer, "mlp.down.weight"), c.hidden, c.ffn, block, c.init_std), 1, {{.units = c.ffn}}));
  if (c.mlp_bias) {
    rows.push_back(vector_parameter(layer_name(layer, "mlp.down.bias"), c.hidden, block, Initializer::zeros));
  }
}

Var Decoder::mlp(Forward& f, int layer, const Var& x) const {
  const bool bias = f.config.mlp_bias;
  Var h = column_linear(f.tape, f.tp, x, f.layer(layer, "mlp.gate_up.weight"),
                        bias ? &f.layer(layer, "mlp.gate_up.bias") : nullptr);  // (T,B,2F/tp): gate | up
  h = gate(f, h);                                                               // (T,B,F/tp)
  return row_linear(f.tape, f.tp, h, f.layer(layer, "mlp.down.weight"),
                    bias ? &f.layer(layer, "mlp.down.bias") : nullptr);  // (T,B,C)
}

std::vector<HfTensor> Decoder::mlp_tensors(const ModelConfig& c, int) const {
  std::vector<HfTensor> names;
  constexpr const char* kGated[] = {"gate_proj", "up_proj"};
  for (int piece = 0; piece < 2; ++piece) {
    const std::string projection = std::string("mlp.") + kGated[piece];
    names.push_back({projection + ".weight", "mlp.gate_up.weight", piece});
    if (c.mlp_bias) names.push_back({projection + ".bias", "mlp.gate_up.bias", piece});
  }
  names.push_back({"mlp.down_proj.weight", "mlp.down.weight"});
  if (c.mlp_bias) names.push_back({"mlp.down_proj.bias", "mlp.down.bias"});
  return names;
}

Var Decoder::norm(Forward& f, const Var& x, Parameter& weight) const {
  return ops::rms_norm(f.tape, x, weight, f.config.norm_eps);
}

Var Decoder::gate(Forward& f, const Var& gate_up) const {
  return ops::swiglu(f.tape, gate_up);
}

}  // namespace cuboid
