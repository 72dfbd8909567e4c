// What a transformer is made of: dimensions and the choices that change its mathematics, independent of any grid.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace cuboid {

/// How rotary frequencies are changed for contexts longer than those of pre-training.
struct RopeScaling {
  enum class Kind { none, linear, llama3 } kind = Kind::none;
  double factor = 1;                       ///< linear, llama3
  double low_frequency_factor = 1;         ///< llama3
  double high_frequency_factor = 4;        ///< llama3
  std::int64_t original_positions = 8192;  ///< llama3: context of pre-training
  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

struct ModelConfig {
  std::string name;    ///< preset name, or the path it was read from; not part of the mathematics
  std::string family;  ///< key into the model registry: "gpt2", "llama"
  std::int64_t layers = 0;
  std::int64_t hidden = 0;             ///< C
  std::int64_t heads = 0;              ///< H, query heads
  std::int64_t kv_heads = 0;           ///< K, key/value heads; divides heads
  std::int64_t head_dim = 0;           ///< D; heads * head_dim need not equal hidden
  std::int64_t ffn = 0;                ///< F, inner width of the MLP
  std::int64_t vocab = 0;              ///< V, exact: never padded
  std::int64_t positions = 0;          ///< longest sequence (rows of a learned position table)
  std::int64_t experts = 0;            ///< E, MLPs of a layer that tokens are routed to; 0: one, for all tokens
  std::int64_t experts_per_token = 0;  ///< k, of which a token visits those with the largest router probabilities
  double norm_eps = 1e-5;
  double init_std = 0.02;
  bool tied = false;                   ///< output head shares the embedding matrix
  bool attention_bias = false;         ///< biases on the q, k and v projections
  bool attention_output_bias = false;  ///< bias on attention's output projection
  bool mlp_bias = false;
  bool qk_norm = false;          ///< every query and key head is normalised before it is rotated (Qwen3)
  std::int64_t window = 0;       ///< sliding window: a query sees itself and the window - 1 tokens before; 0: all
  std::int64_t full_layers = 0;  ///< first layers, which see all tokens in spite of a window
  double rope_theta = 10000;     ///< families with rotary embeddings
  RopeScaling rope_scaling;
  std::map<std::string, double> extra;  ///< numbers of a family that is not built in, by their key in config.json
  /// Window of a layer's attention; 0: none.
  std::int64_t window_of(std::int64_t layer) const { return layer < full_layers ? 0 : window; }
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

}  // namespace cuboid
