#include "cuboid/parallel/context_parallel.h"

#include "sequence.h"

namespace cuboid {
namespace {

/// Keys and values, or their gradients, in one tensor (2B,K,·,D): one message.
struct KeysValues {
  Tensor both;
  Tensor keys() const { return both.narrow(0, both.dim(0) / 2); }
  Tensor values() const { return both.narrow(both.dim(0) / 2, both.dim(0) / 2); }
};

Shape with_rows(const Shape& shape, std::int64_t rows) {
  Shape changed = shape;
  changed[2] = rows;
  return changed;
}

// (R,2B,K,T/R,D)
Tensor room_for_parts(const Device& device, const ContextParallel& cp, const Shape& part, DType dtype) {
  return device.empty({cp.size(), part[0], part[1], part[2], part[3]}, dtype, Category::communication);
}

// Every rank's part → the whole sequence.
KeysValues gathered(const Device& device, const ContextParallel& cp, const KeysValues& own) {
  const Shape& part = own.both.shape();
  const Tensor parts = room_for_parts(device, cp, part, own.both.dtype());
  cp.comm->all_gather(own.both, parts).wait();
  const Tensor whole = device.empty(with_rows(part, cp.size() * part[2]), own.both.dtype());
  kernels::join_sequence(device, parts, whole);
  return {whole};
}

// Partial sums of the whole sequence → this rank's part of the sum.
KeysValues scattered(const Device& device, const ContextParallel& cp, KeysValues partial, DType dtype) {
  const Shape part = with_rows(partial.both.shape(), partial.both.dim(2) / cp.size());
  const Tensor parts = room_for_parts(device, cp, part, partial.both.dtype());
  kernels::cut_sequence(device, partial.both, parts);
  const Tensor sum = device.empty(part, parts.dtype());
  partial.both = Tensor();
  cp.comm->reduce_scatter(parts, sum, ReduceOp::sum).wait();
  return {rounded(device, sum, dtype)};
}

}  // namespace

Var context_parallel_attention(Tape& tape, const ContextParallel& cp, const Var& qkv, const ops::AttentionShape& shape,
                               const ops::RopeTables& rope, const kernels::Dropout& mask) {
  if (cp.size() == 1) return ops::attention(tape, qkv, shape, rope.cos, rope.sin, mask);
  const Device& device = tape.device();
  const std::int64_t rows = qkv.shape()[0];
  const std::int64_t batch = qkv.shape()[1];
  const DType dtype = qkv.value().dtype();
  const Tensor q = device.empty({batch, shape.heads, rows, shape.head_dim}, dtype);  // (B,H,T/cp,D)
  const KeysValues own{device.empty({2 * batch, shape.kv_heads, rows, shape.head_dim}, dtype)};
  kernels::split_heads(device, qkv.value(), rope.cos, rope.sin, q, own.keys(), own.values());
  const Tensor out = device.empty({rows, batch, shape.heads * shape.head_dim}, dtype);   // (T/cp,B,H*D)
  const Tensor log_sum = device.empty({batch, shape.heads, rows}, compute_type(dtype));  // (B,H,T/cp)
  const kernels::Causal causal{shape.window, cp.part(cp.size() * rows)};
  {
    const KeysValues all = gathered(device, cp, own);  // (B,K,T,D) each
    kernels::attention(device, q, all.keys(), all.values(), mask, out, log_sum, causal);
  }
  return tape.record(
      out, {qkv.slot()}, {},
      [=, slot = qkv.slot(), qkv_shape = qkv.shape(), cos = rope.cos, sin = rope.sin](Tape& t, Tensor dout) {
        const Device& on = t.device();
        KeysValues all = gathered(on, cp, own);
        const Tensor dq = on.empty(q.shape(), dtype);
        KeysValues partial{on.empty(all.both.shape(), partial_type(dtype, cp.reduce_dtype))};
        kernels::attention_gradient(on, dout, q, all.keys(), all.values(), out, log_sum, mask, dq, partial.keys(),
                                    partial.values(), causal);
        all.both = Tensor();
        const KeysValues sum = scattered(on, cp, std::move(partial), dtype);
        const Tensor dqkv = on.empty(qkv_shape, dtype);
        kernels::split_heads_gradient(on, dq, sum.keys(), sum.values(), cos, sin, dqkv);
        t.contribute(slot, dqkv);
      });
}

}  // namespace cuboid
