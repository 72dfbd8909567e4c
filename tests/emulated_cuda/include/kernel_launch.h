// Kernel bodies on emulated streams: one lane a row. The templates of kernels/cuda/device/kernel_launch.h.
#pragma once

#include <algorithm>
#include <vector>

#include <emulated_cuda.h>

#include "kernels/body/lanes.h"
#include "kernels/cuda/packs.h"

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

template <typename Row, typename... Arguments>
void launch_rows_of(cudaStream_t stream, std::int64_t rows, std::int64_t, Row row, Arguments... a) {
  emulated_cuda::enqueue(stream, [=] {
    for (std::int64_t r = 0; r < rows; ++r) row(RowLanes{}, r, (a.at + r * a.stride)...);
  });
}

template <typename Row, typename... Arguments>
void launch_staged_rows(cudaStream_t stream, std::int64_t rows, std::int64_t n, Row row, Arguments... a) {
  emulated_cuda::enqueue(stream, [=] {
    Pack<std::byte, kAccess> nothing;
    std::fill_n(nothing.x, kAccess, std::byte{0xff});
    std::vector<Pack<std::byte, kAccess>> memory(static_cast<std::size_t>(staged_bytes<Arguments...>(n) / kAccess));
    for (std::int64_t r = 0; r < rows; ++r) {
      std::fill(memory.begin(), memory.end(), nothing);
      run_staged(RowLanes{}, n, r, memory.front().x, row, a...);
    }
  });
}

template <typename Element>
void launch_elements(cudaStream_t stream, std::int64_t n, Element element) {
  if (n == 0) return;
  emulated_cuda::enqueue(stream, [=] {
    for (std::int64_t i = 0; i < n; ++i) element(i);
  });
}

template <int V, typename F, typename... Arguments>
void launch_packs(cudaStream_t stream, std::int64_t rows, std::int64_t n, F f, Arguments... a) {
  const std::int64_t items = rows * (n / V + n % V);
  emulated_cuda::enqueue(stream, [=] {
    for (std::int64_t i = 0; i < items; ++i) map_item<V>(f, i, rows, n, a...);
  });
}

inline void add_atomically(std::int64_t* sum, std::int64_t value) {
  *sum += value;
}

}  // namespace cuboid::kernels::cuda

#define CUBOID_DEVICE
