// Which data set a blend's sample comes from. Private to train/.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace cuboid {

/// Samples of several sets in the proportion of weights: sample n comes from the set that is furthest behind
/// weight · (n + 1), the first of equals. After any n samples each set has given its share of n within one (of many
/// sets with very unequal weights one may be behind by a little more); no run of samples depends on where a run begins
/// or ends. The same rule as Megatron-LM's build_blending_indices.
class Blend {
 public:
  static constexpr std::size_t kMostSets = 256;
  /// @param weights  positive, in any unit
  explicit Blend(const std::vector<double>& weights);

  struct Choice {
    std::size_t set = 0;
    std::int64_t sample = 0;  ///< how many the set has given before
  };
  /// Of sample n >= 0. Computed in order up to n once and kept (a byte a sample). Safe to call from many threads.
  Choice at(std::int64_t n) const;

 private:
  static constexpr std::int64_t kBlock = 4096;
  struct Block {
    std::vector<std::int64_t> before;  // of each set, at the block's start
    std::array<std::uint8_t, kBlock> sets;
  };
  void extend() const;

  static constexpr std::int64_t kUnits = std::int64_t{1} << 40;

  std::vector<std::int64_t> shares_;  // of total_, which is kUnits but for rounding
  std::int64_t total_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<const Block>> blocks_;
  mutable std::vector<std::int64_t> counts_;  // after the last block
};

}  // namespace cuboid
