// From a Dropout to the numbers of one row. Internal to kernels/cpu.
#pragma once

#include <cmath>

#include "cuboid/kernels/kernels.h"

#include "kernels/body/dropout.h"

namespace cuboid::kernels {

/// The row (sample, row, head) in global positions. @pre mask.p > 0
template <typename T>
body::DropoutRow<T> dropout_row_of(const Dropout& mask, std::int64_t sample, std::int64_t row, std::int64_t head) {
  body::DropoutRow<T> made{};
  made.key = mask.key;
  made.row = static_cast<std::uint32_t>(row);
  made.sample_low = static_cast<std::uint32_t>(sample);
  made.head_sample_high = static_cast<std::uint32_t>(head << 16 | sample >> 32);
  // Kept iff word >= p·2³², that is, iff word > ceil(p·2³²) - 1; p·2³² is exact and at least one word is dropped.
  made.last_dropped = static_cast<std::uint32_t>(static_cast<std::uint64_t>(std::ceil(mask.p * 0x1p32)) - 1);
  made.kept_scale = static_cast<T>(1 / (1 - mask.p));
  return made;
}

}  // namespace cuboid::kernels
