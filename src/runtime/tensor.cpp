#include "cuboid/runtime/tensor.h"

namespace cuboid {

Tensor Tensor::reshape(Shape shape) const {
  CUBOID_CHECK(shape.elements() == elements(), to_string(shape_) + " to " + to_string(shape));
  return {buffer_, offset_, std::move(shape), dtype_};
}

Tensor Tensor::narrow(std::int64_t begin, std::int64_t count) const {
  CUBOID_CHECK(shape_.rank() > 0 && begin >= 0 && count >= 0 && begin + count <= shape_[0],
               "rows " + std::to_string(begin) + "+" + std::to_string(count) + " of " + to_string(shape_));
  Shape shape = shape_;
  shape[0] = count;
  const std::int64_t row = shape_[0] == 0 ? 0 : elements() / shape_[0];
  return {buffer_, offset_ + static_cast<std::size_t>(begin * row) * size_of(dtype_), shape, dtype_};
}

}  // namespace cuboid
