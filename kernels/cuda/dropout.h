// The rows of a dropout as a kernel finds them: by their place in this rank's tensors. Internal to kernels/cuda.
#pragma once

#include "kernels/cpu/dropout.h"

namespace cuboid::kernels::cuda {

template <typename T>
struct DropoutRows {
  body::DropoutRow<T> common;  ///< what all rows share
  std::int64_t first_sample, first_head;
  SequencePart rows;

  /// @pre mask.p > 0
  explicit DropoutRows(const Dropout& mask)
      : common(dropout_row_of<T>(mask, 0, 0, 0)),
        first_sample(mask.first_sample),
        first_head(mask.first_head),
        rows(mask.rows) {}

  /// Of row t.
  CUBOID_HD body::DropoutRow<T> at(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return at_position(b, rows.position(t), h);
  }
  CUBOID_HD body::DropoutRow<T> at_position(std::int64_t b, std::int64_t position, std::int64_t h) const {
    const std::int64_t sample = first_sample + b;
    body::DropoutRow<T> row = common;
    row.row = static_cast<std::uint32_t>(position);
    row.sample_low = static_cast<std::uint32_t>(sample);
    row.head_sample_high = static_cast<std::uint32_t>((first_head + h) << 16 | sample >> 32);
    return row;
  }
};

}  // namespace cuboid::kernels::cuda
