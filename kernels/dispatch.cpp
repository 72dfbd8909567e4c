// The one place where a kernel meets its device: arguments are checked, then the device's backend runs it.
#include "kernels/attention_sizes.h"
#include "kernels/check.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/cuda.h"
#include "kernels/meta/meta.h"

namespace cuboid::kernels {
namespace {

// Runs a kernel that is bound by memory; `cpu` or `cuda` is called with the device and the arguments.
template <typename Cpu, typename Cuda, typename... Arguments>
void run(const Device& device, const Operands& operands, Cpu&& cpu, Cuda&& cuda, Arguments&&... arguments) {
  switch (device.kind()) {
    case DeviceKind::cpu:
      return cpu(device, std::forward<Arguments>(arguments)...);
    case DeviceKind::cuda:
      return cuda(device, std::forward<Arguments>(arguments)...);
    case DeviceKind::meta:
      return meta::other(device, operands);
  }
}

}  // namespace

// ---------------------------------------------------------------- matrix product

void matmul(const Device& device, const Tensor& a, const Tensor& b, const Tensor& c, MatMul options,
            const Tensor& bias) {
  expect_floating(a, "matmul: a");
  const std::int64_t a_rows = row_count(a);
  const std::int64_t a_columns = row_length(a);
  const std::int64_t b_rows = row_count(b);
  const std::int64_t b_columns = row_length(b);
  const std::int64_t m = options.transpose_a ? a_columns : a_rows;
  const std::int64_t k = options.transpose_a ? a_rows : a_columns;
  const std::int64_t n = options.transpose_b ? b_rows : b_columns;
  CUBOID_CHECK((options.transpose_b ? b_columns : b_rows) == k && b.dtype() == a.dtype(),
               "matmul: " + to_string(a.shape()) + (options.transpose_a ? "ᵀ" : "") + " and " + to_string(b.shape()) +
                   (options.transpose_b ? "ᵀ" : ""));
  const bool rounds = c.defined() && c.dtype() == DType::bfloat16;
  expect(c, rounds ? a.dtype() : compute_type(a.dtype()), m * n, "matmul: c");
  CUBOID_CHECK(row_length(c) == n, "matmul: c is " + to_string(c.shape()));
  CUBOID_CHECK(!(rounds && options.accumulate), "matmul: sums are not added up in bfloat16");
  if (bias.defined()) expect(bias, a.dtype(), n, "matmul: bias");
  if (m == 0 || n == 0) return;
  switch (device.kind()) {
    case DeviceKind::cpu:
      return cpu::matmul(device, a, b, c, options, bias);
    case DeviceKind::cuda:
      return cuda::matmul(device, a, b, c, options, bias);
    case DeviceKind::meta:
      return meta::matmul(device, a, b, c, options, bias);
  }
}

void add_column_sum(const Device& device, const Tensor& x, const Tensor& out) {
  expect_floating(x, "add_column_sum: x");
  expect(out, compute_type(x.dtype()), row_length(x), "add_column_sum: out");
  run(device, {"add_column_sum", {&x, &out}, {&out}}, cpu::add_column_sum, cuda::add_column_sum, x, out);
}

// ---------------------------------------------------------------- norms

void layer_norm(const Device& device, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                const Tensor& y, const Tensor& mean, const Tensor& rstd) {
  expect_floating(x, "layer_norm: x");
  expect(weight, x.dtype(), row_length(x), "layer_norm: weight");
  expect(bias, x.dtype(), row_length(x), "layer_norm: bias");
  expect_like(y, x, "layer_norm: y");
  expect(mean, compute_type(x.dtype()), row_count(x), "layer_norm: mean");
  expect(rstd, compute_type(x.dtype()), row_count(x), "layer_norm: rstd");
  run(device, {"layer_norm", {&x, &weight, &bias}, {&y, &mean, &rstd}}, cpu::layer_norm, cuda::layer_norm, x, weight,
      bias, eps, y, mean, rstd);
}

void layer_norm_input_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& weight,
                               const Tensor& mean, const Tensor& rstd, const Tensor& dx) {
  expect_floating(x, "layer_norm_input_gradient: x");
  expect_like(dy, x, "layer_norm_input_gradient: dy");
  expect(weight, x.dtype(), row_length(x), "layer_norm_input_gradient: weight");
  expect(mean, compute_type(x.dtype()), row_count(x), "layer_norm_input_gradient: mean");
  expect(rstd, compute_type(x.dtype()), row_count(x), "layer_norm_input_gradient: rstd");
  expect_like(dx, x, "layer_norm_input_gradient: dx");
  run(device, {"layer_norm_input_gradient", {&dy, &x, &weight, &mean, &rstd}, {&dx}}, cpu::layer_norm_input_gradient,
      cuda::layer_norm_input_gradient, dy, x, weight, mean, rstd, dx);
}

void layer_norm_weight_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& mean,
                                const Tensor& rstd, const Tensor& dweight, const Tensor& dbias) {
  expect_floating(x, "layer_norm_weight_gradient: x");
  expect_like(dy, x, "layer_norm_weight_gradient: dy");
  expect(mean, compute_type(x.dtype()), row_count(x), "layer_norm_weight_gradient: mean");
  expect(rstd, compute_type(x.dtype()), row_count(x), "layer_norm_weight_gradient: rstd");
  expect(dweight, compute_type(x.dtype()), row_length(x), "layer_norm_weight_gradient: dweight");
  expect(dbias, compute_type(x.dtype()), row_length(x), "layer_norm_weight_gradient: dbias");
  run(device, {"layer_norm_weight_gradient", {&dy, &x, &mean, &rstd, &dweight, &dbias}, {&dweight, &dbias}},
      cpu::layer_norm_weight_gradient, cuda::layer_norm_weight_gradient, dy, x, mean, rstd, dweight, dbias);
}

void rms_norm(const Device& device, const Tensor& x, const Tensor& weight, double offset, double eps, const Tensor& y,
              const Tensor& rstd) {
  expect_floating(x, "rms_norm: x");
  expect(weight, x.dtype(), row_length(x), "rms_norm: weight");
  expect_like(y, x, "rms_norm: y");
  expect(rstd, compute_type(x.dtype()), row_count(x), "rms_norm: rstd");
  run(device, {"rms_norm", {&x, &weight}, {&y, &rstd}}, cpu::rms_norm, cuda::rms_norm, x, weight, offset, eps, y, rstd);
}

void rms_norm_input_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& weight,
                             double offset, const Tensor& rstd, const Tensor& dx) {
  expect_floating(x, "rms_norm_input_gradient: x");
  expect_like(dy, x, "rms_norm_input_gradient: dy");
  expect(weight, x.dtype(), row_length(x), "rms_norm_input_gradient: weight");
  expect(rstd, compute_type(x.dtype()), row_count(x), "rms_norm_input_gradient: rstd");
  expect_like(dx, x, "rms_norm_input_gradient: dx");
  run(device, {"rms_norm_input_gradient", {&dy, &x, &weight, &rstd}, {&dx}}, cpu::rms_norm_input_gradient,
      cuda::rms_norm_input_gradient, dy, x, weight, offset, rstd, dx);
}

void rms_norm_weight_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& rstd,
                              const Tensor& dweight) {
  expect_floating(x, "rms_norm_weight_gradient: x");
  expect_like(dy, x, "rms_norm_weight_gradient: dy");
  expect(rstd, compute_type(x.dtype()), row_count(x), "rms_norm_weight_gradient: rstd");
  expect(dweight, compute_type(x.dtype()), row_length(x), "rms_norm_weight_gradient: dweight");
  run(device, {"rms_norm_weight_gradient", {&dy, &x, &rstd, &dweight}, {&dweight}}, cpu::rms_norm_weight_gradient,
      cuda::rms_norm_weight_gradient, dy, x, rstd, dweight);
}

void rms_norm_heads(const Device& device, const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, double eps,
                    std::int64_t heads, std::int64_t kv_heads, const Tensor& y, const Tensor& rstd) {
  expect_floating(qkv, "rms_norm_heads: qkv");
  const NormedHeads s = normed_heads(qkv, heads, kv_heads);
  expect(rstd, compute_type(qkv.dtype()), s.normed() * s.rows, "rms_norm_heads: rstd");
  expect(q_weight, qkv.dtype(), s.D, "rms_norm_heads: q_weight");
  expect(k_weight, qkv.dtype(), s.D, "rms_norm_heads: k_weight");
  expect_like(y, qkv, "rms_norm_heads: y");
  run(device, {"rms_norm_heads", {&qkv, &q_weight, &k_weight}, {&y, &rstd}}, cpu::rms_norm_heads, cuda::rms_norm_heads,
      qkv, q_weight, k_weight, eps, heads, kv_heads, y, rstd);
}

void rms_norm_heads_input_gradient(const Device& device, const Tensor& dy, const Tensor& qkv, const Tensor& q_weight,
                                   const Tensor& k_weight, const Tensor& rstd, std::int64_t heads,
                                   std::int64_t kv_heads, const Tensor& dqkv) {
  expect_floating(qkv, "rms_norm_heads_input_gradient: qkv");
  const NormedHeads s = normed_heads(qkv, heads, kv_heads);
  expect(rstd, compute_type(qkv.dtype()), s.normed() * s.rows, "rms_norm_heads_input_gradient: rstd");
  expect(q_weight, qkv.dtype(), s.D, "rms_norm_heads_input_gradient: q_weight");
  expect(k_weight, qkv.dtype(), s.D, "rms_norm_heads_input_gradient: k_weight");
  expect_like(dy, qkv, "rms_norm_heads_input_gradient: dy");
  expect_like(dqkv, qkv, "rms_norm_heads_input_gradient: dqkv");
  run(device, {"rms_norm_heads_input_gradient", {&dy, &qkv, &q_weight, &k_weight, &rstd}, {&dqkv}},
      cpu::rms_norm_heads_input_gradient, cuda::rms_norm_heads_input_gradient, dy, qkv, q_weight, k_weight, rstd, heads,
      kv_heads, dqkv);
}

void rms_norm_heads_weight_gradient(const Device& device, const Tensor& dy, const Tensor& qkv, const Tensor& rstd,
                                    std::int64_t heads, std::int64_t kv_heads, const Tensor& dq_weight,
                                    const Tensor& dk_weight) {
  expect_floating(qkv, "rms_norm_heads_weight_gradient: qkv");
  const NormedHeads s = normed_heads(qkv, heads, kv_heads);
  expect(rstd, compute_type(qkv.dtype()), s.normed() * s.rows, "rms_norm_heads_weight_gradient: rstd");
  expect_like(dy, qkv, "rms_norm_heads_weight_gradient: dy");
  expect(dq_weight, compute_type(qkv.dtype()), s.D, "rms_norm_heads_weight_gradient: dq_weight");
  expect(dk_weight, compute_type(qkv.dtype()), s.D, "rms_norm_heads_weight_gradient: dk_weight");
  run(device, {"rms_norm_heads_weight_gradient", {&dy, &qkv, &rstd, &dq_weight, &dk_weight}, {&dq_weight, &dk_weight}},
      cpu::rms_norm_heads_weight_gradient, cuda::rms_norm_heads_weight_gradient, dy, qkv, rstd, heads, kv_heads,
      dq_weight, dk_weight);
}

// ---------------------------------------------------------------- elementwise

void gelu(const Device& device, const Tensor& x, const Tensor& y) {
  expect_floating(x, "gelu: x");
  expect_like(y, x, "gelu: y");
  run(device, {"gelu", {&x}, {&y}}, cpu::gelu, cuda::gelu, x, y);
}

void gelu_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& dx) {
  expect_floating(x, "gelu_gradient: x");
  expect_like(dy, x, "gelu_gradient: dy");
  expect_like(dx, x, "gelu_gradient: dx");
  run(device, {"gelu_gradient", {&dy, &x}, {&dx}}, cpu::gelu_gradient, cuda::gelu_gradient, dy, x, dx);
}

namespace {

// Checks gate_up (N,2F) and `half` (N,F).
void expect_gated(const Tensor& gate_up, const Tensor& half, const std::string& name) {
  expect_floating(gate_up, name.c_str());
  const std::int64_t n = row_length(gate_up) / 2;
  CUBOID_CHECK(row_length(gate_up) == 2 * n, name + ": gate_up is " + to_string(gate_up.shape()));
  expect(half, gate_up.dtype(), row_count(gate_up) * n, name.c_str());
}

}  // namespace

void swiglu(const Device& device, const Tensor& gate_up, const Tensor& y) {
  expect_gated(gate_up, y, "swiglu: y");
  run(device, {"swiglu", {&gate_up}, {&y}}, cpu::swiglu, cuda::swiglu, gate_up, y);
}

void swiglu_gradient(const Device& device, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
  expect_gated(gate_up, dy, "swiglu_gradient: dy");
  expect_like(dgate_up, gate_up, "swiglu_gradient: dgate_up");
  run(device, {"swiglu_gradient", {&dy, &gate_up}, {&dgate_up}}, cpu::swiglu_gradient, cuda::swiglu_gradient, dy,
      gate_up, dgate_up);
}

void geglu(const Device& device, const Tensor& gate_up, const Tensor& y) {
  expect_gated(gate_up, y, "geglu: y");
  run(device, {"geglu", {&gate_up}, {&y}}, cpu::geglu, cuda::geglu, gate_up, y);
}

void geglu_gradient(const Device& device, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
  expect_gated(gate_up, dy, "geglu_gradient: dy");
  expect_like(dgate_up, gate_up, "geglu_gradient: dgate_up");
  run(device, {"geglu_gradient", {&dy, &gate_up}, {&dgate_up}}, cpu::geglu_gradient, cuda::geglu_gradient, dy, gate_up,
      dgate_up);
}

void add(const Device& device, const Tensor& a, const Tensor& b, const Tensor& c) {
  expect_floating(a, "add: a");
  expect_like(b, a, "add: b");
  expect_like(c, a, "add: c");
  run(device, {"add", {&a, &b}, {&c}}, cpu::add, cuda::add, a, b, c);
}

void add_bias(const Device& device, const Tensor& x, const Tensor& bias, const Tensor& y) {
  expect_floating(x, "add_bias: x");
  expect(bias, x.dtype(), row_length(x), "add_bias: bias");
  expect_like(y, x, "add_bias: y");
  run(device, {"add_bias", {&x, &bias}, {&y}}, cpu::add_bias, cuda::add_bias, x, bias, y);
}

void convert(const Device& device, const float* numbers, const Tensor& out) {
  expect_floating(out, "convert: out");
  if (out.elements() == 0) return;
  // Overloads have no single address to pass on.
  run(
      device, {"convert", {}, {&out}}, [&](const Device& d) { cpu::convert(d, numbers, out); },
      [&](const Device& d) { cuda::convert(d, numbers, out); });
}

void convert(const Device& device, const Tensor& from, const Tensor& to) {
  CUBOID_CHECK(from.elements() == to.elements(), to_string(from.shape()) + " to " + to_string(to.shape()));
  if (from.dtype() == to.dtype()) return device.copy(from, to);
  expect_floating(from, "convert: from");
  if (from.dtype() != DType::float32) expect(to, DType::float32, from.elements(), "convert: to");
  run(
      device, {"convert", {&from}, {&to}}, [&](const Device& d) { cpu::convert(d, from, to); },
      [&](const Device& d) { cuda::convert(d, from, to); });
}

void scale(const Device& device, const Tensor& t, double factor) {
  expect_floating(t, "scale: t");
  run(device, {"scale", {&t}, {&t}}, cpu::scale, cuda::scale, t, factor);
}

// ---------------------------------------------------------------- dropout

void dropout(const Device& device, const Tensor& x, const Dropout& mask, const Tensor& y) {
  check_dropout(mask);
  expect_floating(x, "dropout: x");
  expect_like(y, x, "dropout: y");
  CUBOID_CHECK(x.shape().rank() == 3, "dropout: x is " + to_string(x.shape()) + ", not (T,B,C)");
  run(device, {"dropout", {&x}, {&y}}, cpu::dropout, cuda::dropout, x, mask, y);
}

void dropout_add(const Device& device, const Tensor& x, const Tensor& residual, const Dropout& mask, const Tensor& y) {
  check_dropout(mask);
  expect_floating(x, "dropout_add: x");
  expect_like(y, x, "dropout_add: y");
  expect_like(residual, x, "dropout_add: residual");
  CUBOID_CHECK(x.shape().rank() == 3, "dropout_add: x is " + to_string(x.shape()) + ", not (T,B,C)");
  run(device, {"dropout_add", {&x, &residual}, {&y}}, cpu::dropout_add, cuda::dropout_add, x, residual, mask, y);
}

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

// ---------------------------------------------------------------- embeddings

namespace {

// The table's type is that of its rows; a gradient's is the type that sums are made in.
void expect_table(const Tensor& rows, const Tensor& table, DType dtype, const char* name) {
  expect_floating(rows, name);
  CUBOID_CHECK(
      table.defined() && table.shape().rank() == 2 && table.dtype() == dtype && table.dim(1) == row_length(rows),
      std::string(name) + ": table and rows differ in type or length");
}

void expect_positions(const Tensor& x, const Tensor& table, DType dtype, const SequencePart& part, const char* name) {
  CUBOID_CHECK(x.defined() && x.shape().rank() == 3, std::string(name) + ": (T,B,C) is expected");
  expect_table(x, table, dtype, name);
  CUBOID_CHECK(part.first >= 0 && part.position(x.dim(0) - 1) < table.dim(0),
               std::string(name) + ": positions " + std::to_string(part.first) + " to " +
                   std::to_string(part.position(x.dim(0) - 1)) + " of a table of " + std::to_string(table.dim(0)));
}

}  // namespace

// A gather reads as many rows of the table as it writes, and a scatter changes as many.

void embedding(const Device& device, const Tensor& tokens, const Tensor& table, std::int64_t first_row,
               const Tensor& y) {
  expect_table(y, table, y.dtype(), "embedding");
  expect(tokens, DType::int32, row_count(y), "embedding: tokens");
  run(device, {"embedding", {&y, &tokens}, {&y}}, cpu::embedding, cuda::embedding, tokens, table, first_row, y);
}

void embedding_gradient(const Device& device, const Tensor& tokens, const Tensor& dy, std::int64_t first_row,
                        const Tensor& dtable) {
  expect_table(dy, dtable, compute_type(dy.dtype()), "embedding_gradient");
  expect(tokens, DType::int32, row_count(dy), "embedding_gradient: tokens");
  run(device, {"embedding_gradient", {&dy, &tokens, &dy}, {&dy}}, cpu::embedding_gradient, cuda::embedding_gradient,
      tokens, dy, first_row, dtable);
}

void add_positions(const Device& device, const Tensor& x, const Tensor& table, const SequencePart& part) {
  expect_positions(x, table, x.dtype(), part, "add_positions");
  const Tensor rows = table.narrow(0, x.dim(0));  // as many
  run(device, {"add_positions", {&x, &rows}, {&x}}, cpu::add_positions, cuda::add_positions, x, table, part);
}

void add_positions_gradient(const Device& device, const Tensor& dy, const SequencePart& part, const Tensor& dtable) {
  expect_positions(dy, dtable, compute_type(dy.dtype()), part, "add_positions_gradient");
  const Tensor rows = dtable.narrow(0, dy.dim(0));
  run(device, {"add_positions_gradient", {&dy, &rows}, {&rows}}, cpu::add_positions_gradient,
      cuda::add_positions_gradient, dy, part, dtable);
}

// ---------------------------------------------------------------- cross-entropy

void cross_entropy_statistics(const Device& device, const Tensor& logits, const Tensor& targets, std::int64_t first_row,
                              const Tensor& row_max, const Tensor& row_sum, const Tensor& target_logit) {
  expect_real(logits, "cross_entropy_statistics: logits");
  const std::int64_t rows = row_count(logits);
  CUBOID_CHECK(row_length(logits) > 0, "cross_entropy_statistics: no vocabulary");
  expect(targets, DType::int32, rows, "cross_entropy_statistics: targets");
  expect(row_max, logits.dtype(), rows, "cross_entropy_statistics: row_max");
  expect(row_sum, logits.dtype(), rows, "cross_entropy_statistics: row_sum");
  expect(target_logit, logits.dtype(), rows, "cross_entropy_statistics: target_logit");
  run(device, {"cross_entropy_statistics", {&logits, &targets}, {&row_max, &row_sum, &target_logit}},
      cpu::cross_entropy_statistics, cuda::cross_entropy_statistics, logits, targets, first_row, row_max, row_sum,
      target_logit);
}

void rescale_sum(const Device& device, const Tensor& local_max, const Tensor& global_max, const Tensor& row_sum) {
  expect_real(local_max, "rescale_sum: local_max");
  expect_like(global_max, local_max, "rescale_sum: global_max");
  expect_like(row_sum, local_max, "rescale_sum: row_sum");
  run(device, {"rescale_sum", {&local_max, &global_max, &row_sum}, {&row_sum}}, cpu::rescale_sum, cuda::rescale_sum,
      local_max, global_max, row_sum);
}

void cross_entropy_loss(const Device& device, const Tensor& row_max, const Tensor& row_sum, const Tensor& target_logit,
                        const Tensor& targets, const Tensor& losses) {
  expect_real(row_max, "cross_entropy_loss: row_max");
  const std::int64_t rows = row_max.elements();
  expect_like(row_sum, row_max, "cross_entropy_loss: row_sum");
  expect_like(target_logit, row_max, "cross_entropy_loss: target_logit");
  expect(targets, DType::int32, rows, "cross_entropy_loss: targets");
  CUBOID_CHECK(
      losses.defined() && losses.dtype() == DType::float64 && losses.elements() > 0 && rows % losses.elements() == 0,
      "cross_entropy_loss: losses are not float64, or do not divide " + std::to_string(rows) + " rows");
  run(device, {"cross_entropy_loss", {&row_max, &row_sum, &target_logit, &targets}, {&losses}}, cpu::cross_entropy_loss,
      cuda::cross_entropy_loss, row_max, row_sum, target_logit, targets, losses);
}

void cross_entropy_gradient(const Device& device, const Tensor& logits, const Tensor& targets, std::int64_t first_row,
                            const Tensor& row_max, const Tensor& row_sum, double factor, const Tensor& dlogits) {
  expect_real(logits, "cross_entropy_gradient: logits");
  const std::int64_t rows = row_count(logits);
  expect(targets, DType::int32, rows, "cross_entropy_gradient: targets");
  expect(row_max, logits.dtype(), rows, "cross_entropy_gradient: row_max");
  expect(row_sum, logits.dtype(), rows, "cross_entropy_gradient: row_sum");
  CUBOID_CHECK(
      dlogits.defined() && dlogits.elements() == logits.elements() && compute_type(dlogits.dtype()) == logits.dtype(),
      "cross_entropy_gradient: dlogits differs from logits in size or computes in another type");
  run(device, {"cross_entropy_gradient", {&logits, &targets, &row_max, &row_sum}, {&dlogits}},
      cpu::cross_entropy_gradient, cuda::cross_entropy_gradient, logits, targets, first_row, row_max, row_sum, factor,
      dlogits);
}

// ---------------------------------------------------------------- experts

void route(const Device& device, const Tensor& logits, const Tensor& probabilities, const Tensor& experts,
           const Tensor& weights, const Tensor& log_sum) {
  expect_real(logits, "route: logits");
  const std::int64_t n = row_length(logits);
  const std::int64_t rows = row_count(logits);
  const std::int64_t k = row_length(experts);
  CUBOID_CHECK(k >= 1 && k <= n, "route: " + std::to_string(k) + " of " + std::to_string(n) + " experts");
  expect_like(probabilities, logits, "route: probabilities");
  expect(experts, DType::int32, rows * k, "route: experts");
  expect(weights, logits.dtype(), rows * k, "route: weights");
  expect(log_sum, logits.dtype(), rows, "route: log_sum");
  run(device, {"route", {&logits}, {&probabilities, &experts, &weights, &log_sum}}, cpu::route, cuda::route, logits,
      probabilities, experts, weights, log_sum);
}

void route_gradient(const Device& device, const Tensor& dweights, const Tensor& probabilities, const Tensor& experts,
                    const Tensor& weights, const Tensor& log_sum, const Tensor& slope, double z,
                    const Tensor& dlogits) {
  expect_real(probabilities, "route_gradient: probabilities");
  const std::int64_t rows = row_count(probabilities);
  const std::int64_t k = row_length(experts);
  expect(dweights, probabilities.dtype(), rows * k, "route_gradient: dweights");
  expect(experts, DType::int32, rows * k, "route_gradient: experts");
  expect(weights, probabilities.dtype(), rows * k, "route_gradient: weights");
  expect(log_sum, probabilities.dtype(), rows, "route_gradient: log_sum");
  expect(slope, probabilities.dtype(), row_length(probabilities), "route_gradient: slope");
  expect_like(dlogits, probabilities, "route_gradient: dlogits");
  run(device, {"route_gradient", {&dweights, &probabilities, &experts, &weights, &log_sum, &slope}, {&dlogits}},
      cpu::route_gradient, cuda::route_gradient, dweights, probabilities, experts, weights, log_sum, slope, z, dlogits);
}

std::vector<std::int64_t> sort_by_expert(const Device& device, const Tensor& experts, std::int64_t count,
                                         const Tensor& slot, const Tensor& source) {
  expect(experts, DType::int32, experts.elements(), "sort_by_expert: experts");
  expect(slot, DType::int32, experts.elements(), "sort_by_expert: slot");
  expect(source, DType::int32, experts.elements(), "sort_by_expert: source");
  switch (device.kind()) {
    case DeviceKind::cpu:
      return cpu::sort_by_expert(device, experts, count, slot, source);
    case DeviceKind::cuda:
      return cuda::sort_by_expert(device, experts, count, slot, source);
    case DeviceKind::meta:
      return meta::sort_by_expert(device, {"sort_by_expert", {&experts}, {&slot, &source}}, experts.elements(), count);
  }
  return {};
}

void gather_rows(const Device& device, const Tensor& x, const Tensor& index, const Tensor& y) {
  expect_floating(x, "gather_rows: x");
  expect(index, DType::int32, index.elements(), "gather_rows: index");
  expect(y, x.dtype(), index.elements() * row_length(x), "gather_rows: y");
  run(device, {"gather_rows", {&y, &index}, {&y}}, cpu::gather_rows, cuda::gather_rows, x, index, y);
}

void combine_rows(const Device& device, const Tensor& rows, const Tensor& slot, const Tensor& weights,
                  const Tensor& y) {
  expect_floating(y, "combine_rows: y");
  const std::int64_t k = row_length(slot);
  expect(slot, DType::int32, row_count(y) * k, "combine_rows: slot");
  expect(rows, y.dtype(), row_count(y) * k * row_length(y), "combine_rows: rows");
  if (weights.defined()) expect(weights, compute_type(y.dtype()), row_count(y) * k, "combine_rows: weights");
  run(device, {"combine_rows", {&rows, &slot, &weights}, {&y}}, cpu::combine_rows, cuda::combine_rows, rows, slot,
      weights, y);
}

void combine_rows_gradient(const Device& device, const Tensor& dy, const Tensor& rows, const Tensor& slot,
                           const Tensor& weights, const Tensor& drows, const Tensor& dweights) {
  expect_floating(dy, "combine_rows_gradient: dy");
  const std::int64_t count = row_count(dy);
  const std::int64_t k = row_length(slot);
  const std::int64_t n = row_length(dy);
  const bool rounded = rows.defined() && rows.dtype() == dy.dtype();
  expect(rows, rounded ? dy.dtype() : compute_type(dy.dtype()), count * k * n, "combine_rows_gradient: rows");
  expect(slot, DType::int32, count * k, "combine_rows_gradient: slot");
  expect(weights, compute_type(dy.dtype()), count * k, "combine_rows_gradient: weights");
  expect(drows, dy.dtype(), count * k * n, "combine_rows_gradient: drows");
  expect(dweights, compute_type(dy.dtype()), count * k, "combine_rows_gradient: dweights");
  run(device, {"combine_rows_gradient", {&dy, &rows, &slot, &weights}, {&drows, &dweights}}, cpu::combine_rows_gradient,
      cuda::combine_rows_gradient, dy, rows, slot, weights, drows, dweights);
}

// ---------------------------------------------------------------- optimizer

void add_squares(const Device& device, const Tensor& x, const Tensor& words) {
  expect_real(x, "add_squares: x");
  expect(words, DType::int64, ExactSum::kWords, "add_squares: words");
  run(device, {"add_squares", {&x}, {&words}}, cpu::add_squares, cuda::add_squares, x, words);
}

void adamw(const Device& device, const AdamW& options, const Tensor& gradient, const Tensor& weight, const Tensor& m,
           const Tensor& v, const Tensor& rounded) {
  expect_real(weight, "adamw: weight");
  expect_like(gradient, weight, "adamw: gradient");
  expect_like(m, weight, "adamw: m");
  expect_like(v, weight, "adamw: v");
  if (rounded.defined()) expect(rounded, DType::bfloat16, weight.elements(), "adamw: rounded");
  run(device, {"adamw", {&gradient, &weight, &m, &v}, {&weight, &m, &v, &rounded}}, cpu::adamw, cuda::adamw, options,
      gradient, weight, m, v, rounded);
}

void sgd(const Device& device, double lr, double weight_decay, double gradient_scale, const Tensor& gradient,
         const Tensor& weight, const Tensor& rounded) {
  expect_real(weight, "sgd: weight");
  expect_like(gradient, weight, "sgd: gradient");
  if (rounded.defined()) expect(rounded, DType::bfloat16, weight.elements(), "sgd: rounded");
  run(device, {"sgd", {&gradient, &weight}, {&weight, &rounded}}, cpu::sgd, cuda::sgd, lr, weight_decay, gradient_scale,
      gradient, weight, rounded);
}

}  // namespace cuboid::kernels
