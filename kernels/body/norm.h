// LayerNorm and RMSNorm: rows forward and for the input gradient, columns for the weight gradients.
#pragma once

#include "kernels/body/lanes.h"
#include "kernels/body/math.h"
#include "kernels/body/storage.h"

namespace cuboid::kernels::body {

/// What a row's gradient needs again.
template <typename T>
struct Moments {
  T mean, rstd;
};

/// y (n) = (x - mean)·rstd·weight + bias. The variance is that of the centred row: two passes, no cancellation.
template <typename Lanes, typename T>
CUBOID_HD Moments<Real<T>> layer_norm_row(Lanes lanes, std::int64_t n, const T* x, const T* weight, const T* bias,
                                          Real<T> eps, T* y) {
  using R = Real<T>;
  const R count = static_cast<R>(n);
  const R mean = lanes.template sum<R>(n, [=](std::int64_t i) { return real(x[i]); }) / count;
  const R variance = lanes.template sum<R>(n, [=](std::int64_t i) {
    const R centred = real(x[i]) - mean;
    return centred * centred;
  }) / count;
  const R rstd = R{1} / std::sqrt(variance + eps);
  lanes.each(
      n, [=](std::int64_t i) { y[i] = static_cast<T>((real(x[i]) - mean) * rstd * real(weight[i]) + real(bias[i])); });
  return {mean, rstd};
}

/// With g = dy·weight and h = (x - mean)·rstd: dx = rstd·(g - mean(g) - h·mean(g·h)).
template <typename Lanes, typename T>
CUBOID_HD void layer_norm_input_gradient_row(Lanes lanes, std::int64_t n, const T* dy, const T* x, const T* weight,
                                             Moments<Real<T>> m, T* dx) {
  using R = Real<T>;
  const Two<R> sums = lanes.template sum2<R>(n, [=](std::int64_t i) {
    const R g = real(dy[i]) * real(weight[i]);
    return Two<R>{g, g * ((real(x[i]) - m.mean) * m.rstd)};
  });
  const R mean_g = sums.a / static_cast<R>(n);
  const R mean_gh = sums.b / static_cast<R>(n);
  lanes.each(n, [=](std::int64_t i) {
    const R h = (real(x[i]) - m.mean) * m.rstd;
    dx[i] = static_cast<T>(m.rstd * (real(dy[i]) * real(weight[i]) - mean_g - h * mean_gh));
  });
}

/// y (n) = x·rstd·(weight + offset); returns rstd.
template <typename Lanes, typename T>
CUBOID_HD Real<T> rms_norm_row(Lanes lanes, std::int64_t n, const T* x, const T* weight, Real<T> offset, Real<T> eps,
                               T* y) {
  using R = Real<T>;
  const R square =
      lanes.template sum<R>(n, [=](std::int64_t i) { return real(x[i]) * real(x[i]); }) / static_cast<R>(n);
  const R rstd = R{1} / std::sqrt(square + eps);
  lanes.each(n, [=](std::int64_t i) { y[i] = static_cast<T>(real(x[i]) * rstd * (real(weight[i]) + offset)); });
  return rstd;
}

/// With g = dy·(weight + offset) and h = x·rstd: dx = rstd·(g - h·mean(g·h)).
template <typename Lanes, typename T>
CUBOID_HD void rms_norm_input_gradient_row(Lanes lanes, std::int64_t n, const T* dy, const T* x, const T* weight,
                                           Real<T> offset, Real<T> rstd, T* dx) {
  using R = Real<T>;
  const R sum = lanes.template sum<R>(
      n, [=](std::int64_t i) { return real(dy[i]) * (real(weight[i]) + offset) * (real(x[i]) * rstd); });
  const R mean_gh = sum / static_cast<R>(n);
  lanes.each(n, [=](std::int64_t i) {
    dx[i] = static_cast<T>(rstd * (real(dy[i]) * (real(weight[i]) + offset) - real(x[i]) * rstd * mean_gh));
  });
}

/// Rows added into a register before a column's total is touched: an order that is part of the definition.
inline constexpr int kRowBlock = 8;

/// out (n) += Σ over rows of term(row, column): blocks of kRowBlock rows in ascending order, the rest one by one.
template <typename Lanes, typename R, typename Term>
CUBOID_HD void add_over_rows(Lanes lanes, std::int64_t rows, std::int64_t n, R* out, Term term) {
  std::int64_t r = 0;
  for (; r + kRowBlock <= rows; r += kRowBlock) {
    lanes.each(n, [=](std::int64_t i) {
      R s = term(r, i);
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
CUBOID_HD void add_column_sum(Lanes lanes, std::int64_t rows, std::int64_t n, std::int64_t stride, const T* x,
                              Real<T>* out) {
  add_over_rows(lanes, rows, n, out, [=](std::int64_t r, std::int64_t i) { return real(x[r * stride + i]); });
}

/// dweight (n) adds Σ dy·(x - mean)·rstd over rows; mean may be null (RMSNorm): zero.
template <typename Lanes, typename T>
CUBOID_HD void add_norm_weight_gradient(Lanes lanes, std::int64_t rows, std::int64_t n, std::int64_t stride,
                                        const T* dy, const T* x, const Real<T>* mean, const Real<T>* rstd,
                                        Real<T>* dweight) {
  if (mean == nullptr) {
    add_over_rows(lanes, rows, n, dweight, [=](std::int64_t r, std::int64_t i) {
      return real(dy[r * stride + i]) * (real(x[r * stride + i]) * rstd[r]);
    });
  } else {
    add_over_rows(lanes, rows, n, dweight, [=](std::int64_t r, std::int64_t i) {
      return real(dy[r * stride + i]) * ((real(x[r * stride + i]) - mean[r]) * rstd[r]);
    });
  }
}

}  // namespace cuboid::kernels::body
