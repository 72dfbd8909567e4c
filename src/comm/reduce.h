// The arithmetic of reductions on the CPU.
#pragma once

#include <cstddef>
#include <span>

#include "cuboid/comm/communicator.h"

namespace cuboid::detail {

/// Every outs[j][out_offset…] = ins[0][in_offset…] op ins[1][in_offset…] op …, from left to right, `count` elements.
/// bfloat16 is computed in float and rounded once; integers wrap around; a NaN wins a maximum.
/// An output may be an input at the same place; other overlaps are not allowed.
/// @param in_offset, out_offset  in elements
void reduce(DType dtype, ReduceOp op, std::span<std::byte* const> ins, std::int64_t in_offset,
            std::span<std::byte* const> outs, std::int64_t out_offset, std::int64_t count);

}  // namespace cuboid::detail
