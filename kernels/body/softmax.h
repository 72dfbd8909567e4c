// A row of causal attention scores, forward and backward.
#pragma once

#include "kernels/body/dropout.h"
#include "kernels/body/math.h"

namespace cuboid::kernels::body {

template <typename T>
struct SoftmaxSum {
  T max, sum;  ///< Σ exp(s - max) over the visible columns
};

/// s (width) becomes exp(s - max) in the `visible` first columns and zero behind them.
template <typename Lanes, typename T>
CUBOID_HD SoftmaxSum<T> softmax_row(Lanes lanes, std::int64_t visible, std::int64_t width, T* s) {
  const T max = lanes.template max<T>(visible, [=](std::int64_t i) { return s[i]; });
  const T sum = lanes.template sum<T>(visible, [=](std::int64_t i) {
    const T e = exp(s[i] - max);
    s[i] = e;
    return e;
  });
  lanes.each(width - visible, [=](std::int64_t i) { s[visible + i] = T{0}; });
  return {max, sum};
}

/// From scores s and dp = dout·vᵀ (both width) of one query: dp becomes the scores' gradient
/// p·(dp·m - delta), s the dropped-out probabilities p·m, with p = exp(s - log_sum), delta = dout·out and the dropout
/// factors m (`mask` null: ones).
template <typename Lanes, typename T>
CUBOID_HD void softmax_gradient_row(Lanes lanes, std::int64_t visible, std::int64_t width, T log_sum, T delta,
                                    const DropoutRow<T>* mask, T* s, T* dp) {
  if (mask == nullptr) {
    lanes.each(visible, [=](std::int64_t i) {
      const T p = exp(s[i] - log_sum);
      s[i] = p;
      dp[i] = p * (dp[i] - delta);
    });
  } else {
    lanes.each(visible, [=](std::int64_t i) { s[i] = exp(s[i] - log_sum); });
    dropout_row(lanes, visible, *mask, [=](std::int64_t i, T m) {
      const T p = s[i];
      s[i] = p * m;
      dp[i] = p * (dp[i] * m - delta);
    });
  }
  lanes.each(width - visible, [=](std::int64_t i) {
    s[visible + i] = T{0};
    dp[visible + i] = T{0};
  });
}

}  // namespace cuboid::kernels::body
