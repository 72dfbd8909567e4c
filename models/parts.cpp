#include "cuboid/models/parts.h"

namespace cuboid::parts {

ParameterInfo vector_parameter(std::string name, std::int64_t size, int block, Initializer initializer) {
  ParameterInfo info;
  info.name = std::move(name);
  info.shape = {size};
  info.block = block;
  info.initializer = initializer;
  return info;
}

ParameterInfo matrix(std::string name, std::int64_t rows, std::int64_t columns, int block, double init_std) {
  ParameterInfo info;
  info.name = std::move(name);
  info.shape = {rows, columns};
  info.block = block;
  info.decay = true;
  info.initializer = Initializer::normal;
  info.init_std = init_std;
  return info;
}

ParameterInfo split(ParameterInfo parameter, int dim, std::vector<Piece> pieces) {
  parameter.split_dim = dim;
  parameter.pieces = std::move(pieces);
  return parameter;
}

std::vector<Piece> qkv_pieces(const ModelConfig& config) {
  return {{.name = "q", .units = config.heads, .unit = config.head_dim},
          {.name = "k", .units = config.kv_heads, .unit = config.head_dim, .replicable = true},
          {.name = "v", .units = config.kv_heads, .unit = config.head_dim, .replicable = true}};
}

std::vector<Piece> gate_up_pieces(const ModelConfig& config) {
  return {{.name = "gate", .units = config.ffn}, {.name = "up", .units = config.ffn}};
}

Piece vocabulary_piece(const ModelConfig& config) {
  return {.units = config.vocab, .uneven = true};
}

std::string layer_name(int layer, std::string_view name) {
  return "layers." + std::to_string(layer) + "." + std::string(name);
}

void add_attention(std::vector<ParameterInfo>& rows, const ModelConfig& config, int layer, double output_std) {
  const int block = layer + 1;
  const std::int64_t width = (config.heads + 2 * config.kv_heads) * config.head_dim;
  rows.push_back(split(matrix(layer_name(layer, "attention.qkv.weight"), width, config.hidden, block, config.init_std),
                       0, qkv_pieces(config)));
  if (config.attention_bias) {
    rows.push_back(split(vector_parameter(layer_name(layer, "attention.qkv.bias"), width, block, Initializer::zeros), 0,
                         qkv_pieces(config)));
  }
  if (config.qk_norm) {
    for (const char* name : {"attention.q_norm.weight", "attention.k_norm.weight"}) {
      rows.push_back(vector_parameter(layer_name(layer, name), config.head_dim, block, Initializer::ones));
      rows.back().partial = true;  // one weight for all heads, of which a tensor rank sees its own
    }
  }
  rows.push_back(split(matrix(layer_name(layer, "attention.output.weight"), config.hidden,
                              config.heads * config.head_dim, block, output_std),
                       1, {{.units = config.heads, .unit = config.head_dim}}));
  if (config.attention_output_bias) {
    rows.push_back(
        vector_parameter(layer_name(layer, "attention.output.bias"), config.hidden, block, Initializer::zeros));
  }
}

Var self_attention(Forward& f, int layer, const Var& x, const ops::RopeTables& rope) {
  Var qkv =
      column_linear(f.tape, f.tp, x, f.layer(layer, "attention.qkv.weight"),
                    f.config.attention_bias ? &f.layer(layer, "attention.qkv.bias") : nullptr);  // (T,B,(H+2K)*D/tp)
  const ops::AttentionShape shape{f.local_heads(), f.local_kv_heads(), f.config.head_dim, f.config.window_of(layer)};
  if (f.config.qk_norm) {
    qkv = ops::rms_norm_heads(f.tape, qkv, shape, f.layer(layer, "attention.q_norm.weight"),
                              f.layer(layer, "attention.k_norm.weight"), f.config.norm_eps);
  }
  Var context = context_parallel_attention(f.tape, f.context, qkv, shape, rope,
                                           f.attention_dropout(layer + 1));  // (T,B,H*D/tp)
  qkv = Var();  // q, k and v live on inside the operation; the fused copy is not needed any more
  return row_linear(f.tape, f.tp, context, f.layer(layer, "attention.output.weight"),
                    f.config.attention_output_bias ? &f.layer(layer, "attention.output.bias") : nullptr);  // (T,B,C)
}

}  // namespace cuboid::parts
