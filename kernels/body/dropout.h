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

/// Columns that one block of words serves.
inline constexpr std::int64_t kDropoutColumns = 4;

/// f(i, factor) for the columns i of a row (n), factor being 0 or kept_scale. Column 0 is column 4·first_block of the
/// whole row.
template <typename Lanes, typename T, typename F>
CUBOID_HD void dropout_row(Lanes lanes, std::int64_t n, const DropoutRow<T>& row, F f, std::int64_t first_block = 0) {
  lanes.each_word(
      n, [=](std::int64_t block) { return row.words(first_block + block); },
      [=](std::int64_t i, std::uint32_t word) { f(i, row.factor(word)); });
}

}  // namespace cuboid::kernels::body
