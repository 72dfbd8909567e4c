// Attention, its heads, and parts of sequences.
#include "kernels/attention_sizes.h"
#include "kernels/dispatch/dispatch.h"

namespace cuboid::kernels {

// ---------------------------------------------------------------- attention

namespace {

// Checks the arguments that split_heads and its gradient share.
void expect_heads(const Tensor& qkv, const Tensor& cos, const Tensor& sin, const Tensor& q, const Tensor& k,
                  const Tensor& v) {
  expect_floating(qkv, "split_heads: qkv");
  CUBOID_CHECK(q.defined() && q.shape().rank() == 4 && k.defined() && k.shape().rank() == 4,
               "split_heads: q (B,H,T,D) and k (B,K,T,D) are expected");
  const AttentionSizes s = attention_sizes(q, k);
  expect_shape(k, q.dtype(), Shape{s.B, s.K, s.N, s.D}, "split_heads: k");
  expect_shape(v, q.dtype(), Shape{s.B, s.K, s.T, s.D}, "split_heads: v");
  expect_shape(qkv, q.dtype(), Shape{s.T, s.B, (s.H + 2 * s.K) * s.D}, "split_heads: qkv");
  CUBOID_CHECK(cos.defined() == sin.defined(), "split_heads: cos without sin, or sin without cos");
  if (cos.defined()) {
    CUBOID_CHECK(s.D % 2 == 0, "split_heads: rotation of an odd head dim");
    expect_shape(cos, compute_type(q.dtype()), Shape{s.T, s.D / 2}, "split_heads: cos");
    expect_shape(sin, compute_type(q.dtype()), Shape{s.T, s.D / 2}, "split_heads: sin");
  }
}

void expect_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& log_sum,
                      const Dropout& mask, const Causal& causal) {
  expect_floating(q, "attention: q");
  CUBOID_CHECK(causal.window >= 0, "attention: a window of " + std::to_string(causal.window));
  CUBOID_CHECK(q.defined() && q.shape().rank() == 4 && k.defined() && k.shape().rank() == 4,
               "attention: q (B,H,N,D) and k (B,K,T,D) are expected");
  const AttentionSizes s = attention_sizes(q, k, causal);
  expect_shape(k, q.dtype(), Shape{s.B, s.K, s.T, s.D}, "attention: k");
  expect_shape(v, q.dtype(), Shape{s.B, s.K, s.T, s.D}, "attention: v");
  expect(out, q.dtype(), s.N * s.B * s.H * s.D, "attention: out");
  expect(log_sum, compute_type(q.dtype()), s.B * s.H * s.N, "attention: log_sum");
  CUBOID_CHECK(s.K > 0 && s.H % s.K == 0,
               "attention: " + std::to_string(s.H) + " query heads over " + std::to_string(s.K) + " key/value heads");
  check_dropout(mask);
  CUBOID_CHECK(mask.rows == SequencePart{}, "attention: the rows of its dropout are its queries");
  CUBOID_CHECK(s.N > 0 && causal.queries.first >= 0 && causal.queries.position(s.N - 1) < s.T,
               "attention: queries beyond the last key");
}

}  // namespace

void split_heads(const Device& device, const Tensor& qkv, const Tensor& cos, const Tensor& sin, const Tensor& q,
                 const Tensor& k, const Tensor& v) {
  expect_heads(qkv, cos, sin, q, k, v);
  run(device, {"split_heads", {&qkv, &cos, &sin}, {&q, &k, &v}}, cpu::split_heads, cuda::split_heads, qkv, cos, sin, q,
      k, v);
}

void split_heads_gradient(const Device& device, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& cos,
                          const Tensor& sin, const Tensor& dqkv) {
  expect_heads(dqkv, cos, sin, dq, dk, dv);
  run(device, {"split_heads_gradient", {&dq, &dk, &dv, &cos, &sin}, {&dqkv}}, cpu::split_heads_gradient,
      cuda::split_heads_gradient, dq, dk, dv, cos, sin, dqkv);
}

void attention(const Device& device, const Tensor& q, const Tensor& k, const Tensor& v, const Dropout& mask,
               const Tensor& out, const Tensor& log_sum, const Causal& causal) {
  expect_attention(q, k, v, out, log_sum, mask, causal);
  switch (device.kind()) {
    case DeviceKind::cpu:
      return cpu::attention(device, q, k, v, mask, out, log_sum, causal);
    case DeviceKind::cuda:
      return cuda::attention(device, q, k, v, mask, out, log_sum, causal);
    case DeviceKind::meta:
      return meta::attention(device, {"attention", {&q, &k, &v}, {&out, &log_sum}}, q, k, causal, false);
  }
}

void attention_gradient(const Device& device, const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& out, const Tensor& log_sum, const Dropout& mask, const Tensor& dq,
                        const Tensor& dk, const Tensor& dv, const Causal& causal) {
  expect_attention(q, k, v, out, log_sum, mask, causal);
  expect_like(dout, out, "attention_gradient: dout");
  expect_shape(dq, q.dtype(), q.shape(), "attention_gradient: dq");
  const DType sums = dk.dtype() == q.dtype() ? q.dtype() : compute_type(q.dtype());
  expect_shape(dk, sums, k.shape(), "attention_gradient: dk");
  expect_shape(dv, sums, k.shape(), "attention_gradient: dv");
  switch (device.kind()) {
    case DeviceKind::cpu:
      return cpu::attention_gradient(device, dout, q, k, v, out, log_sum, mask, dq, dk, dv, causal);
    case DeviceKind::cuda:
      return cuda::attention_gradient(device, dout, q, k, v, out, log_sum, mask, dq, dk, dv, causal);
    case DeviceKind::meta:
      return meta::attention(device, {"attention_gradient", {&dout, &q, &k, &v, &out, &log_sum}, {&dq, &dk, &dv}}, q, k,
                             causal, true);
  }
}

namespace {

void expect_parts(const Tensor& parts, const Tensor& whole, const char* name) {
  expect_floating(whole, name);
  CUBOID_CHECK(parts.defined() && parts.shape().rank() == 5 && parts.dim(0) > 0 && parts.dim(3) % 2 == 0,
               std::string(name) + ": parts (R,B,K,T/R,D) of an even number of positions are expected");
  expect_shape(whole, parts.dtype(), Shape{parts.dim(1), parts.dim(2), parts.dim(0) * parts.dim(3), parts.dim(4)},
               name);
}

}  // namespace

void join_sequence(const Device& device, const Tensor& parts, const Tensor& whole) {
  expect_parts(parts, whole, "join_sequence");
  run(device, {"join_sequence", {&parts}, {&whole}}, cpu::join_sequence, cuda::join_sequence, parts, whole);
}

void cut_sequence(const Device& device, const Tensor& whole, const Tensor& parts) {
  expect_parts(parts, whole, "cut_sequence");
  run(device, {"cut_sequence", {&whole}, {&parts}}, cpu::cut_sequence, cuda::cut_sequence, whole, parts);
}

}  // namespace cuboid::kernels
