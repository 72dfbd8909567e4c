// Numbers as memory holds them and as arithmetic sees them: a bfloat16 is a float once loaded, and is rounded when
// stored. Bodies load with real() and store with static_cast to the element type.
#pragma once

#include "cuboid/core/dtype.h"

namespace cuboid::kernels::body {

template <typename T>
struct RealOf {
  using Type = T;
};
template <>
struct RealOf<BFloat16> {
  using Type = float;
};
/// The type in which elements of type T are computed with.
template <typename T>
using Real = typename RealOf<T>::Type;

template <typename T>
CUBOID_HD inline Real<T> real(T x) {
  return static_cast<Real<T>>(x);
}

}  // namespace cuboid::kernels::body
