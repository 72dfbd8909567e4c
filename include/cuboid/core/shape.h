// Sizes of a tensor's dims, outermost first. A shape without dims is one element.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace cuboid {

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) : dims_(dims) {}
  explicit Shape(std::vector<std::int64_t> dims) : dims_(std::move(dims)) {}

  int rank() const { return static_cast<int>(dims_.size()); }
  /// Size of dim i; negative i counts from the end.
  std::int64_t operator[](int i) const { return dims_[static_cast<std::size_t>(i < 0 ? i + rank() : i)]; }
  std::int64_t& operator[](int i) { return dims_[static_cast<std::size_t>(i < 0 ? i + rank() : i)]; }
  /// Number of elements.
  std::int64_t elements() const {
    std::int64_t n = 1;
    for (auto d : dims_) n *= d;
    return n;
  }
  /// Number of rows when the last dim is a row (1 for a vector or scalar).
  std::int64_t rows() const { return dims_.size() < 2 ? 1 : (dims_.back() == 0 ? 0 : elements() / dims_.back()); }
  const std::vector<std::int64_t>& dims() const { return dims_; }
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::vector<std::int64_t> dims_;
};

/// "(2,3,4)".
std::string to_string(const Shape& shape);

}  // namespace cuboid
