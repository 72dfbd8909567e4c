// A rank's device: where its tensors live, who counts them, and which backend runs its kernels. One Device object a
// rank; ranks of one process share the hardware but not the account.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "cuboid/runtime/tensor.h"
#include "cuboid/runtime/traced_kernel.h"

namespace cuboid {

enum class DeviceKind : std::uint8_t {
  cpu,
  meta,  ///< shapes alone: tensors are counted but have no memory, kernels are told to an observer instead of run
  cuda,  ///< a GPU: work is queued on a stream of the rank's own, and runs while the host goes on
};
const char* name_of(DeviceKind kind);

/// Told about every kernel that a meta device was asked to run.
using KernelObserver = std::function<void(const TracedKernel&)>;

class Device {
 public:
  /// This rank's CPU.
  Device();
  /// A device without data. Reading or writing a tensor's elements is an error there.
  static Device meta(KernelObserver observer = {});
  /// A GPU, by CUDA's number; it becomes the calling thread's. Ranks of a process may share one.
  /// @throws Error{request} if this build has no CUDA; Error{failed} with CUDA's words
  static Device cuda(int gpu);

  DeviceKind kind() const { return state_->kind; }
  /// The CPU with this device's account: for numbers that the host reads or writes. This device if that is a CPU.
  Device host() const;

  /// Uninitialised tensor. @throws std::bad_alloc
  Tensor empty(Shape shape, DType dtype, Category category = Category::activations) const;
  /// Tensor of zeros.
  Tensor zeros(Shape shape, DType dtype, Category category = Category::activations) const;
  /// A private copy of the elements.
  Tensor clone(const Tensor& tensor, Category category = Category::activations) const;
  /// Copies elements between tensors of the same type and element count.
  void copy(const Tensor& from, const Tensor& to) const;
  /// Sets all elements to zero.
  void zero(const Tensor& tensor) const;
  /// The elements in host memory: the tensor itself if that is where it is. Waits for what is queued on a GPU.
  Tensor to_host(const Tensor& tensor) const;
  /// A tensor of host memory on this device: itself on a CPU. Of meta: one without data.
  Tensor to_device(const Tensor& tensor, Category category = Category::activations) const;
  /// Sets a tensor's elements from host memory, which may be changed once this returns.
  void write(const void* numbers, const Tensor& to) const;
  /// Waits until everything queued on a GPU is done. @throws Error{failed} for what went wrong there
  void synchronize() const;
  /// Takes a buffer that another rank handed over into this rank's account. @pre tensor.unique()
  void adopt(const Tensor& tensor, Category category = Category::activations) const;

  MemoryAccount& account() const { return *state_->account; }
  MemorySource& memory() const { return *state_->memory; }

  /// What runs now, for traces and profilers; see PhaseScope.
  TracedPhase phase() const { return state_->phase; }
  /// Meta: tells the observer, with the phase filled in.
  void observe(TracedKernel kernel) const;

 private:
  friend class PhaseScope;
  struct State {
    DeviceKind kind = DeviceKind::cpu;
    std::shared_ptr<MemorySource> memory = {};
    std::shared_ptr<MemoryAccount> account = {};
    KernelObserver observer = {};
    TracedPhase phase = TracedPhase::forward;
  };
  explicit Device(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

/// Marks what the device runs as part of a phase while the scope lives.
class PhaseScope {
 public:
  PhaseScope(const Device& device, TracedPhase phase)
      : state_(device.state_), before_(std::exchange(state_->phase, phase)) {}
  ~PhaseScope() { state_->phase = before_; }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  std::shared_ptr<Device::State> state_;
  TracedPhase before_;
};

}  // namespace cuboid
