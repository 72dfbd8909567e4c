#include "cuboid/parallel/tensor_parallel.h"

#include <algorithm>

#include "sequence.h"

namespace cuboid {
namespace {

Shape scaled_rows(const Shape& shape, std::int64_t multiply, std::int64_t divide) {
  Shape changed = shape;
  changed[0] = changed[0] * multiply / divide;
  return changed;
}

}  // namespace

Tensor gather_sequence(const Device& device, const TensorParallel& tp, const Tensor& shard) {
  const Tensor full = device.empty(scaled_rows(shard.shape(), tp.size(), 1), shard.dtype(), Category::communication);
  tp.comm->all_gather(shard, full).wait();
  return full;
}

Tensor rounded(const Device& device, const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  const Tensor made = device.empty(x.shape(), dtype);
  kernels::convert(device, x, made);
  return made;
}

Tensor reduce_partial(const Device& device, const TensorParallel& tp, Tensor partial, DType dtype) {
  Tensor sum = partial;
  if (tp.splits_sequence()) {
    sum = device.empty(scaled_rows(partial.shape(), 1, tp.size()), partial.dtype());
    tp.comm->reduce_scatter(partial, sum, ReduceOp::sum).wait();
    partial = Tensor();
  } else {
    all_reduce_in_place(*tp.comm, partial);
  }
  return rounded(device, sum, dtype);
}

Var enter_split_region(Tape& tape, const TensorParallel& tp, const Var& x) {
  if (tp.size() == 1) return x;
  Tensor full = tp.splits_sequence() ? gather_sequence(tape.device(), tp, x.value()) : x.value();
  return tape.record(std::move(full), {x.slot()}, {},
                     [tp, slot = x.slot(), dtype = x.value().dtype()](Tape& t, Tensor partial) {
                       if (!partial.unique()) partial = t.device().clone(partial);
                       t.contribute(slot, reduce_partial(t.device(), tp, std::move(partial), dtype));
                     });
}

Var leave_split_region(Tape& tape, const TensorParallel& tp, const Var& partial, DType dtype) {
  if (tp.size() == 1) return partial;
  return tape.record(reduce_partial(tape.device(), tp, partial.value(), dtype), {partial.slot()}, {},
                     [tp, slot = partial.slot()](Tape& t, Tensor dy) {
                       t.contribute(slot, tp.splits_sequence() ? gather_sequence(t.device(), tp, dy) : dy);
                     });
}

namespace {

Tensor with_columns(const Device& device, const Tensor& x, std::int64_t columns, DType dtype) {
  Shape shape = x.shape();
  shape[-1] = columns;
  return device.empty(shape, dtype);
}

// Room for a product that is a partial sum.
Tensor partial_with_columns(const Device& device, const TensorParallel& tp, const Tensor& x, std::int64_t columns) {
  return with_columns(device, x, columns, tp.partial_type(x.dtype()));
}

}  // namespace

Var column_linear(Tape& tape, const TensorParallel& tp, const Var& x, Parameter& weight, Parameter* bias) {
  if (tp.size() == 1) return ops::linear(tape, x, weight, bias);
  const Tensor full = tp.splits_sequence() ? gather_sequence(tape.device(), tp, x.value()) : x.value();
  const Tensor y = with_columns(tape.device(), full, weight.value.dim(0), full.dtype());
  kernels::matmul(tape.device(), full, weight.value, y, {.transpose_b = true}, bias ? bias->value : Tensor());
  auto backward = [tp, slot = x.slot(), saved = x.saved(), &weight, bias](Tape& t, Tensor dy) {
    const Device& device = t.device();
    if (slot.wanted()) {
      const Tensor dx = partial_with_columns(device, tp, dy, weight.value.dim(1));
      kernels::matmul(device, dy, weight.value, dx);
      t.contribute(slot, reduce_partial(device, tp, dx, dy.dtype()));
    }
    t.defer({&weight}, [device, tp, saved, dy, &weight] {
      const Tensor inputs = tp.splits_sequence() ? gather_sequence(device, tp, saved.get()) : saved.get();
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
  Tensor partial = partial_with_columns(tape.device(), tp, x.value(), weight.value.dim(0));
  kernels::matmul(tape.device(), x.value(), weight.value, partial, {.transpose_b = true});
  Tensor y = reduce_partial(tape.device(), tp, std::move(partial), x.value().dtype());
  Var product = tape.record(
      std::move(y), {x.slot()}, {&weight}, [tp, slot = x.slot(), saved = x.saved(), &weight](Tape& t, Tensor dy) {
        const Device& device = t.device();
        const Tensor full = tp.splits_sequence() ? gather_sequence(device, tp, dy) : dy;
        if (slot.wanted()) {
          const Tensor dx = with_columns(device, full, weight.value.dim(1), full.dtype());
          kernels::matmul(device, full, weight.value, dx);
          t.contribute(slot, dx);
        }
        t.defer({&weight}, [device, full, saved, &weight] {
          kernels::matmul(device, full, saved.get(), weight.gradient, {.transpose_a = true, .accumulate = true});
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
  // All but one rank add zeros: no type loses anything.
  Tensor y = reduce_partial(device, tp, partial, partial.dtype());
  return tape.record(std::move(y), {}, {&table}, [tp, tokens, &table, first_row](Tape& t, Tensor dy) {
    const Tensor full = tp.splits_sequence() ? gather_sequence(t.device(), tp, dy) : dy;
    t.defer({&table}, [device = t.device(), tokens, full, &table, first_row] {
      kernels::embedding_gradient(device, tokens, full, first_row, table.gradient);
    });
  });
}

namespace {

// What the loss of a micro-batch needs besides its input, and the steps over a chunk of its rows.
struct ChunkedLoss {
  Device device;
  TensorParallel tp;
  Parameter* weight;
  Tensor targets;  // (N)
  std::int64_t batch;
  std::int64_t first_row;
  double factor;
  Tensor statistics;  // (3,N): row maximum, row sum, target logit

  Tensor statistic(int which, std::int64_t begin, std::int64_t rows) const {
    const std::int64_t n = targets.dim(0);
    return statistics.reshape({3 * n}).narrow(which * n + begin, rows);
  }

  // Rows of a chunk: enough for efficient products, few enough that the logits stay small.
  std::int64_t chunk_rows() const {
    constexpr std::int64_t kBytes = 32 << 20;
    constexpr std::int64_t kLeast = 256;
    const std::int64_t fitting = kBytes / (weight->value.dim(0) * static_cast<std::int64_t>(size_of(DType::float32)));
    return std::clamp(fitting, std::min(kLeast, targets.dim(0)), targets.dim(0));
  }

  // f(first row, rows, logits (rows,V/tp)) for each chunk of h (N,C). `phase`: what computing the logits is part of.
  template <typename F>
  void for_chunks(const Tensor& h, TracedPhase phase, F&& visit) const {
    const std::int64_t n = targets.dim(0);
    const std::int64_t columns = h.elements() / n;
    const Tensor rows_of_h = h.reshape({n, columns});
    for (std::int64_t begin = 0; begin < n; begin += chunk_rows()) {
      const std::int64_t rows = std::min(chunk_rows(), n - begin);
      const Tensor part = rows_of_h.narrow(begin, rows);
      const Tensor logits = device.empty({rows, weight->value.dim(0)}, statistics.dtype(), Category::workspace);
      {
        const PhaseScope scope(device, phase);
        kernels::matmul(device, part, weight->value, logits, {.transpose_b = true});
      }
      visit(begin, part, logits);
    }
  }

  void find_statistics(std::int64_t begin, const Tensor& logits) const {
    const PhaseScope scope(device, TracedPhase::forward);
    const std::int64_t rows = logits.dim(0);
    const Tensor row_max = statistic(0, begin, rows);
    // Sum and target logit of the chunk side by side: one reduction for both.
    const Tensor sums = device.empty({2 * rows}, statistics.dtype(), Category::workspace);
    const Tensor row_sum = sums.narrow(0, rows);
    const Tensor target_logit = sums.narrow(rows, rows);
    kernels::cross_entropy_statistics(device, logits, targets.narrow(begin, rows), first_row, row_max, row_sum,
                                      target_logit);
    if (tp.size() > 1) {
      const Tensor local_max = device.clone(row_max, Category::workspace);
      all_reduce_in_place(*tp.comm, row_max, ReduceOp::max);
      kernels::rescale_sum(device, local_max, row_max, row_sum);
      all_reduce_in_place(*tp.comm, sums, ReduceOp::sum);
    }
    device.copy(row_sum, statistic(1, begin, rows));
    device.copy(target_logit, statistic(2, begin, rows));
  }

  // The gradient of logits, in their memory unless it is of another type. @pre find_statistics of the chunk
  Tensor differentiate(std::int64_t begin, const Tensor& logits) const {
    const std::int64_t rows = logits.dim(0);
    const DType dtype = weight->value.dtype();
    Tensor dlogits = dtype == logits.dtype() ? logits : device.empty(logits.shape(), dtype, Category::workspace);
    kernels::cross_entropy_gradient(device, logits, targets.narrow(begin, rows), first_row, statistic(0, begin, rows),
                                    statistic(1, begin, rows), factor, dlogits);
    return dlogits;
  }

  void sum_losses(const Tensor& per_sequence) const {
    const std::int64_t n = targets.dim(0);
    kernels::cross_entropy_loss(device, statistic(0, 0, n), statistic(1, 0, n), statistic(2, 0, n), targets,
                                per_sequence);
  }

  void add_weight_gradient(const Tensor& dlogits, const Tensor& part) const {
    const PhaseScope scope(device, TracedPhase::weight_gradient);
    kernels::matmul(device, dlogits, part, weight->gradient, {.transpose_a = true, .accumulate = true});
  }

  Tensor whole(const Tensor& h) const { return tp.splits_sequence() ? gather_sequence(device, tp, h) : h; }

  // Loss and gradient of h; with `weights` also the weight gradient, at one go.
  Tensor input_gradient(const Tensor& h, bool weights) const {
    const PhaseScope scope(device, TracedPhase::input_gradient);
    const bool partial = tp.size() > 1;
    const Tensor dh = device.empty(h.shape(), partial ? tp.partial_type(h.dtype()) : h.dtype());
    const Tensor rows = dh.reshape({h.shape().rows(), h.shape()[-1]});
    for_chunks(h, TracedPhase::forward, [&](std::int64_t begin, const Tensor& part, const Tensor& logits) {
      find_statistics(begin, logits);
      const Tensor dlogits = differentiate(begin, logits);
      kernels::matmul(device, dlogits, weight->value, rows.narrow(begin, logits.dim(0)));
      if (weights) add_weight_gradient(dlogits, part);
    });
    return partial ? reduce_partial(device, tp, dh, h.dtype()) : dh;
  }

  // The weight gradient alone. @pre input_gradient has found the statistics
  void weight_gradient(const Tensor& h) const {
    for_chunks(h, TracedPhase::recompute, [&](std::int64_t begin, const Tensor& part, const Tensor& logits) {
      add_weight_gradient(differentiate(begin, logits), part);
    });
  }
};

}  // namespace

Loss vocabulary_parallel_linear_cross_entropy(Tape& tape, const TensorParallel& tp, const Var& h, Parameter& weight,
                                              const Tensor& targets, std::int64_t first_row, double factor) {
  const Device& device = tape.device();
  const std::int64_t n = targets.elements();
  const DType statistics_type = compute_type(h.value().dtype());
  ChunkedLoss parts{device,         tp,        &weight, targets.reshape({n}),
                    targets.dim(1), first_row, factor,  device.empty({3, n}, statistics_type)};
  Loss loss;
  loss.per_sequence = device.empty({targets.dim(1)}, DType::float64);
  if (!tape.recording()) {
    parts.for_chunks(
        parts.whole(h.value()), TracedPhase::forward,
        [&](std::int64_t begin, const Tensor&, const Tensor& logits) { parts.find_statistics(begin, logits); });
    parts.sum_losses(loss.per_sequence);
    return loss;
  }
  // Head and loss run in backward: a chunk's logits become its loss, its gradient and that gradient's products at one
  // go, so that they need not be kept or computed twice. Only W apart from I computes them again.
  loss.seed = tape.record(
      loss.per_sequence, {h.slot()}, {&weight},
      [parts, slot = h.slot(), saved = h.saved(), per_sequence = loss.per_sequence, &weight](Tape& t, Tensor) {
        const Tensor full = parts.whole(saved.get());
        Tensor dh;
        if (t.weights_at_once()) {
          t.add_weight_gradient({&weight}, [&] { dh = parts.input_gradient(full, true); });
        } else {
          dh = parts.input_gradient(full, false);
          t.defer({&weight}, [parts, saved] { parts.weight_gradient(parts.whole(saved.get())); });
        }
        parts.sum_losses(per_sequence);
        t.contribute(slot, std::move(dh));
      });
  return loss;
}

}  // namespace cuboid
