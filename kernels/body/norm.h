// LayerNorm and RMSNorm: rows forward and for the input gradient, columns for the weight gradients.
#pragma once

#include "kernels/body/lanes.h"
#include "kernels/body/math.h"

namespace cuboid::kernels::body {

/// What a row's gradient needs again.
template <typename T>
struct Moments {
  T mean, rstd;
};

/// y (n) = (x - mean)·rstd·weight + bias. The variance is that of the centred row: two passes, no cancellation.
template <typename Lanes, typename T>
CUBOID_HD Moments<T> layer_norm_row(Lanes lanes, std::int64_t n, const T* x, const T* weight, const T* bias, T eps,
                                    T* y) {
  const T count = static_cast<T>(n);
  const T mean = lanes.template sum<T>(n, [=](std::int64_t i) { return x[i]; }) / count;
  const T variance = lanes.template sum<T>(n, [=](std::int64_t i) { return (x[i] - mean) * (x[i] - mean); }) / count;
  const T rstd = T{1} / std::sqrt(variance + eps);
  lanes.each(n, [=](std::int64_t i) { y[i] = (x[i] - mean) * rstd * weight[i] + bias[i]; });
  return {mean, rstd};
}

/// With g = dy·weight and h = (x - mean)·rstd: dx = rstd·(g - mean(g) - h·mean(g·h)).
template <typename Lanes, typename T>
CUBOID_HD void layer_norm_input_gradient_row(Lanes lanes, std::int64_t n, const T* dy, const T* x, const T* weight,
                                             Moments<T> m, T* dx) {
  const Two<T> sums = lanes.template sum2<T>(n, [=](std::int64_t i) {
    const T g = dy[i] * weight[i];
    return Two<T>{g, g * ((x[i] - m.mean) * m.rstd)};
  });
  const T mean_g = sums.a / static_cast<T>(n);
  const T mean_gh = sums.b / static_cast<T>(n);
  lanes.each(n, [=](std::int64_t i) {
    const T h = (x[i] - m.mean) * m.rstd;
    dx[i] = m.rstd * (dy[i] * weight[i] - mean_g - h * mean_gh);
  });
}

/// y (n) = x·rstd·weight; returns rstd.
template <typename Lanes, typename T>
CUBOID_HD T rms_norm_row(Lanes lanes, std::int64_t n, const T* x, const T* weight, T eps, T* y) {
  const T square = lanes.template sum<T>(n, [=](std::int64_t i) { return x[i] * x[i]; }) / static_cast<T>(n);
  const T rstd = T{1} / std::sqrt(square + eps);
  lanes.each(n, [=](std::int64_t i) { y[i] = x[i] * rstd * weight[i]; });
  return rstd;
}

/// With g = dy·weight and h = x·rstd: dx = rstd·(g - h·mean(g·h)).
template <typename Lanes, typename T>
CUBOID_HD void rms_norm_input_gradient_row(Lanes lanes, std::int64_t n, const T* dy, const T* x, const T* weight,
                                           T rstd, T* dx) {
  const T sum = lanes.template sum<T>(n, [=](std::int64_t i) { return dy[i] * weight[i] * (x[i] * rstd); });
  const T mean_gh = sum / static_cast<T>(n);
  lanes.each(n, [=](std::int64_t i) { dx[i] = rstd * (dy[i] * weight[i] - x[i] * rstd * mean_gh); });
}

/// Rows added into a register before a column's total is touched: an order that is part of the definition.
inline constexpr int kRowBlock = 8;

/// out (n) += Σ over rows of term(row, column): blocks of kRowBlock rows in ascending order, the rest one by one.
template <typename Lanes, typename T, typename Term>
CUBOID_HD void add_over_rows(Lanes lanes, std::int64_t rows, std::int64_t n, T* out, Term term) {
  std::int64_t r = 0;
  for (; r + kRowBlock <= rows; r += kRowBlock) {
    lanes.each(n, [=](std::int64_t i) {
      T s = term(r, i);
      for (int k = 1; k < kRowBlock; ++k) s += term(r + k, i);
      out[i] += s;
    });
  }
  for (; r < rows; ++r) {
    lanes.each(n, [=](std::int64_t i) { out[i] += term(r, i); });
  }
}

/// out (n) adds the column sums of x, n columns of a matrix with row length `stride`.
template <typename Lanes, typename T>
CUBOID_HD void add_column_sum(Lanes lanes, std::int64_t rows, std::int64_t n, std::int64_t stride, const T* x, T* out) {
  add_over_rows(lanes, rows, n, out, [=](std::int64_t r, std::int64_t i) { return x[r * stride + i]; });
}

/// dweight (n) adds Σ dy·(x - mean)·rstd over rows; mean may be null (RMSNorm): zero.
template <typename Lanes, typename T>
CUBOID_HD void add_norm_weight_gradient(Lanes lanes, std::int64_t rows, std::int64_t n, std::int64_t stride,
                                        const T* dy, const T* x, const T* mean, const T* rstd, T* dweight) {
  if (mean == nullptr) {
    add_over_rows(lanes, rows, n, dweight,
                  [=](std::int64_t r, std::int64_t i) { return dy[r * stride + i] * (x[r * stride + i] * rstd[r]); });
  } else {
    add_over_rows(lanes, rows, n, dweight, [=](std::int64_t r, std::int64_t i) {
      return dy[r * stride + i] * ((x[r * stride + i] - mean[r]) * rstd[r]);
    });
  }
}

}  // namespace cuboid::kernels::body
