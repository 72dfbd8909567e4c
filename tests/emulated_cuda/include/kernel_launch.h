// Kernel bodies on emulated streams: one lane a row. The templates of kernels/cuda/device/kernel_launch.h.
#pragma once

#include <emulated_cuda.h>

#include "kernels/body/lanes.h"

namespace cuboid::kernels::cuda {

/// Where a kernel reads or writes.
template <typename T>
T* on_device(T* pointer) {
  return emulated_cuda::for_workers(pointer);
}

class RowLanes : public body::OneLane {
 public:
  bool leader() const { return true; }
  void sync() const {}
};

template <typename Row>
void launch_rows(cudaStream_t stream, std::int64_t rows, std::int64_t, Row row) {
  if (rows == 0) return;
  emulated_cuda::enqueue(stream, [=] {
    for (std::int64_t r = 0; r < rows; ++r) row(RowLanes{}, r);
  });
}

template <typename Element>
void launch_elements(cudaStream_t stream, std::int64_t n, Element element) {
  if (n == 0) return;
  emulated_cuda::enqueue(stream, [=] {
    for (std::int64_t i = 0; i < n; ++i) element(i);
  });
}

inline void add_atomically(std::int64_t* sum, std::int64_t value) {
  *sum += value;
}

}  // namespace cuboid::kernels::cuda

#define CUBOID_DEVICE
