// Matrix product on pointers with row strides: the seam between kernels and the vendor library. Internal to
// kernels/cpu.
#pragma once

#include <cstdint>

namespace cuboid::kernels {

/// A row-major matrix and its row stride; transposed: what is stored is the transpose.
template <typename T>
struct MatrixRef {
  const T* data;
  std::int64_t stride;
  bool transposed = false;
};

/// c (m,n; row stride) = alpha·a (m,k)·b (k,n) + beta·c. With beta = 0, c is written without being read.
/// float: oneDNN. double: plain loops. @throws Error{failed} when oneDNN runs out of memory.
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, MatrixRef<float> a, MatrixRef<float> b,
          float beta, float* c, std::int64_t c_stride);
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, double alpha, MatrixRef<double> a, MatrixRef<double> b,
          double beta, double* c, std::int64_t c_stride);

}  // namespace cuboid::kernels
