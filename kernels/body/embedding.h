// Rows of embedding tables.
#pragma once

#include "kernels/body/lanes.h"

namespace cuboid::kernels::body {

template <typename Lanes, typename T>
CUBOID_HD void add_row(Lanes lanes, std::int64_t n, const T* x, T* y) {
  lanes.each(n, [=](std::int64_t i) { y[i] += x[i]; });
}

template <typename Lanes, typename T>
CUBOID_HD void zero_row(Lanes lanes, std::int64_t n, T* y) {
  lanes.each(n, [=](std::int64_t i) { y[i] = T{0}; });
}

}  // namespace cuboid::kernels::body
