// Differentiable operations on one rank's tensors. Each computes with kernels and records its input gradient and, apart
// from it, its weight gradient. No operation here communicates: those that do are in parallel/tensor_parallel.h.
// Shapes as in kernels.h; rows of (T,B,·) count as N = T·B.
#pragma once

#include "cuboid/kernels/kernels.h"
#include "cuboid/ops/tape.h"

namespace cuboid::ops {

/// y (…,out) = x (…,in) · weightᵀ + bias; weight (out,in), bias (out) or null.
Var linear(Tape& tape, const Var& x, Parameter& weight, Parameter* bias);
Var layer_norm(Tape& tape, const Var& x, Parameter& weight, Parameter& bias, double eps);
/// `offset` is added to the weight (Gemma: 1).
Var rms_norm(Tape& tape, const Var& x, Parameter& weight, double eps, double offset = 0);
struct AttentionShape;
/// Every q and k head of a fused projection qkv (T,B,(H+2K)·D) normalised over D; v as it is.
Var rms_norm_heads(Tape& tape, const Var& qkv, const AttentionShape& shape, Parameter& q_weight, Parameter& k_weight,
                   double eps);
Var gelu(Tape& tape, const Var& x);
/// (…,2F) gate | up → (…,F).
Var swiglu(Tape& tape, const Var& gate_up);
/// The same with tanh GELU in place of SiLU.
Var geglu(Tape& tape, const Var& gate_up);
/// x · factor.
Var scale(Tape& tape, const Var& x, double factor);
Var add(Tape& tape, const Var& a, const Var& b);
Var dropout(Tape& tape, const Var& x, const kernels::Dropout& mask);
/// residual + dropout(x).
Var dropout_add(Tape& tape, const Var& x, const Var& residual, const kernels::Dropout& mask);
/// y (…,n) = x + bias, bias (n). An x that is moved in and that nothing else holds is overwritten.
Var add_bias(Tape& tape, Var x, Parameter& bias);

struct AttentionShape {
  std::int64_t heads = 0;     ///< this rank's query heads
  std::int64_t kv_heads = 0;  ///< this rank's key/value heads; divides heads
  std::int64_t head_dim = 0;
  std::int64_t window = 0;  ///< sliding window; 0: none
};
/// Causal attention of a fused projection qkv (T,B,(H+2K)·D) → (T,B,H·D). cos, sin (T,D/2): rotary tables, or
/// undefined.
Var attention(Tape& tape, const Var& qkv, const AttentionShape& shape, const Tensor& cos, const Tensor& sin,
              const kernels::Dropout& mask);

/// tokens (T,B) int32 → (T,B,C): rows of this rank's part of the table, zeros for tokens held elsewhere.
Var embedding(Tape& tape, const Tensor& tokens, Parameter& table, std::int64_t first_row);
/// Row t of x (T,B,C) + table row rows.position(t).
Var add_positions(Tape& tape, const Var& x, Parameter& table, const SequencePart& rows);

/// y = part(x), of which only x is kept: backward runs the part again, on a tape of its own, before it differentiates
/// it. The part must compute the same bits both times (dropout is keyed, so it does).
Var recompute(Tape& tape, const Var& x, std::function<Var(Tape&, const Var&)> part);

/// Rotary tables (T,D/2) of the angles position · frequency[j] at the positions of `length` rows. Computed in double,
/// stored as dtype.
struct RopeTables {
  Tensor cos, sin;
};
RopeTables rope_tables(const Device& device, const std::vector<double>& frequencies, const SequencePart& rows,
                       std::int64_t length, DType dtype);

}  // namespace cuboid::ops
