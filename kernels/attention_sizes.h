// Sizes of an attention, and of the tiles in which the CPU works on it: one place for the kernel that needs the memory
// and for the meta device that counts it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuboid/runtime/tensor.h"

#include "kernels/body/dropout.h"
#include "kernels/body/softmax.h"

namespace cuboid::kernels {

struct AttentionSizes {
  /// Query rows worked on at a time: their scores against all keys stay in the cache.
  static constexpr std::int64_t kQueryBlock = 64;
  /// Blocks begin at keys that are a multiple of this: a cache line of floats, and whole blocks of dropout's words.
  static constexpr std::int64_t kKeyAlignment = 16;
  static_assert(kKeyAlignment % body::kDropoutColumns == 0);

  /// The keys [begin, end) that a block of query rows works on.
  struct Keys {
    std::int64_t begin, end;
    std::int64_t count() const { return end - begin; }
    std::int64_t dropout_block() const { return begin / body::kDropoutColumns; }
  };

  std::int64_t T, B, H, K, D, W;                         // W: window, at most T
  std::int64_t out_stride() const { return B * H * D; }  // of out (T,B,H·D)
  std::int64_t out_offset(std::int64_t b, std::int64_t h) const { return (b * H + h) * D; }
  std::int64_t q_offset(std::int64_t b, std::int64_t h) const { return (b * H + h) * T * D; }
  std::int64_t k_offset(std::int64_t b, std::int64_t g) const { return (b * K + g) * T * D; }
  std::int64_t block() const { return std::min(kQueryBlock, T); }
  Keys keys(std::int64_t first, std::int64_t rows) const {
    const std::int64_t oldest = std::max<std::int64_t>(0, first - W + 1);
    return {oldest / kKeyAlignment * kKeyAlignment, first + rows};
  }
  /// What the query at t sees of its block's keys, as columns of the block.
  body::Visible visible(std::int64_t t, const Keys& keys) const {
    return {std::max(keys.begin, t - W + 1) - keys.begin, t + 1 - keys.begin};
  }
  std::int64_t most_keys() const { return std::min(T, block() + W + kKeyAlignment); }
  /// Pairs (query, key) that causality and the window leave: of one head and sample.
  std::int64_t pairs() const { return W * (W + 1) / 2 + (T - W) * W; }

  /// Elements of a thread's workspace, of the type that is computed with and of the storage type. `rounds`: these
  /// differ, and then a block's products and rounded probabilities need room of their own.
  std::int64_t forward_tile(bool rounds) const { return block() * (most_keys() + (rounds ? D : 0)); }
  std::int64_t forward_rounded_tile(bool rounds) const { return rounds ? block() * most_keys() : 0; }
  std::int64_t backward_tile(bool rounds) const {
    return 2 * block() * most_keys() + (rounds ? block() * D + 2 * T * D : 0);
  }
  std::int64_t backward_rounded_tile(bool rounds) const { return rounds ? 2 * block() * most_keys() : 0; }
};

/// Of q (B,H,T,D) and k (B,K,T,D); a window of 0 is none. @pre both are of rank 4
inline AttentionSizes attention_sizes(const Tensor& q, const Tensor& k, std::int64_t window) {
  const std::int64_t length = q.dim(2);
  return {length, q.dim(0), q.dim(1), k.dim(1), q.dim(3), window > 0 ? std::min(window, length) : length};
}

}  // namespace cuboid::kernels
