// A differentiable operation of our own.
#pragma once

#include <cuboid/ops/ops.h>

namespace example {

struct Alibi {
  cuboid::ops::AttentionShape heads;  ///< of this rank
  std::int64_t first_head = 0;        ///< global index of this rank's first query head
  std::int64_t all_heads = 1;         ///< query heads of the model
  double max_bias = 8;
  /// Query head h of this rank, h' of the model: 2^(-max_bias·(h' + 1) / all heads).
  double slope(std::int64_t h) const;
};

/// Causal attention of a fused projection qkv (T,B,(H+2K)·D) → (T,B,H·D), where a key that lies n tokens back has n
/// times the head's slope taken off its score (ALiBi, arXiv 2108.12409). Plain loops: this shows how an operation
/// brings its gradient, not how it is made fast.
cuboid::Var alibi_attention(cuboid::Tape& tape, const cuboid::Var& qkv, const Alibi& shape);

}  // namespace example
