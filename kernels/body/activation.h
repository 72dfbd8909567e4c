// Activations, one element each.
#pragma once

#include "kernels/body/math.h"

namespace cuboid::kernels::body {

/// The tanh approximation of GELU (Hendrycks and Gimpel, arXiv 1606.08415) as x·sigmoid(2u), because
/// (1 + tanh(u))/2 = sigmoid(2u). Beyond |x| = 10 the sigmoid is 0 or 1 in float; clamping keeps x³ finite.
template <typename T>
struct Gelu {
  T gate;   ///< sigmoid(2u)
  T slope;  ///< d(2u)/dx

  CUBOID_HD explicit Gelu(T x) {
    constexpr T kTwiceRoot = static_cast<T>(1.5957691216057307117597842397375);  // 2·sqrt(2/π)
    constexpr T kCubic = static_cast<T>(0.044715);
    const T bounded = clamp(x, T{-10}, T{10});
    const T square = bounded * bounded;
    gate = sigmoid(kTwiceRoot * bounded * (T{1} + kCubic * square));
    slope = kTwiceRoot * (T{1} + T{3} * kCubic * square);
  }
};

template <typename T>
CUBOID_HD inline T gelu(T x) {
  return x * Gelu<T>(x).gate;
}

template <typename T>
CUBOID_HD inline T gelu_gradient(T dy, T x) {
  const Gelu<T> g(x);
  return dy * (g.gate + clamp(x, T{-10}, T{10}) * g.gate * (T{1} - g.gate) * g.slope);
}

/// silu(gate)·up.
template <typename T>
CUBOID_HD inline T swiglu(T gate, T up) {
  return gate * sigmoid(gate) * up;
}

template <typename T>
struct SwigluGradient {
  T dgate, dup;
};

template <typename T>
CUBOID_HD inline SwigluGradient<T> swiglu_gradient(T dy, T gate, T up) {
  const T s = sigmoid(gate);
  return {dy * up * (s * (T{1} + gate * (T{1} - s))), dy * (gate * s)};
}

}  // namespace cuboid::kernels::body
