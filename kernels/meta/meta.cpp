#include "kernels/meta/meta.h"

#include "kernels/attention_sizes.h"
#include "kernels/check.h"

namespace cuboid::kernels::meta {
namespace {

double bytes_of(std::initializer_list<const Tensor*> tensors) {
  double sum = 0;
  for (const Tensor* tensor : tensors) sum += tensor->defined() ? static_cast<double>(tensor->bytes()) : 0;
  return sum;
}

TracedKernel describe(const Operands& operands) {
  const Tensor& first = operands.reads.size() > 0 ? **operands.reads.begin() : **operands.writes.begin();
  TracedKernel kernel;
  kernel.name = operands.name;
  kernel.dtype = first.dtype();
  kernel.bytes_read = bytes_of(operands.reads);
  kernel.bytes_written = bytes_of(operands.writes);
  return kernel;
}

}  // namespace

void other(const Device& device, const Operands& operands) {
  device.observe(describe(operands));
}

void matmul(const Device& device, const Tensor& a, const Tensor& b, const Tensor& c, MatMul options,
            const Tensor& bias) {
  TracedKernel kernel = options.accumulate ? describe({"matmul", {&a, &b, &bias, &c}, {&c}})
                                           : describe({"matmul", {&a, &b, &bias}, {&c}});
  kernel.kind = TracedKernel::Kind::matmul;
  kernel.m = options.transpose_a ? row_length(a) : row_count(a);
  kernel.k = options.transpose_a ? row_count(a) : row_length(a);
  kernel.n = row_length(c);
  kernel.flops = 2.0 * static_cast<double>(kernel.m) * static_cast<double>(kernel.n) * static_cast<double>(kernel.k);
  device.observe(std::move(kernel));
}

std::vector<std::int64_t> sort_by_expert(const Device& device, const Operands& operands, std::int64_t copies,
                                         std::int64_t count) {
  device.observe(describe(operands));
  std::vector<std::int64_t> tokens;
  for (std::int64_t e = 0; e < count; ++e) tokens.push_back(copies * (e + 1) / count - copies * e / count);
  return tokens;
}

void attention(const Device& device, const Operands& operands, const Tensor& q, const Tensor& k, const Causal& causal,
               bool gradient) {
  const AttentionSizes s = attention_sizes(q, k, causal);
  const bool rounds = compute_type(q.dtype()) != q.dtype();
  const Tensor reals = device.empty({gradient ? s.backward_tile(rounds) : s.forward_tile(rounds)},
                                    compute_type(q.dtype()), Category::workspace);
  const Tensor rounded = device.empty({gradient ? s.backward_rounded_tile(rounds) : s.forward_rounded_tile(rounds)},
                                      q.dtype(), Category::workspace);
  TracedKernel kernel = describe(operands);
  kernel.kind = TracedKernel::Kind::attention;
  kernel.batch = s.B;
  kernel.heads = s.H;
  kernel.kv_heads = s.K;
  kernel.queries = s.N;
  kernel.seq_len = s.T;
  kernel.head_dim = s.D;
  kernel.window = causal.window > 0 ? s.W : 0;
  kernel.gradient = gradient;
  kernel.flops = (gradient ? 10.0 : 4.0) * static_cast<double>(s.D) * static_cast<double>(s.pairs()) *
                 static_cast<double>(s.B * s.H);
  device.observe(std::move(kernel));
}

}  // namespace cuboid::kernels::meta
