// Sizes of an attention, and of the tiles in which the CPU works on it: one place for the kernel that needs the memory
// and for the meta device that counts it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuboid/runtime/tensor.h"

namespace cuboid::kernels {

struct AttentionSizes {
  /// Query rows worked on at a time: their scores against all keys stay in the cache.
  static constexpr std::int64_t kQueryBlock = 64;

  std::int64_t T, B, H, K, D;
  std::int64_t out_stride() const { return B * H * D; }  // of out (T,B,H·D)
  std::int64_t out_offset(std::int64_t b, std::int64_t h) const { return (b * H + h) * D; }
  std::int64_t q_offset(std::int64_t b, std::int64_t h) const { return (b * H + h) * T * D; }
  std::int64_t k_offset(std::int64_t b, std::int64_t g) const { return (b * K + g) * T * D; }
  std::int64_t block() const { return std::min(kQueryBlock, T); }

  /// Elements of a thread's workspace, of the type that is computed with and of the storage type. `rounds`: these
  /// differ, and then a block's products and rounded probabilities need room of their own.
  std::int64_t forward_tile(bool rounds) const { return block() * (T + (rounds ? D : 0)); }
  std::int64_t forward_rounded_tile(bool rounds) const { return rounds ? block() * T : 0; }
  std::int64_t backward_tile(bool rounds) const { return 2 * block() * T + (rounds ? block() * D + 2 * T * D : 0); }
  std::int64_t backward_rounded_tile(bool rounds) const { return rounds ? 2 * block() * T : 0; }
};

/// Of q (B,H,T,D) and k (B,K,T,D). @pre both are of rank 4
inline AttentionSizes attention_sizes(const Tensor& q, const Tensor& k) {
  return {q.dim(2), q.dim(0), q.dim(1), k.dim(1), q.dim(3)};
}

}  // namespace cuboid::kernels
