// What every CPU launcher needs: the element type as a template argument, and loops over rows that
// run on OpenMP's threads. Internal to kernels/cpu.
#pragma once

#include <algorithm>
#include <exception>
#include <string>

#include <omp.h>

#include "cuboid/runtime/device.h"

#include "kernels/body/storage.h"
#include "kernels/check.h"

namespace cuboid::kernels {

using body::Real;
using body::real;

/// Calls f with a value of the element type: float or double.
template <typename F>
void with_real(const Tensor& tensor, F f) {
  CUBOID_CHECK(tensor.defined(), "no tensor");
  if (tensor.dtype() == DType::float32) {
    f(float{});
  } else {
    CUBOID_CHECK(tensor.dtype() == DType::float64, std::string("no kernel for ") + name_of(tensor.dtype()));
    f(double{});
  }
}

/// Calls f with a value of the element type: float, double or BFloat16, of which only the last differs from the type
/// that is computed with (body::Real).
template <typename F>
void with_storage(const Tensor& tensor, F f) {
  if (tensor.defined() && tensor.dtype() == DType::bfloat16) {
    f(BFloat16{});
  } else {
    with_real(tensor, f);
  }
}

/// f(i) for i in [0, n), on all OpenMP threads if there are several; the first exception is thrown on.
template <typename F>
void parallel_for(std::int64_t n, F f) {
  if (omp_get_max_threads() == 1 || omp_in_parallel()) {
    for (std::int64_t i = 0; i < n; ++i) f(i);
    return;
  }
  std::exception_ptr failure;
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < n; ++i) {
    try {
      f(i);
    } catch (...) {
#pragma omp critical(cuboid_parallel_for)
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

/// f(begin, count) for chunks of [0, n) whose size depends on n alone, so that bits do not depend on the thread count.
template <typename F>
void parallel_chunks(std::int64_t n, std::int64_t chunk, F f) {
  parallel_for((n + chunk - 1) / chunk, [&](std::int64_t i) { f(i * chunk, std::min(chunk, n - i * chunk)); });
}

/// Elements of one chunk of an elementwise kernel: fits a core's L1 cache with its operands.
inline constexpr std::int64_t kElementChunk = 4096;
/// Columns of one chunk of a kernel that sums over rows.
inline constexpr std::int64_t kColumnChunk = 512;

}  // namespace cuboid::kernels
