// Matrix products on device memory: the seam between kernels and cuBLASLt. Internal to kernels/cuda.
#pragma once

#include <cstdint>

#include "cuboid/runtime/device.h"

namespace cuboid::kernels::cuda {

/// Row-major matrices in device memory, `batch` of them at a distance; transposed: what is stored is the transpose.
struct MatrixBatch {
  void* data;
  DType dtype;          ///< float32 or bfloat16
  std::int64_t stride;  ///< from row to row, in elements
  std::int64_t distance = 0;
  bool transposed = false;
};

struct GemmOptions {
  std::int64_t batch = 1;
  bool accumulate = false;  ///< add to c
  void* bias = nullptr;     ///< (n), of c's type, added to every row of every c
};

/// Every c (m,n) = a (m,k)·b (k,n) [+ bias] [+ c], in the device's compute stream. Sums are made in float32 (a float32
/// product without TF32) and rounded once. a and b are of one type; c is of that type or float32. @pre k > 0
/// @throws Error{failed} that names the product, when cuBLASLt reports an error or knows no algorithm
void gemm(const Device& device, std::int64_t m, std::int64_t n, std::int64_t k, MatrixBatch a, MatrixBatch b,
          MatrixBatch c, GemmOptions options = {});

}  // namespace cuboid::kernels::cuda
