// A contiguous, row-major array on a device: a counted reference to a buffer, an offset, a shape and an element type.
// Copying a Tensor copies the reference. Arithmetic lives in kernels/ and ops/, not here.
#pragma once

#include <memory>
#include <span>

#include "cuboid/core/dtype.h"
#include "cuboid/core/error.h"
#include "cuboid/core/shape.h"
#include "cuboid/runtime/memory.h"

namespace cuboid {

class Tensor {
 public:
  /// No tensor: defined() is false.
  Tensor() = default;
  Tensor(std::shared_ptr<Buffer> buffer, std::size_t byte_offset, Shape shape, DType dtype)
      : buffer_(std::move(buffer)), offset_(byte_offset), shape_(std::move(shape)), dtype_(dtype) {}

  bool defined() const { return buffer_ != nullptr; }
  const Shape& shape() const { return shape_; }
  std::int64_t dim(int i) const { return shape_[i]; }
  std::int64_t elements() const { return shape_.elements(); }
  DType dtype() const { return dtype_; }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype_); }
  void* raw() const { return static_cast<std::byte*>(buffer_->data()) + offset_; }

  /// Typed pointer. Constness is that of the reference, as with shared_ptr. @pre T is the tensor's element type
  template <typename T>
  T* data() const {
    CUBOID_CHECK(dtype_of<T> == dtype_, std::string("tensor holds ") + name_of(dtype_));
    return static_cast<T*>(raw());
  }
  template <typename T>
  std::span<T> span() const {
    return {data<T>(), static_cast<std::size_t>(elements())};
  }

  /// Same elements, another shape. @pre equal element counts
  Tensor reshape(Shape shape) const;
  /// Entries [begin, begin + count) of the outermost dim, sharing memory.
  Tensor narrow(std::int64_t begin, std::int64_t count) const;
  /// True if the other tensor begins at the same place of the same buffer.
  bool same_memory(const Tensor& other) const { return buffer_ == other.buffer_ && offset_ == other.offset_; }
  /// True if the host may read and write the elements.
  bool on_host() const { return buffer_->memory().on_host(); }
  /// True if no other tensor shares the buffer: its memory may be overwritten or handed over.
  bool unique() const { return buffer_.use_count() == 1; }
  const std::shared_ptr<Buffer>& buffer() const { return buffer_; }

 private:
  std::shared_ptr<Buffer> buffer_;
  std::size_t offset_ = 0;
  Shape shape_;
  DType dtype_ = DType::float32;
};

}  // namespace cuboid
