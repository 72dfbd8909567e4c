// Sizes of blocks in pools of memory. Private to runtime.
#pragma once

#include <bit>
#include <cstddef>

namespace cuboid {

/// Rounds up to one of four steps a power of two, so that nearly equal sizes share blocks at little waste.
inline std::size_t capacity_for(std::size_t bytes) {
  if (bytes <= 256) return 256;
  const std::size_t step = std::bit_floor(bytes - 1) / 4;
  return (bytes + step - 1) / step * step;
}

}  // namespace cuboid
