// CUDA on the CPU, for tests without a GPU. Streams are threads that work off their queues with random delays; events
// really order them. Device memory is mapped twice: at the addresses that programs see nobody may read or write, so
// host code that touches device memory faults; workers use the other mapping. Fresh device memory is filled with NaN.
// Not here: speed, and anything that the project does not call.
#pragma once

#include <cstddef>
#include <functional>

#include <cuda_runtime.h>

namespace emulated_cuda {

/// How many GPUs the machine has (1).
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

}  // namespace emulated_cuda
