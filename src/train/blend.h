// Which data set a blend's sample comes from. Private to train/.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace cuboid {

/// Samples of several sets in the proportion of weights. After any n samples each of k sets has given its share of n
/// within 1 - 1/(2k - 2), which no rule can better; no run of samples depends on where a run begins or ends. The rule
/// is Tijdeman's (The chairman assignment problem, 1980): of the sets that are at least 1/(2k - 2) behind weight · (n +
/// 1), sample n comes from the one that would first be 1 - 1/(2k - 2) behind if it got none; the first of equals.
/// Taking the set that is furthest behind is the same for two sets, but for more it may leave one behind by more than a
/// sample.
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
  std::size_t next(std::int64_t n) const;  // the set of sample n, counts_ being those before

  static constexpr std::int64_t kUnits = std::int64_t{1} << 40;

  std::vector<std::int64_t> shares_;  // of total_, which is kUnits but for rounding
  std::int64_t total_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<const Block>> blocks_;
  mutable std::vector<std::int64_t> counts_;  // after the last block
};

}  // namespace cuboid
