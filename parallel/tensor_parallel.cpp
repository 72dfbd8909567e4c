#include "cuboid/parallel/tensor_parallel.h"

namespace cuboid {
namespace {

Shape scaled_rows(const Shape& shape, std::int64_t multiply, std::int64_t divide) {
  Shape changed = shape;
  changed[0] = changed[0] * multiply / divide;
  return changed;
}

// (T/tp,B,C) of every rank → (T,B,C).
Tensor gather_sequence(const Device& device, const TensorParallel& tp, const Tensor& shard) {
  const Tensor full = device.empty(scaled_rows(shard.shape(), tp.size(), 1), shard.dtype(), Category::communication);
  tp.comm->all_gather(shard, full).wait();
  return full;
}

// Partial sums (T,B,C) → this rank's part of the sum (T/tp,B,C).
Tensor reduce_to_sequence(const Device& device, const TensorParallel& tp, const Tensor& partial) {
  const Tensor shard = device.empty(scaled_rows(partial.shape(), 1, tp.size()), partial.dtype());
  tp.comm->reduce_scatter(partial, shard, ReduceOp::sum).wait();
  return shard;
}

// Partial sums become what the region between split layers holds: the whole sum, or this rank's part of it.
Tensor reduce_partial(const Device& device, const TensorParallel& tp, const Tensor& partial) {
  if (tp.splits_sequence()) return reduce_to_sequence(device, tp, partial);
  all_reduce_in_place(*tp.comm, partial);
  return partial;
}

Tensor with_columns(const Device& device, const Tensor& x, std::int64_t columns) {
  Shape shape = x.shape();
  shape[-1] = columns;
  return device.empty(shape, x.dtype());
}

}  // namespace

Var column_linear(Tape& tape, const TensorParallel& tp, const Var& x, Parameter& weight, Parameter* bias) {
  if (tp.size() == 1) return ops::linear(tape, x, weight, bias);
  const Tensor full = tp.splits_sequence() ? gather_sequence(tape.device(), tp, x.value()) : x.value();
  const Tensor y = with_columns(tape.device(), full, weight.value.dim(0));
  kernels::matmul(tape.device(), full, weight.value, y, {.transpose_b = true}, bias ? bias->value : Tensor());
  auto backward = [tp, slot = x.slot(), x = x.value(), &weight, bias](Tape& t, Tensor dy) {
    const Device& device = t.device();
    if (slot.wanted()) {
      const Tensor dx = with_columns(device, dy, weight.value.dim(1));
      kernels::matmul(device, dy, weight.value, dx);
      t.contribute(slot, reduce_partial(device, tp, dx));
    }
    t.defer({&weight}, [device, tp, x, dy, &weight] {
      const Tensor inputs = tp.splits_sequence() ? gather_sequence(device, tp, x) : x;
      kernels::matmul(device, dy, inputs, weight.gradient, {.transpose_a = true, .accumulate = true});
    });
    if (bias) {
      t.defer({bias}, [device, dy, bias] { kernels::add_column_sum(device, dy, bias->gradient); });
    }
  };
  if (bias) return tape.record(y, {x.slot()}, {&weight, bias}, std::move(backward));
  return tape.record(y, {x.slot()}, {&weight}, std::move(backward));
}

Var row_linear(Tape& tape, const TensorParallel& tp, const Var& x, Parameter& weight, Parameter* bias) {
  if (tp.size() == 1) return ops::linear(tape, x, weight, bias);
  const Tensor partial = with_columns(tape.device(), x.value(), weight.value.dim(0));
  kernels::matmul(tape.device(), x.value(), weight.value, partial, {.transpose_b = true});
  Tensor y = reduce_partial(tape.device(), tp, partial);
  Var product = tape.record(
      std::move(y), {x.slot()}, {&weight}, [tp, slot = x.slot(), x = x.value(), &weight](Tape& t, Tensor dy) {
        const Device& device = t.device();
        const Tensor full = tp.splits_sequence() ? gather_sequence(device, tp, dy) : dy;
        if (slot.wanted()) {
          const Tensor dx = with_columns(device, full, weight.value.dim(1));
          kernels::matmul(device, full, weight.value, dx);
          t.contribute(slot, dx);
        }
        t.defer({&weight}, [device, full, x, &weight] {
          kernels::matmul(device, full, x, weight.gradient, {.transpose_a = true, .accumulate = true});
        });
      });
  // After the reduction, so that it counts once and not tp times.
  return bias ? ops::add_bias(tape, std::move(product), *bias) : product;
}

Var vocabulary_parallel_embedding(Tape& tape, const TensorParallel& tp, const Tensor& tokens, Parameter& table,
                                  std::int64_t first_row) {
  if (tp.size() == 1) return ops::embedding(tape, tokens, table, first_row);
  const Device& device = tape.device();
  const Tensor partial = device.empty({tokens.dim(0), tokens.dim(1), table.value.dim(1)}, table.value.dtype());
  kernels::embedding(device, tokens, table.value, first_row, partial);
  Tensor y = reduce_partial(device, tp, partial);
  return tape.record(std::move(y), {}, {&table}, [tp, tokens, &table, first_row](Tape& t, Tensor dy) {
    const Tensor full = tp.splits_sequence() ? gather_sequence(t.device(), tp, dy) : dy;
    t.defer({&table}, [device = t.device(), tokens, full, &table, first_row] {
      kernels::embedding_gradient(device, tokens, full, first_row, table.gradient);
    });
  });
}

Loss vocabulary_parallel_cross_entropy(Tape& tape, const TensorParallel& tp, const Var& logits, const Tensor& targets,
                                       std::int64_t first_row, double factor) {
  const Device& device = tape.device();
  const DType dtype = logits.value().dtype();
  const std::int64_t rows = logits.shape().rows();
  const std::int64_t batch = targets.dim(1);
  const Tensor row_max = device.empty({rows}, dtype);
  const Tensor sums = device.empty({2, rows}, dtype);  // row_sum | target_logit: one reduction for both
  const Tensor row_sum = sums.narrow(0, 1).reshape({rows});
  const Tensor target_logit = sums.narrow(1, 1).reshape({rows});
  kernels::cross_entropy_statistics(device, logits.value(), targets.reshape({rows}), first_row, row_max, row_sum,
                                    target_logit);
  if (tp.size() > 1) {
    const Tensor local_max = device.clone(row_max);
    all_reduce_in_place(*tp.comm, row_max, ReduceOp::max);
    kernels::rescale_sum(device, local_max, row_max, row_sum);
    all_reduce_in_place(*tp.comm, sums, ReduceOp::sum);
  }
  Loss loss;
  loss.per_sequence = device.empty({batch}, DType::float64);
  kernels::cross_entropy_loss(device, row_max, row_sum, target_logit, targets.reshape({rows}), loss.per_sequence);
  loss.seed =
      tape.record(loss.per_sequence, {logits.slot()}, {},
                  [slot = logits.slot(), x = logits.value(), targets = targets.reshape({rows}), first_row, row_max,
                   row_sum, factor](Tape& t, Tensor) mutable {
                    kernels::cross_entropy_gradient(t.device(), x, targets, first_row, row_max, row_sum, factor);
                    t.contribute(slot, std::move(x));
                  });
  return loss;
}

}  // namespace cuboid
