// Layers whose weights are cut over the tensor axis, as in Megatron-LM (arXiv 1909.08053), with sequence parallelism
// (arXiv 2205.05198): between the split layers, activations are cut along T instead of being replicated.
// Ranks arrive as the communicator's; nothing here knows where it sits in a grid. Partial sums of bfloat16 activations
// leave the matrix product in float32 and are rounded after they have been added over the ranks, unless the group says
// otherwise (reduce_dtype).
#pragma once

#include "cuboid/comm/communicator.h"
#include "cuboid/ops/ops.h"

namespace cuboid {

/// The type of partial sums of activations of a type.
inline DType partial_type(DType activations, DType reduce_dtype) {
  return activations == DType::bfloat16 ? reduce_dtype : activations;
}

/// The tensor group as layers see it.
struct TensorParallel {
  Communicator* comm = nullptr;
  bool sequence_parallel = false;       ///< activations outside the split layers are (T/tp,B,C); T must be divisible
  DType reduce_dtype = DType::float32;  ///< in which partial sums of bfloat16 activations travel and are added

  int rank() const { return comm->rank(); }
  int size() const { return comm->size(); }
  bool splits_sequence() const { return sequence_parallel && size() > 1; }
  DType partial_type(DType activations) const { return cuboid::partial_type(activations, reduce_dtype); }
};

/// Into a region where tensor ranks compute different things of the same x: x itself, or with sequence parallelism the
/// whole sequence from its shards. The gradients that come back are partial sums, which are added over the ranks (and
/// cut, with sequence parallelism). Layers below that are split enter and leave by themselves.
Var enter_split_region(Tape& tape, const TensorParallel& tp, const Var& x);
/// Out of it: partial sums (T,B,·) added over the ranks, rounded to dtype; with sequence parallelism each rank's shard.
/// The value of `partial` may be overwritten.
Var leave_split_region(Tape& tape, const TensorParallel& tp, const Var& partial, DType dtype);

/// y (T,B,out/tp) = x · weightᵀ + bias with weight (out/tp,in) cut by output. x is (T,B,in), replicated, or (T/tp,B,in)
/// with sequence parallelism: gathered for the product, and only the shard is kept for backward.
Var column_linear(Tape& tape, const TensorParallel& tp, const Var& x, Parameter& weight, Parameter* bias);

/// y = Σ over ranks of x · weightᵀ, + bias once, with x (T,B,in/tp) and weight (out,in/tp) cut by input. y is (T,B,out)
/// on every rank, or (T/tp,B,out) with sequence parallelism.
Var row_linear(Tape& tape, const TensorParallel& tp, const Var& x, Parameter& weight, Parameter* bias);

/// tokens (T,B) → (T,B,C) (or the shard (T/tp,B,C)) from a table cut by rows; first_row: global row of this rank's
/// first.
Var vocabulary_parallel_embedding(Tape& tape, const TensorParallel& tp, const Tensor& tokens, Parameter& table,
                                  std::int64_t first_row);

/// The loss of a micro-batch.
struct Loss {
  Tensor per_sequence;  ///< (B) float64: sum over unmasked targets, in nats; the same on every rank. When a gradient is
                        ///< recorded it is known after backward (B, or I)
  Var seed;             ///< backward starts here, with any gradient tensor of one element; undefined in evaluation
};
/// Cross-entropy of h (T,B,C) (or its sequence shard) times the output matrix weight (V/tp,C), in chunks of rows: the
/// logits (T,B,V/tp) never exist whole, forward or backward. When a gradient is recorded, all of it happens in
/// backward. targets (T,B) int32 global ids or kernels::kIgnore. The gradient of Σ per_sequence · factor flows back.
/// Padding cannot exist: ranks own exactly their real rows.
Loss vocabulary_parallel_linear_cross_entropy(Tape& tape, const TensorParallel& tp, const Var& h, Parameter& weight,
                                              const Tensor& targets, std::int64_t first_row, double factor);

}  // namespace cuboid
