// The kernels of kernels.h on the meta device: what each reads and writes is told to the device's observer, and the
// workspace that the CPU's kernel takes (with one thread) is taken from the account. Internal to kernels/.
#pragma once

#include <initializer_list>

#include "cuboid/kernels/kernels.h"

namespace cuboid::kernels {

/// A kernel's operands, each listed once a direction; undefined tensors do not count.
struct Operands {
  const char* name;
  std::initializer_list<const Tensor*> reads;
  std::initializer_list<const Tensor*> writes;
};

namespace meta {

/// A kernel bound by memory.
void other(const Device& device, const Operands& operands);
void matmul(const Device& device, const Tensor& a, const Tensor& b, const Tensor& c, MatMul options,
            const Tensor& bias);
/// Tokens that nobody has routed are spread evenly: what a balanced router would do.
std::vector<std::int64_t> sort_by_expert(const Device& device, const Operands& operands, std::int64_t copies,
                                         std::int64_t count);
void attention(const Device& device, const Operands& operands, const Tensor& q, const Tensor& k, const Causal& causal,
               bool gradient);

}  // namespace meta
}  // namespace cuboid::kernels
