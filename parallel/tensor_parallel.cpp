#include "cuboid/parallel/tensor_parallel.h"

#include <algorithm>

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
  auto backward = [tp, slot = x.slot(), saved = x.saved(), &weight, bias](Tape& t, Tensor dy) {
    const Device& device = t.device();
    if (slot.wanted()) {
      const Tensor dx = with_columns(device, dy, weight.value.dim(1));
      kernels::matmul(device, dy, weight.value, dx);
      t.contribute(slot, reduce_partial(device, tp, dx));
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
  const Tensor partial = with_columns(tape.device(), x.value(), weight.value.dim(0));
  kernels::matmul(tape.device(), x.value(), weight.value, partial, {.transpose_b = true});
  Tensor y = reduce_partial(tape.device(), tp, partial);
  Var product = tape.record(
      std::move(y), {x.slot()}, {&weight}, [tp, slot = x.slot(), saved = x.saved(), &weight](Tape& t, Tensor dy) {
        const Device& device = t.device();
        const Tensor full = tp.splits_sequence() ? gather_sequence(device, tp, dy) : dy;
        if (slot.wanted()) {
          const Tensor dx = with_columns(device, full, weight.value.dim(1));
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
  Tensor y = reduce_partial(device, tp, partial);
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

  // f(first row, rows, logits (rows,V/tp)) for each chunk of h (N,C).
  template <typename F>
  void for_chunks(const Tensor& h, F&& visit) const {
    const std::int64_t n = targets.dim(0);
    const std::int64_t columns = h.elements() / n;
    const Tensor rows_of_h = h.reshape({n, columns});
    for (std::int64_t begin = 0; begin < n; begin += chunk_rows()) {
      const std::int64_t rows = std::min(chunk_rows(), n - begin);
      const Tensor part = rows_of_h.narrow(begin, rows);
      const Tensor logits = device.empty({rows, weight->value.dim(0)}, h.dtype(), Category::workspace);
      kernels::matmul(device, part, weight->value, logits, {.transpose_b = true});
      visit(begin, part, logits);
    }
  }

  void find_statistics(std::int64_t begin, const Tensor& logits) const {
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

  // Logits become their gradient. @pre find_statistics of the chunk
  void differentiate(std::int64_t begin, const Tensor& logits) const {
    const std::int64_t rows = logits.dim(0);
    kernels::cross_entropy_gradient(device, logits, targets.narrow(begin, rows), first_row, statistic(0, begin, rows),
                                    statistic(1, begin, rows), factor);
  }

  void sum_losses(const Tensor& per_sequence) const {
    const std::int64_t n = targets.dim(0);
    kernels::cross_entropy_loss(device, statistic(0, 0, n), statistic(1, 0, n), statistic(2, 0, n), targets,
                                per_sequence);
  }

  void add_weight_gradient(const Tensor& dlogits, const Tensor& part) const {
    kernels::matmul(device, dlogits, part, weight->gradient, {.transpose_a = true, .accumulate = true});
  }

  Tensor whole(const Tensor& h) const { return tp.splits_sequence() ? gather_sequence(device, tp, h) : h; }

  // Loss and gradient of h; with `weights` also the weight gradient, at one go.
  Tensor input_gradient(const Tensor& h, bool weights) const {
    const Tensor dh = device.empty(h.shape(), h.dtype());
    const Tensor rows = dh.reshape({h.shape().rows(), h.shape()[-1]});
    for_chunks(h, [&](std::int64_t begin, const Tensor& part, const Tensor& logits) {
      find_statistics(begin, logits);
      differentiate(begin, logits);
      kernels::matmul(device, logits, weight->value, rows.narrow(begin, logits.dim(0)));
      if (weights) add_weight_gradient(logits, part);
    });
    return tp.size() > 1 ? reduce_partial(device, tp, dh) : dh;
  }

  // The weight gradient alone. @pre input_gradient has found the statistics
  void weight_gradient(const Tensor& h) const {
    for_chunks(h, [&](std::int64_t begin, const Tensor& part, const Tensor& logits) {
      differentiate(begin, logits);
      add_weight_gradient(logits, part);
    });
  }
};

}  // namespace

Loss vocabulary_parallel_linear_cross_entropy(Tape& tape, const TensorParallel& tp, const Var& h, Parameter& weight,
                                              const Tensor& targets, std::int64_t first_row, double factor) {
  const Device& device = tape.device();
  const std::int64_t n = targets.elements();
  const DType statistics_type = h.value().dtype() == DType::float64 ? DType::float64 : DType::float32;
  ChunkedLoss parts{device,         tp,        &weight, targets.reshape({n}),
                    targets.dim(1), first_row, factor,  device.empty({3, n}, statistics_type)};
  Loss loss;
  loss.per_sequence = device.empty({targets.dim(1)}, DType::float64);
  if (!tape.recording()) {
    parts.for_chunks(parts.whole(h.value()), [&](std::int64_t begin, const Tensor&, const Tensor& logits) {
      parts.find_statistics(begin, logits);
    });
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
