// How a kernel body runs on a GPU: the lanes of a row are a warp or a block, and every kernel is launched by one of the
// templates below. The emulation of CUDA has a header of this name with the same templates for C++.
#pragma once

#include <algorithm>
#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/body/lanes.h"
#include "kernels/cuda/packs.h"
#include "runtime/cuda/check.h"

namespace cuboid::kernels::cuda {

/// Threads of a block, all of which work on one row where rows are long.
inline constexpr int kBlock = 256;
/// Rows up to this length are a warp's.
inline constexpr std::int64_t kWarpRow = 2048;
/// Blocks of a launch: more rows than these hold are taken in turns.
inline constexpr std::int64_t kMostBlocks = 1 << 20;

/// Where a kernel reads or writes: the pointer itself.
template <typename T>
T* on_device(T* pointer) {
  return pointer;
}

/// A warp (width 32) or a block that works on a row. Sums of a warp are those of OneLane: 32 interleaved partial sums,
/// folded in halves. Every operation ends with a barrier, so that the next one sees what all lanes have written.
class RowLanes {
 public:
  static constexpr int kWarp = 32;
  __device__ RowLanes(int lane, int width, double* scratch) : lane_(lane), width_(width), scratch_(scratch) {}

  /// The lane that stores a row's results.
  __device__ bool leader() const { return lane_ == 0; }
  __device__ void sync() const {
    if (width_ == kWarp) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  template <typename F>
  __device__ void each(std::int64_t n, F f) const {
#pragma unroll 4
    for (std::int64_t i = lane_; i < n; i += width_) f(i);
    sync();
  }

  template <typename Make, typename F>
  __device__ void each_word(std::int64_t n, Make make, F f) const {
    for (std::int64_t b = lane_; 4 * b < n; b += width_) {
      const auto four = make(b);
      for (int w = 0; w < 4; ++w) {
        if (4 * b + w < n) f(4 * b + w, four.x[w]);
      }
    }
    sync();
  }

  template <typename T, typename F>
  __device__ T sum(std::int64_t n, F f) const {
    T partial{};
#pragma unroll 4
    for (std::int64_t i = lane_; i < n; i += width_) partial += f(i);
    return fold(partial, [](T a, T b) { return a + b; });
  }

  template <typename T, typename F>
  __device__ body::Two<T> sum2(std::int64_t n, F f) const {
    body::Two<T> partial{};
#pragma unroll 4
    for (std::int64_t i = lane_; i < n; i += width_) {
      const body::Two<T> term = f(i);
      partial.a += term.a;
      partial.b += term.b;
    }
    const auto plus = [](T a, T b) { return a + b; };
    return {fold(partial.a, plus), fold(partial.b, plus)};
  }

  template <typename T, typename F>
  __device__ T max(std::int64_t n, F f) const {
    T partial = f(0);
#pragma unroll 4
    for (std::int64_t i = lane_; i < n; i += width_) {
      const T value = f(i);
      partial = value > partial ? value : partial;
    }
    return fold(partial, [](T so_far, T value) { return value > so_far ? value : so_far; });
  }

 private:
  // Every lane gets the result.
  template <typename T, typename Combine>
  __device__ T fold(T value, Combine combine) const {
    for (int w = kWarp / 2; w > 0; w /= 2) value = combine(value, __shfl_xor_sync(0xffffffffU, value, w));
    if (width_ == kWarp) {
      __syncwarp();
      return value;
    }
    static_assert(sizeof(T) <= sizeof(double), "scratch holds a double a warp");
    T* const totals = reinterpret_cast<T*>(scratch_);
    if (lane_ % kWarp == 0) totals[lane_ / kWarp] = value;
    __syncthreads();
    T total = totals[0];
    for (int w = 1; w < width_ / kWarp; ++w) total = combine(total, totals[w]);
    __syncthreads();
    return total;
  }

  int lane_;
  int width_;
  double* scratch_;  // a number a warp of the block
};

template <typename Row>
__global__ void __launch_bounds__(kBlock) run_rows(std::int64_t rows, int width, Row row) {
  __shared__ double scratch[kBlock / RowLanes::kWarp];
  const int groups = kBlock / width;
  const int group = static_cast<int>(threadIdx.x) / width;
  const RowLanes lanes(static_cast<int>(threadIdx.x) % width, width, scratch);
  for (std::int64_t r = std::int64_t{blockIdx.x} * groups + group; r < rows; r += std::int64_t{gridDim.x} * groups) {
    row(lanes, r);
  }
}

template <typename Row, typename... Arguments>
__global__ void __launch_bounds__(kBlock) run_rows_of(std::int64_t rows, int width, Row row, Arguments... a) {
  __shared__ double scratch[kBlock / RowLanes::kWarp];
  const int groups = kBlock / width;
  const int group = static_cast<int>(threadIdx.x) / width;
  const RowLanes lanes(static_cast<int>(threadIdx.x) % width, width, scratch);
  for (std::int64_t r = std::int64_t{blockIdx.x} * groups + group; r < rows; r += std::int64_t{gridDim.x} * groups) {
    row(lanes, r, (a.at + r * a.stride)...);
  }
}

template <typename Row, typename... Arguments>
__global__ void __launch_bounds__(kBlock)
    run_staged_rows(std::int64_t rows, std::int64_t n, int width, Row row, Arguments... a) {
  extern __shared__ uint4 staged[];
  __shared__ double scratch[kBlock / RowLanes::kWarp];
  static_assert(kMostStaged + static_cast<std::int64_t>(sizeof(scratch)) <= 48 << 10, "more needs to be asked for");
  const int groups = static_cast<int>(blockDim.x) / width;
  const int group = static_cast<int>(threadIdx.x) / width;
  const RowLanes lanes(static_cast<int>(threadIdx.x) % width, width, scratch);
  std::byte* const memory = reinterpret_cast<std::byte*>(staged) + group * staged_bytes<Arguments...>(n);
  for (std::int64_t r = std::int64_t{blockIdx.x} * groups + group; r < rows; r += std::int64_t{gridDim.x} * groups) {
    run_staged(lanes, n, r, memory, row, a...);
  }
}

template <typename Element>
__global__ void __launch_bounds__(kBlock) run_elements(std::int64_t n, Element element) {
#pragma unroll 4
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < n; i += std::int64_t{gridDim.x} * kBlock) {
    element(i);
  }
}

template <int V, typename F, typename... Arguments>
__global__ void __launch_bounds__(kBlock)
    run_packs(std::int64_t items, std::int64_t rows, std::int64_t n, F f, Arguments... a) {
#pragma unroll 1
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < items;
       i += std::int64_t{gridDim.x} * kBlock) {
    map_item<V>(f, i, rows, n, a...);
  }
}

/// row(lanes, r) for r in [0, rows); `length`: elements of a row, by which its lanes are chosen.
template <typename Row>
void launch_rows(cudaStream_t stream, std::int64_t rows, std::int64_t length, Row row) {
  if (rows == 0) return;
  const int width = length <= kWarpRow ? RowLanes::kWarp : kBlock;
  const std::int64_t blocks = std::min(kMostBlocks, (rows * width + kBlock - 1) / kBlock);
  run_rows<<<static_cast<unsigned>(blocks), kBlock, 0, stream>>>(rows, width, row);
  CUBOID_CUDA(cudaGetLastError());
}

/// row(lanes, r, pointers to row r of each argument…) for r in [0, rows), rows of n elements.
template <typename Row, typename... Arguments>
void launch_rows_of(cudaStream_t stream, std::int64_t rows, std::int64_t n, Row row, Arguments... a) {
  const int width = n <= kWarpRow ? RowLanes::kWarp : kBlock;
  const std::int64_t blocks = std::min(kMostBlocks, (rows * width + kBlock - 1) / kBlock);
  run_rows_of<<<static_cast<unsigned>(blocks), kBlock, 0, stream>>>(rows, width, row, a...);
  CUBOID_CUDA(cudaGetLastError());
}

/// The same on copies in shared memory. @pre staged_bytes of a row are at most kMostStaged
template <typename Row, typename... Arguments>
void launch_staged_rows(cudaStream_t stream, std::int64_t rows, std::int64_t n, Row row, Arguments... a) {
  const std::int64_t bytes = staged_bytes<Arguments...>(n);
  const int width = n <= kWarpRow ? RowLanes::kWarp : kBlock;
  const std::int64_t groups = std::min<std::int64_t>(kBlock / width, kMostStaged / bytes);
  const std::int64_t blocks = std::min(kMostBlocks, (rows + groups - 1) / groups);
  run_staged_rows<<<static_cast<unsigned>(blocks), static_cast<unsigned>(groups * width),
                    static_cast<std::size_t>(groups * bytes), stream>>>(rows, n, width, row, a...);
  CUBOID_CUDA(cudaGetLastError());
}

/// element(i) for i in [0, n).
template <typename Element>
void launch_elements(cudaStream_t stream, std::int64_t n, Element element) {
  if (n == 0) return;
  // Four elements a thread: enough loads in flight, and few enough blocks.
  const std::int64_t blocks = std::min(kMostBlocks, (n + 4 * kBlock - 1) / (4 * kBlock));
  run_elements<<<static_cast<unsigned>(blocks), kBlock, 0, stream>>>(n, element);
  CUBOID_CUDA(cudaGetLastError());
}

/// map_item for all items of rows of n elements.
template <int V, typename F, typename... Arguments>
void launch_packs(cudaStream_t stream, std::int64_t rows, std::int64_t n, F f, Arguments... a) {
  const std::int64_t items = rows * (n / V + n % V);
  const std::int64_t blocks = std::min(kMostBlocks, (items + kBlock - 1) / kBlock);
  run_packs<V><<<static_cast<unsigned>(blocks), kBlock, 0, stream>>>(items, rows, n, f, a...);
  CUBOID_CUDA(cudaGetLastError());
}

/// Adds to a sum that many lanes add to.
__device__ inline void add_atomically(std::int64_t* sum, std::int64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(value));
}

}  // namespace cuboid::kernels::cuda

#define CUBOID_DEVICE __device__
