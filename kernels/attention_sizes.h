// Sizes of an attention, and of the tiles in which the CPU works on it: one place for the kernel that needs the memory
// and for the meta device that counts it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuboid/kernels/kernels.h"

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

  std::int64_t N, T, B, H, K, D, W;  // N: queries; W: window, at most T
  SequencePart queries;
  std::int64_t out_stride() const { return B * H * D; }  // of out (T,B,H·D)
  std::int64_t out_offset(std::int64_t b, std::int64_t h) const { return (b * H + h) * D; }
  std::int64_t q_offset(std::int64_t b, std::int64_t h) const { return (b * H + h) * N * D; }
  std::int64_t k_offset(std::int64_t b, std::int64_t g) const { return (b * K + g) * T * D; }
  std::int64_t block() const { return std::min(kQueryBlock, N); }
  /// f(first row, rows) for blocks of query rows of at most `block` rows, whose positions follow each other.
  template <typename F>
  void for_blocks(std::int64_t block, F f) const {
    for (std::int64_t first = 0, rows = 0; first < N; first += rows) {
      rows = std::min(block, queries.stretch_end(first, N) - first);
      f(first, rows);
    }
  }
  /// Of the queries at [position, position + rows).
  Keys keys(std::int64_t position, std::int64_t rows) const {
    const std::int64_t oldest = std::max<std::int64_t>(0, position - W + 1);
    return {oldest / kKeyAlignment * kKeyAlignment, position + rows};
  }
  /// What the query at a position sees of its block's keys, as columns of the block.
  body::Visible visible(std::int64_t position, const Keys& keys) const {
    return {std::max(keys.begin, position - W + 1) - keys.begin, position + 1 - keys.begin};
  }
  std::int64_t most_keys() const { return std::min(T, block() + W + kKeyAlignment); }
  /// Pairs (query, key) that causality and the window leave: of one head and sample.
  std::int64_t pairs() const {
    // Of all queries at positions before p.
    const auto before = [this](std::int64_t p) { return p <= W ? p * (p + 1) / 2 : W * (W + 1) / 2 + (p - W) * W; };
    std::int64_t sum = 0;
    for (std::int64_t row = 0, end = 0; row < N; row = end) {
      end = queries.stretch_end(row, N);
      const std::int64_t position = queries.position(row);
      sum += before(position + end - row) - before(position);
    }
    return sum;
  }

  /// Elements of a thread's workspace, of the type that is computed with and of the storage type. `rounds`: these
  /// differ, and then a block's products and rounded probabilities need room of their own.
  std::int64_t forward_tile(bool rounds) const { return block() * (most_keys() + (rounds ? D : 0)); }
  std::int64_t forward_rounded_tile(bool rounds) const { return rounds ? block() * most_keys() : 0; }
  std::int64_t backward_tile(bool rounds) const {
    return 2 * block() * most_keys() + (rounds ? block() * D + 2 * T * D : 0);
  }
  std::int64_t backward_rounded_tile(bool rounds) const { return rounds ? 2 * block() * most_keys() : 0; }
};

/// Of q (B,H,N,D) and k (B,K,T,D). @pre both are of rank 4
inline AttentionSizes attention_sizes(const Tensor& q, const Tensor& k, const Causal& causal = {}) {
  const std::int64_t length = k.dim(2);
  const std::int64_t window = causal.window > 0 ? std::min(causal.window, length) : length;
  return {q.dim(2), length, q.dim(0), q.dim(1), k.dim(1), q.dim(3), window, causal.queries};
}

}  // namespace cuboid::kernels
