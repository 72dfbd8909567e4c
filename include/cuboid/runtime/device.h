// A rank's device: where its tensors live and who counts them. One Device object a rank; ranks of one process share the
// hardware but not the account.
#pragma once

#include <memory>

#include "cuboid/runtime/tensor.h"

namespace cuboid {

class Device {
 public:
  Device() : account_(std::make_shared<MemoryAccount>()) {}

  /// Uninitialised tensor. @throws std::bad_alloc
  Tensor empty(Shape shape, DType dtype, Category category = Category::activations) const;
  /// Tensor of zeros.
  Tensor zeros(Shape shape, DType dtype, Category category = Category::activations) const;
  /// A private copy of the elements.
  Tensor clone(const Tensor& tensor, Category category = Category::activations) const;
  /// Copies elements between tensors of the same type and element count.
  void copy(const Tensor& from, const Tensor& to) const;
  /// Takes a buffer that another rank handed over into this rank's account. @pre tensor.unique()
  void adopt(const Tensor& tensor, Category category = Category::activations) const;

  MemoryAccount& account() const { return *account_; }

 private:
  std::shared_ptr<MemoryAccount> account_;
};

}  // namespace cuboid
