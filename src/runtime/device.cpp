#include "cuboid/runtime/device.h"

#include <cstring>

namespace cuboid {

Tensor Device::empty(Shape shape, DType dtype, Category category) const {
  const auto bytes = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
  return {std::make_shared<Buffer>(account_, category, bytes), 0, std::move(shape), dtype};
}

Tensor Device::zeros(Shape shape, DType dtype, Category category) const {
  Tensor tensor = empty(std::move(shape), dtype, category);
  std::memset(tensor.raw(), 0, tensor.bytes());
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
  if (from.raw() != to.raw() && from.bytes() > 0) std::memcpy(to.raw(), from.raw(), from.bytes());
}

void Device::adopt(const Tensor& tensor, Category category) const {
  CUBOID_CHECK(tensor.unique(), "a shared buffer cannot be handed over");
  tensor.buffer()->rehome(account_, category);
}

}  // namespace cuboid
