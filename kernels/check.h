// Checks of kernels' arguments, the same for every device, and the sizes they go by.
#pragma once

#include <algorithm>
#include <string>

#include "cuboid/kernels/kernels.h"

namespace cuboid::kernels {

/// Row length of a tensor seen as (rows, last dim), and the number of rows.
inline std::int64_t row_length(const Tensor& tensor) {
  CUBOID_CHECK(tensor.defined() && tensor.shape().rank() > 0, "a tensor with dims is expected");
  return tensor.dim(-1);
}
inline std::int64_t row_count(const Tensor& tensor) {
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < tensor.shape().rank(); ++i) rows *= tensor.dim(i);
  return rows;
}

/// Checks that an argument holds numbers that are computed with: of any storage type, or float32 and float64 alone.
inline void expect_floating(const Tensor& tensor, const char* name) {
  CUBOID_CHECK(tensor.defined() && compute_type(tensor.dtype()) != DType::int32 && tensor.dtype() != DType::int64,
               std::string(name) + ": " + (tensor.defined() ? name_of(tensor.dtype()) : "no tensor"));
}
inline void expect_real(const Tensor& tensor, const char* name) {
  CUBOID_CHECK(tensor.defined() && (tensor.dtype() == DType::float32 || tensor.dtype() == DType::float64),
               std::string(name) + ": " + (tensor.defined() ? name_of(tensor.dtype()) : "no tensor"));
}

/// Checks element type and count of an argument.
inline void expect(const Tensor& tensor, DType dtype, std::int64_t elements, const char* name) {
  CUBOID_CHECK(tensor.defined() && tensor.dtype() == dtype && tensor.elements() == elements,
               std::string(name) + ": " + name_of(dtype) + " with " + std::to_string(elements) +
                   " elements expected, got " +
                   (tensor.defined() ? std::string(name_of(tensor.dtype())) + " " + to_string(tensor.shape())
                                     : std::string("no tensor")));
}
/// Checks that an argument has the type and shape of another.
inline void expect_like(const Tensor& tensor, const Tensor& model, const char* name) {
  expect(tensor, model.dtype(), model.elements(), name);
}
inline void expect_shape(const Tensor& tensor, DType dtype, const Shape& shape, const char* name) {
  CUBOID_CHECK(tensor.defined() && tensor.dtype() == dtype && tensor.shape() == shape,
               std::string(name) + ": " + name_of(dtype) + " " + to_string(shape) + " expected, got " +
                   (tensor.defined() ? std::string(name_of(tensor.dtype())) + " " + to_string(tensor.shape())
                                     : std::string("no tensor")));
}

/// Memory whose squares are added in double before they join an exact sum, in bytes; buffers begin at multiples of it.
inline constexpr std::size_t kSquaresLine = 256;
/// Elements up to the first line boundary in a tensor: lines are those of its buffer and not of this view.
inline std::int64_t elements_before_line(const Tensor& x) {
  const std::size_t misalignment = reinterpret_cast<std::uintptr_t>(x.raw()) % kSquaresLine;
  const std::size_t bytes = misalignment == 0 ? 0 : kSquaresLine - misalignment;
  return std::min(x.elements(), static_cast<std::int64_t>(bytes / size_of(x.dtype())));
}

/// Sizes of a fused projection whose q and k heads are normed one by one.
struct NormedHeads {
  std::int64_t rows, H, K, D;
  std::int64_t normed() const { return H + K; }
  std::int64_t stride() const { return (H + 2 * K) * D; }
};
inline NormedHeads normed_heads(const Tensor& qkv, std::int64_t heads, std::int64_t kv_heads) {
  const std::int64_t all = heads + 2 * kv_heads;
  CUBOID_CHECK(heads > 0 && kv_heads > 0 && row_length(qkv) % all == 0,
               "rms_norm_heads: rows of " + std::to_string(row_length(qkv)) + " for " + std::to_string(all) + " heads");
  return {row_count(qkv), heads, kv_heads, row_length(qkv) / all};
}

/// Checks what a counter can hold. @throws std::logic_error
inline void check_dropout(const Dropout& mask) {
  CUBOID_CHECK(mask.p >= 0 && mask.p < 1, "dropout: p is " + std::to_string(mask.p));
  CUBOID_CHECK(mask.first_sample >= 0 && (mask.first_sample >> 48) == 0 && mask.rows.first >= 0 && mask.first_head >= 0,
               "dropout: a global position is out of range");
}

}  // namespace cuboid::kernels
