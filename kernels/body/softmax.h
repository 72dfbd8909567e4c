// A row of causal attention scores, forward and backward.
#pragma once

#include "kernels/body/dropout.h"
#include "kernels/body/math.h"
#include "kernels/body/storage.h"

namespace cuboid::kernels::body {

template <typename T>
struct SoftmaxSum {
  T max;  ///< of scale·s over the visible columns
  T sum;  ///< Σ exp(scale·s - max) over them
};

/// s (width) becomes exp(scale·s - max) in the `visible` first columns and zero behind them. @pre scale > 0
template <typename Lanes, typename T>
CUBOID_HD SoftmaxSum<T> softmax_row(Lanes lanes, std::int64_t visible, std::int64_t width, T scale, T* s) {
  const T max = scale * lanes.template max<T>(visible, [=](std::int64_t i) { return s[i]; });
  const T sum = lanes.template sum<T>(visible, [=](std::int64_t i) {
    const T e = exp(scale * s[i] - max);
    s[i] = e;
    return e;
  });
  lanes.each(width - visible, [=](std::int64_t i) { s[visible + i] = T{0}; });
  return {max, sum};
}

/// From scores s and dp = dout·vᵀ (both width) of one query: ds becomes the gradient of the products q·k,
/// scale·p·(dp·m - delta), and `dropped` the dropped-out probabilities p·m, with p = exp(scale·s - log_sum),
/// delta = dout·out and the dropout factors m (`mask` null: ones). s is overwritten; dropped may be s and ds may be dp.
template <typename Lanes, typename T>
CUBOID_HD void softmax_gradient_row(Lanes lanes, std::int64_t visible, std::int64_t width, Real<T> scale,
                                    Real<T> log_sum, Real<T> delta, const DropoutRow<Real<T>>* mask, Real<T>* s,
                                    const Real<T>* dp, T* dropped, T* ds) {
  using R = Real<T>;
  if (mask == nullptr) {
    lanes.each(visible, [=](std::int64_t i) {
      const R p = exp(scale * s[i] - log_sum);
      dropped[i] = static_cast<T>(p);
      ds[i] = static_cast<T>(scale * p * (dp[i] - delta));
    });
  } else {
    lanes.each(visible, [=](std::int64_t i) { s[i] = exp(scale * s[i] - log_sum); });
    dropout_row(lanes, visible, *mask, [=](std::int64_t i, R m) {
      const R p = s[i];
      dropped[i] = static_cast<T>(p * m);
      ds[i] = static_cast<T>(scale * p * (dp[i] * m - delta));
    });
  }
  lanes.each(width - visible, [=](std::int64_t i) {
    dropped[visible + i] = T{};
    ds[visible + i] = T{};
  });
}

}  // namespace cuboid::kernels::body
