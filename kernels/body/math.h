// Elementary functions that a compiler can vectorise and a GPU can run: no branches, no calls for float. Doubles, which
// only tests use, take the standard library's.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "cuboid/core/host_device.h"

namespace cuboid::kernels::body {

template <typename T>
CUBOID_HD inline T clamp(T x, T low, T high) {
  x = x < low ? low : x;  // a NaN fails both comparisons and stays
  return x > high ? high : x;
}

CUBOID_HD inline double exp(double x) {
  return std::exp(x);
}

/// e^x with a relative error below 0.75·2⁻²³ for |x| <= 87; beyond, the value at that bound (1.6e-38 or 6e37). NaN
/// stays NaN. Range reduction to |r| <= ln(2)/2 with ln(2) in two parts, polynomial of Cephes' expf (Moshier, 1992).
CUBOID_HD inline float exp(float x) {
  constexpr float kRound = 12582912.0F;  // 1.5·2²³: adding it leaves an integer in the low mantissa bits
  x = clamp(x, -87.0F, 87.0F);
  const float shifted = x * 1.44269504088896341F + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  // The bits of kRound itself leave at the top: what stays is n, moved into the exponent.
  const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(shifted) << 23) + (127U << 23);
  return p * std::bit_cast<float>(exponent);
}

/// 1/(1 + e^-x).
template <typename T>
CUBOID_HD inline T sigmoid(T x) {
  return T{1} / (T{1} + exp(-x));
}

}  // namespace cuboid::kernels::body
