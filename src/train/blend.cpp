#include "blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cuboid/core/error.h"

namespace cuboid {

Blend::Blend(const std::vector<double>& weights) : counts_(weights.size(), 0) {
  CUBOID_CHECK(!weights.empty() && weights.size() <= kMostSets, "sets of a blend");
  // Whole numbers, so that no rounding of a machine decides where a sample comes from.
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (const double weight : weights) {
    shares_.push_back(std::max<std::int64_t>(1, std::llround(weight / sum * static_cast<double>(kUnits))));
    total_ += shares_.back();
  }
}

void Blend::extend() const {
  auto block = std::make_unique<Block>();
  block->before = counts_;
  const auto first = static_cast<std::int64_t>(blocks_.size()) * kBlock;
  for (std::int64_t i = 0; i < kBlock; ++i) {
    std::size_t behind = 0;
    __int128 largest = 0;
    for (std::size_t set = 0; set < shares_.size(); ++set) {
      const __int128 deficit =
          static_cast<__int128>(shares_[set]) * (first + i + 1) - static_cast<__int128>(total_) * counts_[set];
      if (set == 0 || deficit > largest) {
        largest = deficit;
        behind = set;
      }
    }
    block->sets[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(behind);
    ++counts_[behind];
  }
  blocks_.push_back(std::move(block));
}

Blend::Choice Blend::at(std::int64_t n) const {
  const Block* block = nullptr;
  {
    const std::scoped_lock lock(mutex_);
    while (static_cast<std::int64_t>(blocks_.size()) * kBlock <= n) extend();
    block = blocks_[static_cast<std::size_t>(n / kBlock)].get();
  }
  const auto within = static_cast<std::ptrdiff_t>(n % kBlock);
  const std::uint8_t set = block->sets[static_cast<std::size_t>(within)];
  return {set, block->before[set] + std::count(block->sets.begin(), block->sets.begin() + within, set)};
}

}  // namespace cuboid
