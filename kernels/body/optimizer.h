// One element of an optimizer step, and the sum of squares that clipping needs.
#pragma once

#include "kernels/body/lanes.h"
#include "kernels/body/math.h"

namespace cuboid::kernels::body {

/// AdamW's numbers in the element type. The bias corrections act as factors 1/(1 - beta^step).
template <typename T>
struct AdamWStep {
  T lr, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, weight_decay, correction1, correction2, gradient_scale;
};

template <typename T>
CUBOID_HD inline void adamw_element(const AdamWStep<T>& o, T gradient, T& weight, T& m, T& v) {
  const T g = gradient * o.gradient_scale;
  m = o.beta1 * m + o.one_minus_beta1 * g;
  v = o.beta2 * v + o.one_minus_beta2 * (g * g);
  const T update = (m * o.correction1) / (std::sqrt(v * o.correction2) + o.eps);
  weight -= o.lr * (o.weight_decay * weight + update);
}

/// Σ x² of one block, in double.
template <typename Lanes, typename T>
CUBOID_HD double square_sum_block(Lanes lanes, std::int64_t n, const T* x) {
  return lanes.template sum<double>(n, [=](std::int64_t i) {
    const double value = x[i];
    return value * value;
  });
}

}  // namespace cuboid::kernels::body
