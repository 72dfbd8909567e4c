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

  DeviceKind kind() const { return state_->kind; }

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
  /// Takes a buffer that another rank handed over into this rank's account. @pre tensor.unique()
  void adopt(const Tensor& tensor, Category category = Category::activations) const;

  MemoryAccount& account() const { return *state_->account; }

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
