#include "kernels/body/norm.h"

#include "cuboid/kernels/kernels.h"

#include "kernels/cpu/launch.h"

namespace cuboid::kernels {

using body::OneLane;

void layer_norm(const Device&, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, const Tensor& y,
                const Tensor& mean, const Tensor& rstd) {
  const std::int64_t n = row_length(x);
  const std::int64_t rows = row_count(x);
  expect(weight, x.dtype(), n, "layer_norm: weight");
  expect(bias, x.dtype(), n, "layer_norm: bias");
  expect_like(y, x, "layer_norm: y");
  expect(mean, x.dtype(), rows, "layer_norm: mean");
  expect(rstd, x.dtype(), rows, "layer_norm: rstd");
  with_real(x, [&]<typename T>(T) {
    const T* xs = x.data<T>();
    const T* w = weight.data<T>();
    const T* b = bias.data<T>();
    T* ys = y.data<T>();
    T* means = mean.data<T>();
    T* rstds = rstd.data<T>();
    parallel_for(rows, [=](std::int64_t r) {
      const auto moments = body::layer_norm_row(OneLane{}, n, xs + r * n, w, b, static_cast<T>(eps), ys + r * n);
      means[r] = moments.mean;
      rstds[r] = moments.rstd;
    });
  });
}

void layer_norm_input_gradient(const Device&, const Tensor& dy, const Tensor& x, const Tensor& weight,
                               const Tensor& mean, const Tensor& rstd, const Tensor& dx) {
  const std::int64_t n = row_length(x);
  const std::int64_t rows = row_count(x);
  expect_like(dy, x, "layer_norm_input_gradient: dy");
  expect(weight, x.dtype(), n, "layer_norm_input_gradient: weight");
  expect(mean, x.dtype(), rows, "layer_norm_input_gradient: mean");
  expect(rstd, x.dtype(), rows, "layer_norm_input_gradient: rstd");
  expect_like(dx, x, "layer_norm_input_gradient: dx");
  with_real(x, [&]<typename T>(T) {
    const T* dys = dy.data<T>();
    const T* xs = x.data<T>();
    const T* w = weight.data<T>();
    const T* means = mean.data<T>();
    const T* rstds = rstd.data<T>();
    T* dxs = dx.data<T>();
    parallel_for(rows, [=](std::int64_t r) {
      body::layer_norm_input_gradient_row(OneLane{}, n, dys + r * n, xs + r * n, w,
                                          body::Moments<T>{means[r], rstds[r]}, dxs + r * n);
    });
  });
}

void layer_norm_weight_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& mean,
                                const Tensor& rstd, const Tensor& dweight, const Tensor& dbias) {
  const std::int64_t n = row_length(x);
  const std::int64_t rows = row_count(x);
  expect_like(dy, x, "layer_norm_weight_gradient: dy");
  expect(mean, x.dtype(), rows, "layer_norm_weight_gradient: mean");
  expect(rstd, x.dtype(), rows, "layer_norm_weight_gradient: rstd");
  expect(dweight, x.dtype(), n, "layer_norm_weight_gradient: dweight");
  with_real(x, [&]<typename T>(T) {
    parallel_chunks(n, kColumnChunk, [&](std::int64_t first, std::int64_t count) {
      body::add_norm_weight_gradient(OneLane{}, rows, count, n, dy.data<T>() + first, x.data<T>() + first,
                                     mean.data<T>(), rstd.data<T>(), dweight.data<T>() + first);
    });
  });
  add_column_sum(device, dy, dbias);
}

void rms_norm(const Device&, const Tensor& x, const Tensor& weight, double eps, const Tensor& y, const Tensor& rstd) {
  const std::int64_t n = row_length(x);
  const std::int64_t rows = row_count(x);
  expect(weight, x.dtype(), n, "rms_norm: weight");
  expect_like(y, x, "rms_norm: y");
  expect(rstd, x.dtype(), rows, "rms_norm: rstd");
  with_real(x, [&]<typename T>(T) {
    const T* xs = x.data<T>();
    const T* w = weight.data<T>();
    T* ys = y.data<T>();
    T* rstds = rstd.data<T>();
    parallel_for(rows, [=](std::int64_t r) {
      rstds[r] = body::rms_norm_row(OneLane{}, n, xs + r * n, w, static_cast<T>(eps), ys + r * n);
    });
  });
}

void rms_norm_input_gradient(const Device&, const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                             const Tensor& dx) {
  const std::int64_t n = row_length(x);
  const std::int64_t rows = row_count(x);
  expect_like(dy, x, "rms_norm_input_gradient: dy");
  expect(weight, x.dtype(), n, "rms_norm_input_gradient: weight");
  expect(rstd, x.dtype(), rows, "rms_norm_input_gradient: rstd");
  expect_like(dx, x, "rms_norm_input_gradient: dx");
  with_real(x, [&]<typename T>(T) {
    const T* dys = dy.data<T>();
    const T* xs = x.data<T>();
    const T* w = weight.data<T>();
    const T* rstds = rstd.data<T>();
    T* dxs = dx.data<T>();
    parallel_for(rows, [=](std::int64_t r) {
      body::rms_norm_input_gradient_row(OneLane{}, n, dys + r * n, xs + r * n, w, rstds[r], dxs + r * n);
    });
  });
}

void rms_norm_weight_gradient(const Device&, const Tensor& dy, const Tensor& x, const Tensor& rstd,
                              const Tensor& dweight) {
  const std::int64_t n = row_length(x);
  const std::int64_t rows = row_count(x);
  expect_like(dy, x, "rms_norm_weight_gradient: dy");
  expect(rstd, x.dtype(), rows, "rms_norm_weight_gradient: rstd");
  expect(dweight, x.dtype(), n, "rms_norm_weight_gradient: dweight");
  with_real(x, [&]<typename T>(T) {
    parallel_chunks(n, kColumnChunk, [&](std::int64_t first, std::int64_t count) {
      body::add_norm_weight_gradient<OneLane, T>(OneLane{}, rows, count, n, dy.data<T>() + first, x.data<T>() + first,
                                                 nullptr, rstd.data<T>(), dweight.data<T>() + first);
    });
  });
}

}  // namespace cuboid::kernels
