// Which elements of a row dropout keeps: a function of the row's global identity and the column (law 1).
#pragma once

#include "cuboid/core/random.h"

#include "kernels/body/lanes.h"

namespace cuboid::kernels::body {

/// A row's Philox key and counter, and what to do with a word.
template <typename T>
struct DropoutRow {
  std::uint64_t key;
  std::uint32_t row, sample_low, head_sample_high;
  std::uint32_t last_dropped;  ///< words up to this one drop their element
  T kept_scale;                ///< 1/(1-p)

  CUBOID_HD T factor(std::uint32_t word) const { return word > last_dropped ? kept_scale : T{0}; }
  CUBOID_HD Philox4 words(std::int64_t block) const {
    return philox(key, static_cast<std::uint32_t>(block), row, sample_low, head_sample_high);
  }
};

/// f(i, factor) for the columns i of a row (n), factor being 0 or kept_scale.
template <typename Lanes, typename T, typename F>
CUBOID_HD void dropout_row(Lanes lanes, std::int64_t n, const DropoutRow<T>& row, F f) {
  const std::int64_t blocks = n / 4;
  lanes.each(blocks, [=](std::int64_t block) {
    const Philox4 w = row.words(block);
    f(4 * block, row.factor(w.x[0]));
    f(4 * block + 1, row.factor(w.x[1]));
    f(4 * block + 2, row.factor(w.x[2]));
    f(4 * block + 3, row.factor(w.x[3]));
  });
  const Philox4 w = row.words(blocks);
  lanes.each(n - 4 * blocks, [=](std::int64_t i) { f(4 * blocks + i, row.factor(w.x[i])); });
}

}  // namespace cuboid::kernels::body
