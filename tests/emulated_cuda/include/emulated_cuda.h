// CUDA on the CPU, for tests without a GPU. Streams are threads that work off their queues with random delays; events
// really order them. Device memory is mapped twice: at the addresses that programs see nobody may read or write, so
// host code that touches device memory faults; workers use the other mapping. Fresh device memory is filled with NaN.
// Not here: speed, and anything that the project does not call.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

namespace emulated_cuda {

/// How many GPUs the machine has (EMULATED_CUDA_DEVICES of the environment, or 1). CUDA_VISIBLE_DEVICES says which of
/// them programs see: by number or by the beginning of a UUID, up to the first entry that names none. With
/// EMULATED_CUDA_MIG they pass for parts of a GPU.
void set_devices(int count);
/// One in eight operations starts up to so many microseconds late (0).
void set_delay(int microseconds);
/// Until reset with 0, that many of the coming cudaStreamWaitEvent calls of this thread do nothing after `skip` others:
/// a forgotten wait, planted.
void forget_waits(int skip, int count);
/// cudaStreamWaitEvent calls of this thread since forget_waits.
int waits_made();

/// Queues work behind what the stream has.
void enqueue(cudaStream_t stream, std::function<void()> work);
/// The address at which workers find device memory. Pointers to host memory are returned as they are.
void* for_workers(const void* pointer);
template <typename T>
T* for_workers(T* pointer) {
  return static_cast<T*>(for_workers(static_cast<const void*>(pointer)));
}
/// Live allocations of device memory, in bytes.
std::size_t allocated_bytes();

/// A range that NVTX was told of: how many ranges were open around it, and its name.
struct Range {
  int depth;
  std::string name;
  friend bool operator==(const Range&, const Range&) = default;
};
/// This thread's ranges since the last call, in the order in which they began.
std::vector<Range> take_ranges();
/// How many of this thread's are open.
int open_ranges();

}  // namespace emulated_cuda
