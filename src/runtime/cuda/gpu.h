// What a rank uses of a GPU: its compute stream, its device memory and its pinned staging memory. Ranks that share a
// GPU (threads of one process, for tests) each have their own.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cuboid/runtime/device.h"

#include "stream.h"

namespace cuboid::cuda {

/// Device memory is reused in the order of the compute stream: a block that is released may still be read by work
/// queued there, and what uses it next is queued behind. Who uses memory on another stream must therefore keep its
/// tensors until the compute stream waits for that one.
class Gpu final : public MemorySource {
 public:
  /// Makes the device current on this thread.
  explicit Gpu(int ordinal);
  ~Gpu() override;

  int ordinal() const { return ordinal_; }
  /// Makes the device current on this thread: needed once on every thread that uses it.
  void bind() const;
  const Stream& compute() const { return compute_; }

  void* allocate(std::size_t bytes) override;
  void release(void* data, std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void zero(void* data, std::size_t bytes) override;
  bool on_host() const override { return false; }

  /// Queues a copy of host memory, which may be changed as soon as this returns.
  void copy_from_host(void* to, const void* from, std::size_t bytes) override;
  /// Waits for everything queued, and for the copy.
  void copy_to_host(void* to, const void* from, std::size_t bytes) override;
  void synchronize() override;

  /// Called now and then while the host waits for the GPU, with the seconds waited so far; may throw to give up.
  using Watch = std::function<void(double waited)>;
  void set_watch(Watch watch) { watch_ = std::move(watch); }

  /// State of the kernels above (a cuBLASLt handle and its algorithms), made when first asked for.
  template <typename State>
  State& state_of_kernels() {
    if (!kernels_) kernels_ = std::make_shared<State>(*this);
    return *static_cast<State*>(kernels_.get());
  }

 private:
  struct Staging {  // pinned memory that a queued copy reads
    void* data;
    std::size_t capacity;
    Mark read;
  };
  void* allocate_fresh(std::size_t capacity);
  void free_unused();
  void* pinned(std::size_t capacity);

  int ordinal_;
  Stream compute_;
  std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> free_;  // by capacity
  std::map<std::size_t, std::vector<void*>> pinned_free_;
  std::deque<Staging> staging_;  // oldest first
  std::shared_ptr<void> kernels_;
  Watch watch_;
};

/// @pre device.kind() is DeviceKind::cuda
Gpu& gpu_of(const Device& device);

}  // namespace cuboid::cuda
