#include "cuboid/runtime/device.h"

namespace cuboid {

const char* name_of(DeviceKind kind) {
  return kind == DeviceKind::cpu ? "cpu" : kind == DeviceKind::meta ? "meta" : "cuda";
}

const char* name_of(TracedPhase phase) {
  constexpr const char* kNames[] = {"forward", "input gradient", "weight gradient", "recompute"};
  return kNames[static_cast<std::size_t>(phase)];
}

Device::Device()
    : state_(std::make_shared<State>(
          State{.kind = DeviceKind::cpu, .memory = host_memory(), .account = std::make_shared<MemoryAccount>()})) {}

Device Device::meta(KernelObserver observer) {
  return Device(std::make_shared<State>(State{.kind = DeviceKind::meta,
                                              .memory = meta_memory(),
                                              .account = std::make_shared<MemoryAccount>(),
                                              .observer = std::move(observer)}));
}

Tensor Device::empty(Shape shape, DType dtype, Category category) const {
  const auto bytes = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
  return {std::make_shared<Buffer>(state_->memory, state_->account, category, bytes), 0, std::move(shape), dtype};
}

Tensor Device::zeros(Shape shape, DType dtype, Category category) const {
  Tensor tensor = empty(std::move(shape), dtype, category);
  zero(tensor);
  return tensor;
}

Tensor Device::clone(const Tensor& tensor, Category category) const {
  Tensor made = empty(tensor.shape(), tensor.dtype(), category);
  copy(tensor, made);
  return made;
}

void Device::copy(const Tensor& from, const Tensor& to) const {
  CUBOID_CHECK(from.dtype() == to.dtype() && from.elements() == to.elements(),
               to_string(from.shape()) + " to " + to_string(to.shape()));
  if (from.bytes() == 0 || from.same_memory(to)) return;
  if (kind() == DeviceKind::meta) {
    const auto bytes = static_cast<double>(from.bytes());
    return observe({.name = "copy", .dtype = from.dtype(), .bytes_read = bytes, .bytes_written = bytes});
  }
  state_->memory->copy(to.raw(), from.raw(), from.bytes());
}

void Device::zero(const Tensor& tensor) const {
  if (tensor.bytes() == 0) return;
  if (kind() == DeviceKind::meta) {
    return observe({.name = "zero", .dtype = tensor.dtype(), .bytes_written = static_cast<double>(tensor.bytes())});
  }
  state_->memory->zero(tensor.raw(), tensor.bytes());
}

void Device::adopt(const Tensor& tensor, Category category) const {
  CUBOID_CHECK(tensor.unique(), "a shared buffer cannot be handed over");
  tensor.buffer()->rehome(state_->memory, state_->account, category);
}

Device Device::host() const {
  if (kind() == DeviceKind::cpu) return *this;
  return Device(
      std::make_shared<State>(State{.kind = DeviceKind::cpu, .memory = host_memory(), .account = state_->account}));
}

Tensor Device::to_host(const Tensor& tensor) const {
  if (tensor.on_host()) return tensor;
  Tensor made = host().empty(tensor.shape(), tensor.dtype(), Category::workspace);
  if (tensor.bytes() > 0) state_->memory->copy_to_host(made.raw(), tensor.raw(), tensor.bytes());
  return made;
}

Tensor Device::to_device(const Tensor& tensor, Category category) const {
  if (kind() == DeviceKind::cpu) return tensor;
  Tensor made = empty(tensor.shape(), tensor.dtype(), category);
  if (kind() == DeviceKind::cuda) write(tensor.raw(), made);
  return made;
}

void Device::write(const void* numbers, const Tensor& to) const {
  if (to.bytes() > 0) state_->memory->copy_from_host(to.raw(), numbers, to.bytes());
}

void Device::synchronize() const {
  state_->memory->synchronize();
}

void Device::observe(TracedKernel kernel) const {
  if (!state_->observer) return;
  kernel.phase = state_->phase;
  state_->observer(kernel);
}

}  // namespace cuboid
