// What every CUDA launcher needs: the rank's stream, pointers for kernels, and the element type as a template argument.
// Arguments have been checked where kernels are dispatched. Internal to kernels/cuda.
#pragma once

#include <algorithm>
#include <initializer_list>
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

/// For kernels that move rows of n elements of type T as they are: calls f with a value of the type in which all rows
/// of these arrays can be moved, and a row's length in it.
template <typename T, typename F>
void with_widest(std::int64_t n, std::initializer_list<const void*> arrays, F f) {
  using Wide = Pack<T, kAccess / static_cast<int>(sizeof(T))>;
  const bool wide = n * static_cast<std::int64_t>(sizeof(T)) % kAccess == 0 &&
                    std::all_of(arrays.begin(), arrays.end(), [](const void* array) {
                      return reinterpret_cast<std::uintptr_t>(array) % kAccess == 0;
                    });
  if (wide) {
    f(Wide{}, n * static_cast<std::int64_t>(sizeof(T)) / kAccess);
  } else {
    f(T{}, n);
  }
}

/// row(lanes, r, a pointer to each argument's row r…): to copies near the lanes, moved 16 bytes at a time, where rows
/// begin and end at multiples of that and fit.
template <typename Row, typename... Arguments>
void on_rows(cudaStream_t stream, std::int64_t rows, std::int64_t n, Row row, Arguments... a) {
  if (rows == 0 || n == 0) return;
  const auto whole = [n](std::size_t size) { return n * static_cast<std::int64_t>(size) % kAccess == 0; };
  if (((a.aligned(rows) && whole(sizeof(typename Arguments::Type))) && ...) &&
      staged_bytes<Arguments...>(n) <= kMostStaged) {
    launch_staged_rows(stream, rows, n, row, a...);
  } else {
    launch_rows_of(stream, rows, n, row, a...);
  }
}

/// f(a, b, …) for the elements of rows of n: in() by value, out() and in_out() by reference. Arguments may be the same
/// array, but not overlap otherwise.
template <typename F, typename... Arguments>
void map_rows(cudaStream_t stream, std::int64_t rows, std::int64_t n, F f, Arguments... a) {
  if (rows == 0 || n == 0) return;
  constexpr int kPack = kAccess / static_cast<int>(std::min({sizeof(typename Arguments::Type)...}));
  if ((a.aligned(rows) && ...)) {
    launch_packs<kPack>(stream, rows, n, f, a...);
  } else {
    launch_packs<1>(stream, rows, n, f, a...);
  }
}

/// The same for n elements.
template <typename F, typename... Arguments>
void map_elements(cudaStream_t stream, std::int64_t n, F f, Arguments... a) {
  map_rows(stream, 1, n, f, a...);
}

}  // namespace cuboid::kernels::cuda
