// Matrix product on pointers with row strides: the seam between kernels and the vendor library. Internal to
// kernels/cpu.
#pragma once

#include <cstdint>

#include "cuboid/core/dtype.h"

namespace cuboid::kernels {

/// A row-major matrix and its row stride; transposed: what is stored is the transpose.
template <typename T>
struct MatrixRef {
  const T* data;
  std::int64_t stride;
  bool transposed = false;
};

/// c (m,n; row stride) = a (m,k)·b (k,n) [+ c]. Without `accumulate`, c is written without being read. @pre k > 0
/// float and BFloat16: oneDNN. double: plain loops. @throws Error{failed} when oneDNN reports one.
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<float> a, MatrixRef<float> b, bool accumulate,
          float* c, std::int64_t c_stride);
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<double> a, MatrixRef<double> b, bool accumulate,
          double* c, std::int64_t c_stride);
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<BFloat16> a, MatrixRef<BFloat16> b, bool accumulate,
          float* c, std::int64_t c_stride);
/// c (m,n) = a·b + bias (n; may be null), summed in float and rounded once.
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<BFloat16> a, MatrixRef<BFloat16> b,
          const BFloat16* bias, BFloat16* c);

/// Converts the operands to float and multiplies those: what a CPU without bfloat16 instructions does.
void gemm_by_float(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<BFloat16> a, MatrixRef<BFloat16> b,
                   bool accumulate, float* c, std::int64_t c_stride);
void gemm_by_float(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<BFloat16> a, MatrixRef<BFloat16> b,
                   const BFloat16* bias, BFloat16* c);

}  // namespace cuboid::kernels
