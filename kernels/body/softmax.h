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

/// The columns [begin, end) of a row of scores that its query sees. @pre begin < end
struct Visible {
  std::int64_t begin, end;
};

/// Zeros in the columns of a row (width) that are not visible.
template <typename Lanes, typename T>
CUBOID_HD void hide_row(Lanes lanes, Visible visible, std::int64_t width, T* row) {
  lanes.each(visible.begin, [=](std::int64_t i) { row[i] = T{}; });
  lanes.each(width - visible.end, [=](std::int64_t i) { row[visible.end + i] = T{}; });
}

/// s (width) becomes exp(scale·s - max) in the visible columns and zero in the others. @pre scale > 0
template <typename Lanes, typename T>
CUBOID_HD SoftmaxSum<T> softmax_row(Lanes lanes, Visible visible, std::int64_t width, T scale, T* s) {
  const std::int64_t count = visible.end - visible.begin;
  T* seen = s + visible.begin;
  const T max = scale * lanes.template max<T>(count, [=](std::int64_t i) { return seen[i]; });
  const T sum = lanes.template sum<T>(count, [=](std::int64_t i) {
    const T e = exp(scale * seen[i] - max);
    seen[i] = e;
    return e;
  });
  hide_row(lanes, visible, width, s);
  return {max, sum};
}

/// From scores s and dp = dout·vᵀ (both width) of one query: ds becomes the gradient of the products q·k,
/// scale·p·(dp·m - delta), and `dropped` the dropped-out probabilities p·m, with p = exp(scale·s - log_sum),
/// delta = dout·out and the dropout factors m (`mask` null: ones; first_block: as in dropout_row). s is overwritten;
/// dropped may be s and ds may be dp.
template <typename Lanes, typename T>
CUBOID_HD void softmax_gradient_row(Lanes lanes, Visible visible, std::int64_t width, Real<T> scale, Real<T> log_sum,
                                    Real<T> delta, const DropoutRow<Real<T>>* mask, std::int64_t first_block,
                                    Real<T>* s, const Real<T>* dp, T* dropped, T* ds) {
  using R = Real<T>;
  if (mask == nullptr) {
    lanes.each(visible.end - visible.begin, [=](std::int64_t j) {
      const std::int64_t i = visible.begin + j;
      const R p = exp(scale * s[i] - log_sum);
      dropped[i] = static_cast<T>(p);
      ds[i] = static_cast<T>(scale * p * (dp[i] - delta));
    });
  } else {
    lanes.each(visible.end, [=](std::int64_t i) { s[i] = exp(scale * s[i] - log_sum); });
    const auto apply = [=](std::int64_t i, R m) {
      const R p = s[i];
      dropped[i] = static_cast<T>(p * m);
      ds[i] = static_cast<T>(scale * p * (dp[i] * m - delta));
    };
    dropout_row(lanes, visible.end, *mask, apply, first_block);
  }
  hide_row(lanes, visible, width, dropped);
  hide_row(lanes, visible, width, ds);
}

}  // namespace cuboid::kernels::body
