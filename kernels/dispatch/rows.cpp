// Products, norms, and what works element by element; dropout and the optimizer among it.
#include "kernels/dispatch/dispatch.h"

namespace cuboid::kernels {

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
