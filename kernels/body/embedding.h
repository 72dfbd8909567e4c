// Rows of embedding tables.
#pragma once

#include "kernels/body/lanes.h"
#include "kernels/body/storage.h"

namespace cuboid::kernels::body {

/// y (n) += x, which may be of another element type.
template <typename Lanes, typename T, typename Out>
CUBOID_HD void add_row(Lanes lanes, std::int64_t n, const T* x, Out* y) {
  lanes.each(n, [=](std::int64_t i) { y[i] = static_cast<Out>(real(y[i]) + static_cast<Real<Out>>(real(x[i]))); });
}

template <typename Lanes, typename T>
CUBOID_HD void zero_row(Lanes lanes, std::int64_t n, T* y) {
  lanes.each(n, [=](std::int64_t i) { y[i] = T{}; });
}

}  // namespace cuboid::kernels::body
