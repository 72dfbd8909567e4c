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

// In whole numbers: a deficit in units of 1/total_ of a sample, times the denominator 2k - 2.
std::size_t Blend::next(std::int64_t n) const {
  const auto denominator = std::max<std::int64_t>(1, 2 * static_cast<std::int64_t>(shares_.size()) - 2);
  std::size_t chosen = shares_.size();
  __int128 least_room = 0;  // what the chosen set may still fall behind; ÷ its share: samples until then
  for (std::size_t set = 0; set < shares_.size(); ++set) {
    const __int128 deficit =
        static_cast<__int128>(shares_[set]) * (n + 1) - static_cast<__int128>(total_) * counts_[set];
    if (denominator * deficit < total_) continue;
    const __int128 room = static_cast<__int128>(total_) * (denominator - 1) - denominator * deficit;
    if (chosen == shares_.size() || room * shares_[chosen] < least_room * shares_[set]) {
      chosen = set;
      least_room = room;
    }
  }
  CUBOID_CHECK(chosen < shares_.size(), "deficits sum up to one sample");
  return chosen;
}

void Blend::extend() const {
  auto block = std::make_unique<Block>();
  block->before = counts_;
  const auto first = static_cast<std::int64_t>(blocks_.size()) * kBlock;
  for (std::int64_t i = 0; i < kBlock; ++i) {
    const std::size_t set = next(first + i);
    block->sets[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(set);
    ++counts_[set];
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
