#include "gpu.h"

#include <chrono>
#include <cstring>
#include <new>
#include <thread>

#include "../capacity.h"

namespace cuboid::cuda {
namespace {

// Copies up to this size go through pinned memory; larger ones are loads of weights, where waiting costs nothing.
constexpr std::size_t kMostStaged = std::size_t{1} << 20;

int bound(int ordinal) {
  CUBOID_CUDA(cudaSetDevice(ordinal));
  return ordinal;
}

}  // namespace

Gpu::Gpu(int ordinal) : ordinal_(bound(ordinal)) {}

Gpu::~Gpu() {
  cudaSetDevice(ordinal_);
  cudaStreamSynchronize(compute_.get());
  kernels_.reset();  // gives its memory back
  for (const Staging& staging : staging_) cudaFreeHost(staging.data);
  for (const auto& [capacity, blocks] : pinned_free_) {
    for (void* block : blocks) cudaFreeHost(block);
  }
  for (const auto& [capacity, blocks] : free_) {
    for (void* block : blocks) cudaFree(block);
  }
}

void Gpu::bind() const {
  bound(ordinal_);
}

void* Gpu::allocate(std::size_t bytes) {
  const std::size_t capacity = capacity_for(bytes);
  {
    const std::scoped_lock lock(mutex_);
    auto& blocks = free_[capacity];
    if (!blocks.empty()) {
      void* const block = blocks.back();
      blocks.pop_back();
      return block;
    }
  }
  return allocate_fresh(capacity);
}

void* Gpu::allocate_fresh(std::size_t capacity) {
  void* block = nullptr;
  cudaError_t status = cudaMalloc(&block, capacity);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    free_unused();
    status = cudaMalloc(&block, capacity);
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      throw std::bad_alloc();
    }
  }
  CUBOID_CUDA(status);
  return block;
}

// cudaFree waits for the device: no queued work uses the blocks any more.
void Gpu::free_unused() {
  const std::scoped_lock lock(mutex_);
  for (const auto& [capacity, blocks] : free_) {
    for (void* block : blocks) CUBOID_CUDA(cudaFree(block));
  }
  free_.clear();
}

void Gpu::release(void* data, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  free_[capacity_for(bytes)].push_back(data);
}

void Gpu::copy(void* to, const void* from, std::size_t bytes) {
  CUBOID_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, compute_.get()));
}

void Gpu::zero(void* data, std::size_t bytes) {
  CUBOID_CUDA(cudaMemsetAsync(data, 0, bytes, compute_.get()));
}

void* Gpu::pinned(std::size_t capacity) {
  while (!staging_.empty() && staging_.front().read->done()) {
    pinned_free_[staging_.front().capacity].push_back(staging_.front().data);
    staging_.pop_front();
  }
  auto& blocks = pinned_free_[capacity];
  if (blocks.empty()) {
    void* made = nullptr;
    CUBOID_CUDA(cudaMallocHost(&made, capacity));
    return made;
  }
  void* const block = blocks.back();
  blocks.pop_back();
  return block;
}

void Gpu::copy_from_host(void* to, const void* from, std::size_t bytes) {
  if (bytes > kMostStaged) {
    synchronize();
    CUBOID_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, compute_.get()));
    compute_.synchronize();
    return;
  }
  const std::size_t capacity = capacity_for(bytes);
  void* const block = pinned(capacity);
  std::memcpy(block, from, bytes);
  CUBOID_CUDA(cudaMemcpyAsync(to, block, bytes, cudaMemcpyHostToDevice, compute_.get()));
  staging_.push_back({block, capacity, compute_.mark()});
}

void Gpu::synchronize() {
  if (!watch_) return compute_.synchronize();
  const Mark all = compute_.mark();
  const auto start = std::chrono::steady_clock::now();
  while (!all->done()) {
    // Short waits are common, and sleeping longer than they last would be what a step waits for.
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    watch_(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
}

void Gpu::copy_to_host(void* to, const void* from, std::size_t bytes) {
  synchronize();
  CUBOID_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, compute_.get()));
  compute_.synchronize();
}

Gpu& gpu_of(const Device& device) {
  CUBOID_CHECK(device.kind() == DeviceKind::cuda, "a kernel of a GPU on another device");
  return static_cast<Gpu&>(device.memory());
}

}  // namespace cuboid::cuda
