// What every CUDA launcher needs: the rank's stream, pointers for kernels, and the element type as a template argument.
// Arguments have been checked where kernels are dispatched. Internal to kernels/cuda.
#pragma once

#include <string>

#include "cuboid/kernels/kernels.h"

#include "kernel_launch.h"
#include "kernels/body/storage.h"
#include "runtime/cuda/gpu.h"

namespace cuboid::kernels::cuda {

using body::Real;
using body::real;
using cuboid::cuda::Gpu;
using cuboid::cuda::gpu_of;

inline cudaStream_t stream_of(const Device& device) {
  return gpu_of(device).compute().get();
}

/// The tensor's elements as a kernel sees them. Host code may not read through it.
template <typename T>
T* elements_of(const Tensor& tensor) {
  return on_device(tensor.data<T>());
}

/// Calls f with a value of the element type, which must be float32 or bfloat16.
template <typename F>
void with_storage(const Tensor& tensor, F f) {
  if (tensor.dtype() == DType::bfloat16) {
    f(BFloat16{});
  } else {
    CUBOID_CHECK(tensor.dtype() == DType::float32, std::string("no CUDA kernel for ") + name_of(tensor.dtype()));
    f(float{});
  }
}

}  // namespace cuboid::kernels::cuda
