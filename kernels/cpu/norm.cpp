#include "kernels/body/norm.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/launch.h"

namespace cuboid::kernels::cpu {

using body::OneLane;

void layer_norm(const Device&, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, const Tensor& y,
                const Tensor& mean, const Tensor& rstd) {
  const std::int64_t n = row_length(x);
  const std::int64_t rows = row_count(x);
  with_storage(x, [&]<typename T>(T) {
    const T* xs = x.data<T>();
    const T* w = weight.data<T>();
    const T* b = bias.data<T>();
    T* ys = y.data<T>();
    auto* means = mean.data<Real<T>>();
    auto* rstds = rstd.data<Real<T>>();
    parallel_for(rows, [=](std::int64_t r) {
      const auto moments = body::layer_norm_row(OneLane{}, n, xs + r * n, w, b, static_cast<Real<T>>(eps), ys + r * n);
      means[r] = moments.mean;
      rstds[r] = moments.rstd;
    });
  });
}

void layer_norm_input_gradient(const Device&, const Tensor& dy, const Tensor& x, const Tensor& weight,
                               const Tensor& mean, const Tensor& rstd, const Tensor& dx) {
  const std::int64_t n = row_length(x);
  const std::int64_t rows = row_count(x);
  with_storage(x, [&]<typename T>(T) {
    const T* dys = dy.data<T>();
    const T* xs = x.data<T>();
    const T* w = weight.data<T>();
    const auto* means = mean.data<Real<T>>();
    const auto* rstds = rstd.data<Real<T>>();
    T* dxs = dx.data<T>();
    parallel_for(rows, [=](std::int64_t r) {
      body::layer_norm_input_gradient_row(OneLane{}, n, dys + r * n, xs + r * n, w,
                                          body::Moments<Real<T>>{means[r], rstds[r]}, dxs + r * n);
    });
  });
}

void layer_norm_weight_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& mean,
                                const Tensor& rstd, const Tensor& dweight, const Tensor& dbias) {
  const std::int64_t n = row_length(x);
  const std::int64_t rows = row_count(x);
  with_storage(x, [&]<typename T>(T) {
    parallel_chunks(n, kColumnChunk, [&](std::int64_t first, std::int64_t count) {
      body::add_norm_weight_gradient(OneLane{}, rows, count, n, dy.data<T>() + first, x.data<T>() + first,
                                     mean.data<Real<T>>(), rstd.data<Real<T>>(), dweight.data<Real<T>>() + first);
    });
  });
  add_column_sum(device, dy, dbias);
}

void rms_norm(const Device&, const Tensor& x, const Tensor& weight, double offset, double eps, const Tensor& y,
              const Tensor& rstd) {
  const std::int64_t n = row_length(x);
  const std::int64_t rows = row_count(x);
  with_storage(x, [&]<typename T>(T) {
    const T* xs = x.data<T>();
    const T* w = weight.data<T>();
    T* ys = y.data<T>();
    auto* rstds = rstd.data<Real<T>>();
    parallel_for(rows, [=](std::int64_t r) {
      rstds[r] = body::rms_norm_row(OneLane{}, n, xs + r * n, w, static_cast<Real<T>>(offset),
                                    static_cast<Real<T>>(eps), ys + r * n);
    });
  });
}

void rms_norm_input_gradient(const Device&, const Tensor& dy, const Tensor& x, const Tensor& weight, double offset,
                             const Tensor& rstd, const Tensor& dx) {
  const std::int64_t n = row_length(x);
  const std::int64_t rows = row_count(x);
  with_storage(x, [&]<typename T>(T) {
    const T* dys = dy.data<T>();
    const T* xs = x.data<T>();
    const T* w = weight.data<T>();
    const auto* rstds = rstd.data<Real<T>>();
    T* dxs = dx.data<T>();
    parallel_for(rows, [=](std::int64_t r) {
      body::rms_norm_input_gradient_row(OneLane{}, n, dys + r * n, xs + r * n, w, static_cast<Real<T>>(offset),
                                        rstds[r], dxs + r * n);
    });
  });
}

void rms_norm_weight_gradient(const Device&, const Tensor& dy, const Tensor& x, const Tensor& rstd,
                              const Tensor& dweight) {
  const std::int64_t n = row_length(x);
  const std::int64_t rows = row_count(x);
  with_storage(x, [&]<typename T>(T) {
    parallel_chunks(n, kColumnChunk, [&](std::int64_t first, std::int64_t count) {
      body::add_norm_weight_gradient<OneLane, T>(OneLane{}, rows, count, n, dy.data<T>() + first, x.data<T>() + first,
                                                 nullptr, rstd.data<Real<T>>(), dweight.data<Real<T>>() + first);
    });
  });
}

}  // namespace cuboid::kernels::cpu
