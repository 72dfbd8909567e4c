#include "cuboid/ops/ops.h"

#include <cmath>

namespace cuboid::ops {
namespace {

Shape with_last(const Shape& shape, std::int64_t last) {
  Shape changed = shape;
  changed[-1] = last;
  return changed;
}

Tensor like(Tape& tape, const Tensor& t) {
  return tape.device().empty(t.shape(), t.dtype());
}

// One number a row.
Tensor statistics(const Device& device, const Tensor& x, Category category = Category::activations) {
  return device.empty({x.shape().rows()}, compute_type(x.dtype()), category);
}

}  // namespace

Var linear(Tape& tape, const Var& x, Parameter& weight, Parameter* bias) {
  const Device& device = tape.device();
  const Tensor y = device.empty(with_last(x.shape(), weight.value.dim(0)), x.value().dtype());
  kernels::matmul(device, x.value(), weight.value, y, {.transpose_b = true}, bias ? bias->value : Tensor());
  auto backward = [slot = x.slot(), saved = x.saved(), &weight, bias](Tape& t, Tensor dy) {
    if (slot.wanted()) {
      const Tensor dx = t.device().empty(with_last(dy.shape(), weight.value.dim(1)), dy.dtype());
      kernels::matmul(t.device(), dy, weight.value, dx);
      t.contribute(slot, dx);
    }
    t.defer({&weight}, [device = t.device(), saved, dy, &weight] {
      kernels::matmul(device, dy, saved.get(), weight.gradient, {.transpose_a = true, .accumulate = true});
    });
    if (bias) {
      t.defer({bias}, [device = t.device(), dy, bias] { kernels::add_column_sum(device, dy, bias->gradient); });
    }
  };
  if (bias) return tape.record(y, {x.slot()}, {&weight, bias}, std::move(backward));
  return tape.record(y, {x.slot()}, {&weight}, std::move(backward));
}

Var layer_norm(Tape& tape, const Var& x, Parameter& weight, Parameter& bias, double eps) {
  const Device& device = tape.device();
  const Tensor y = like(tape, x.value());
  const Tensor mean = statistics(device, x.value());
  const Tensor rstd = statistics(device, x.value());
  kernels::layer_norm(device, x.value(), weight.value, bias.value, eps, y, mean, rstd);
  Var result =
      tape.record(y, {x.slot()}, {&weight, &bias},
                  [slot = x.slot(), x = x.value(), mean, rstd, &weight, &bias](Tape& t, Tensor dy) {
                    if (slot.wanted()) {
                      const Tensor dx = like(t, x);
                      kernels::layer_norm_input_gradient(t.device(), dy, x, weight.value, mean, rstd, dx);
                      t.contribute(slot, dx);
                    }
                    t.defer({&weight, &bias}, [device = t.device(), x, dy, mean, rstd, &weight, &bias] {
                      kernels::layer_norm_weight_gradient(device, dy, x, mean, rstd, weight.gradient, bias.gradient);
                    });
                  });
  if (!tape.recomputes_cheap()) return result;
  return result.recomputed_by([device, x = x.value(), &weight, &bias, eps] {
    const PhaseScope scope(device, TracedPhase::recompute);
    const Tensor again = device.empty(x.shape(), x.dtype());
    kernels::layer_norm(device, x, weight.value, bias.value, eps, again, statistics(device, x, Category::workspace),
                        statistics(device, x, Category::workspace));
    return again;
  });
}

Var rms_norm(Tape& tape, const Var& x, Parameter& weight, double eps, double offset) {
  const Device& device = tape.device();
  const Tensor y = like(tape, x.value());
  const Tensor rstd = statistics(device, x.value());
  kernels::rms_norm(device, x.value(), weight.value, offset, eps, y, rstd);
  Var result = tape.record(y, {x.slot()}, {&weight},
                           [slot = x.slot(), x = x.value(), rstd, &weight, offset](Tape& t, Tensor dy) {
                             if (slot.wanted()) {
                               const Tensor dx = like(t, x);
                               kernels::rms_norm_input_gradient(t.device(), dy, x, weight.value, offset, rstd, dx);
                               t.contribute(slot, dx);
                             }
                             t.defer({&weight}, [device = t.device(), x, dy, rstd, &weight] {
                               kernels::rms_norm_weight_gradient(device, dy, x, rstd, weight.gradient);
                             });
                           });
  if (!tape.recomputes_cheap()) return result;
  return result.recomputed_by([device, x = x.value(), &weight, eps, offset] {
    const PhaseScope scope(device, TracedPhase::recompute);
    const Tensor again = device.empty(x.shape(), x.dtype());
    kernels::rms_norm(device, x, weight.value, offset, eps, again, statistics(device, x, Category::workspace));
    return again;
  });
}

Var rms_norm_heads(Tape& tape, const Var& qkv, const AttentionShape& shape, Parameter& q_weight, Parameter& k_weight,
                   double eps) {
  const Device& device = tape.device();
  const std::int64_t heads = shape.heads;
  const std::int64_t kv_heads = shape.kv_heads;
  const Shape statistics_shape = {heads + kv_heads, qkv.shape().rows()};
  const Tensor y = like(tape, qkv.value());
  const Tensor rstd = device.empty(statistics_shape, compute_type(y.dtype()));
  kernels::rms_norm_heads(device, qkv.value(), q_weight.value, k_weight.value, eps, heads, kv_heads, y, rstd);
  return tape.record(y, {qkv.slot()}, {&q_weight, &k_weight},
                     [=, slot = qkv.slot(), x = qkv.value(), &q_weight, &k_weight](Tape& t, Tensor dy) {
                       if (slot.wanted()) {
                         const Tensor dx = like(t, x);
                         kernels::rms_norm_heads_input_gradient(t.device(), dy, x, q_weight.value, k_weight.value, rstd,
                                                                heads, kv_heads, dx);
                         t.contribute(slot, dx);
                       }
                       t.defer({&q_weight, &k_weight}, [=, device = t.device(), &q_weight, &k_weight] {
                         kernels::rms_norm_heads_weight_gradient(device, dy, x, rstd, heads, kv_heads,
                                                                 q_weight.gradient, k_weight.gradient);
                       });
                     });
}

Var gelu(Tape& tape, const Var& x) {
  const Tensor y = like(tape, x.value());
  kernels::gelu(tape.device(), x.value(), y);
  Var result = tape.record(y, {x.slot()}, {}, [slot = x.slot(), x = x.value()](Tape& t, Tensor dy) {
    Tensor dx = dy.unique() ? dy : like(t, dy);
    kernels::gelu_gradient(t.device(), dy, x, dx);
    dy = Tensor();
    t.contribute(slot, std::move(dx));
  });
  if (!tape.recomputes_cheap()) return result;
  return result.recomputed_by([device = tape.device(), x = x.value()] {
    const PhaseScope scope(device, TracedPhase::recompute);
    const Tensor again = device.empty(x.shape(), x.dtype());
    kernels::gelu(device, x, again);
    return again;
  });
}

namespace {

using GatedKernel = void (*)(const Device&, const Tensor&, const Tensor&);
using GatedGradient = void (*)(const Device&, const Tensor&, const Tensor&, const Tensor&);

// (…,2F) gate | up → (…,F) by a pair of kernels.
Var gated(Tape& tape, const Var& gate_up, GatedKernel kernel, GatedGradient gradient) {
  const Tensor y = tape.device().empty(with_last(gate_up.shape(), gate_up.shape()[-1] / 2), gate_up.value().dtype());
  kernel(tape.device(), gate_up.value(), y);
  Var result =
      tape.record(y, {gate_up.slot()}, {}, [slot = gate_up.slot(), x = gate_up.value(), gradient](Tape& t, Tensor dy) {
        const Tensor dx = like(t, x);
        gradient(t.device(), dy, x, dx);
        t.contribute(slot, dx);
      });
  if (!tape.recomputes_cheap()) return result;
  return result.recomputed_by([device = tape.device(), x = gate_up.value(), shape = y.shape(), kernel] {
    const PhaseScope scope(device, TracedPhase::recompute);
    const Tensor again = device.empty(shape, x.dtype());
    kernel(device, x, again);
    return again;
  });
}

}  // namespace

Var swiglu(Tape& tape, const Var& gate_up) {
  return gated(tape, gate_up, kernels::swiglu, kernels::swiglu_gradient);
}

Var geglu(Tape& tape, const Var& gate_up) {
  return gated(tape, gate_up, kernels::geglu, kernels::geglu_gradient);
}

Var scale(Tape& tape, const Var& x, double factor) {
  const Tensor y = tape.device().clone(x.value());
  kernels::scale(tape.device(), y, factor);
  return tape.record(y, {x.slot()}, {}, [slot = x.slot(), factor](Tape& t, Tensor dy) {
    Tensor dx = dy.unique() ? std::move(dy) : t.device().clone(dy);
    kernels::scale(t.device(), dx, factor);
    t.contribute(slot, std::move(dx));
  });
}

Var add(Tape& tape, const Var& a, const Var& b) {
  const Tensor y = like(tape, a.value());
  kernels::add(tape.device(), a.value(), b.value(), y);
  return tape.record(y, {a.slot(), b.slot()}, {}, [a = a.slot(), b = b.slot()](Tape& t, Tensor dy) {
    t.contribute(a, dy);
    t.contribute(b, std::move(dy));
  });
}

Var dropout(Tape& tape, const Var& x, const kernels::Dropout& mask) {
  if (mask.p == 0) return x;
  const Tensor y = like(tape, x.value());
  kernels::dropout(tape.device(), x.value(), mask, y);
  return tape.record(y, {x.slot()}, {}, [slot = x.slot(), mask](Tape& t, Tensor dy) {
    Tensor dx = dy.unique() ? dy : like(t, dy);
    kernels::dropout(t.device(), dy, mask, dx);
    dy = Tensor();
    t.contribute(slot, std::move(dx));
  });
}

Var dropout_add(Tape& tape, const Var& x, const Var& residual, const kernels::Dropout& mask) {
  if (mask.p == 0) return add(tape, x, residual);
  const Tensor y = like(tape, x.value());
  kernels::dropout_add(tape.device(), x.value(), residual.value(), mask, y);
  return tape.record(y, {x.slot(), residual.slot()}, {},
                     [x = x.slot(), residual = residual.slot(), mask](Tape& t, Tensor dy) {
                       if (x.wanted()) {
                         const Tensor dx = like(t, dy);
                         kernels::dropout(t.device(), dy, mask, dx);
                         t.contribute(x, dx);
                       }
                       t.contribute(residual, std::move(dy));
                     });
}

Var add_bias(Tape& tape, Var x, Parameter& bias) {
  const Tensor y = x.value().unique() ? x.value() : like(tape, x.value());
  kernels::add_bias(tape.device(), x.value(), bias.value, y);
  return tape.record(y, {x.slot()}, {&bias}, [slot = x.slot(), &bias](Tape& t, Tensor dy) {
    t.defer({&bias}, [device = t.device(), dy, &bias] { kernels::add_column_sum(device, dy, bias.gradient); });
    t.contribute(slot, std::move(dy));
  });
}

Var attention(Tape& tape, const Var& qkv, const AttentionShape& shape, const Tensor& cos, const Tensor& sin,
              const kernels::Dropout& mask) {
  const Device& device = tape.device();
  const std::int64_t length = qkv.shape()[0];
  const std::int64_t batch = qkv.shape()[1];
  const DType dtype = qkv.value().dtype();
  const Tensor q = device.empty({batch, shape.heads, length, shape.head_dim}, dtype);     // (B,H,T,D)
  const Tensor k = device.empty({batch, shape.kv_heads, length, shape.head_dim}, dtype);  // (B,K,T,D)
  const Tensor v = device.empty({batch, shape.kv_heads, length, shape.head_dim}, dtype);  // (B,K,T,D)
  kernels::split_heads(device, qkv.value(), cos, sin, q, k, v);
  const Tensor out = device.empty({length, batch, shape.heads * shape.head_dim}, dtype);   // (T,B,H*D)
  const Tensor log_sum = device.empty({batch, shape.heads, length}, compute_type(dtype));  // (B,H,T)
  kernels::attention(device, q, k, v, mask, out, log_sum, {.window = shape.window});
  // Only the shape of qkv is needed afterwards: q, k and v hold its rotated values.
  return tape.record(out, {qkv.slot()}, {},
                     [=, slot = qkv.slot(), qkv_shape = qkv.shape(), window = shape.window](Tape& t, Tensor dout) {
                       const Tensor dq = like(t, q);
                       const Tensor dk = like(t, k);
                       const Tensor dv = like(t, v);
                       kernels::attention_gradient(t.device(), dout, q, k, v, out, log_sum, mask, dq, dk, dv,
                                                   {.window = window});
                       const Tensor dqkv = t.device().empty(qkv_shape, dout.dtype());
                       kernels::split_heads_gradient(t.device(), dq, dk, dv, cos, sin, dqkv);
                       t.contribute(slot, dqkv);
                     });
}

Var embedding(Tape& tape, const Tensor& tokens, Parameter& table, std::int64_t first_row) {
  const Tensor y = tape.device().empty({tokens.dim(0), tokens.dim(1), table.value.dim(1)}, table.value.dtype());
  kernels::embedding(tape.device(), tokens, table.value, first_row, y);
  return tape.record(y, {}, {&table}, [tokens, &table, first_row](Tape& t, Tensor dy) {
    t.defer({&table}, [device = t.device(), tokens, dy, &table, first_row] {
      kernels::embedding_gradient(device, tokens, dy, first_row, table.gradient);
    });
  });
}

Var add_positions(Tape& tape, const Var& x, Parameter& table, const SequencePart& rows) {
  const Tensor y = tape.device().clone(x.value());
  kernels::add_positions(tape.device(), y, table.value, rows);
  return tape.record(y, {x.slot()}, {&table}, [slot = x.slot(), &table, rows](Tape& t, Tensor dy) {
    t.defer({&table}, [device = t.device(), dy, &table, rows] {
      kernels::add_positions_gradient(device, dy, rows, table.gradient);
    });
    t.contribute(slot, std::move(dy));
  });
}

Var recompute(Tape& tape, const Var& x, std::function<Var(Tape&, const Var&)> part) {
  Tensor y;
  {
    const auto first = tape.nested(Tape::Mode::forward_only);
    y = part(*first, Tape::constant(x.value())).value();
  }
  return tape.record(std::move(y), {x.slot()}, {}, [slot = x.slot(), x = x.value(), part](Tape& t, Tensor dy) {
    const std::shared_ptr<Tape> again = t.nested(Tape::Mode::record);
    const Var input = again->input(x);
    Slot output;
    {
      const PhaseScope scope(t.device(), TracedPhase::recompute);
      output = part(*again, input).slot();
    }
    if (t.weights_at_once()) {
      again->backward(output, std::move(dy));
    } else {
      again->input_gradient(output, std::move(dy));
      t.defer({}, [again] { again->weight_gradient(); });
    }
    t.contribute(slot, again->gradient_of(input.slot()));
  });
}

RopeTables rope_tables(const Device& device, const std::vector<double>& frequencies, const SequencePart& rows,
                       std::int64_t length, DType dtype) {
  const auto pairs = static_cast<std::int64_t>(frequencies.size());
  if (device.kind() == DeviceKind::meta) {
    return {device.empty({length, pairs}, dtype, Category::workspace),
            device.empty({length, pairs}, dtype, Category::workspace)};
  }
  const Device host = device.host();
  RopeTables tables{host.empty({length, pairs}, dtype, Category::workspace),
                    host.empty({length, pairs}, dtype, Category::workspace)};
  const auto fill = [&]<typename T>(T* cos, T* sin) {
    for (std::int64_t t = 0; t < length; ++t) {
      for (std::int64_t j = 0; j < pairs; ++j) {
        const double angle = static_cast<double>(rows.position(t)) * frequencies[static_cast<std::size_t>(j)];
        cos[t * pairs + j] = static_cast<T>(std::cos(angle));
        sin[t * pairs + j] = static_cast<T>(std::sin(angle));
      }
    }
  };
  if (dtype == DType::float64) {
    fill(tables.cos.data<double>(), tables.sin.data<double>());
  } else {
    fill(tables.cos.data<float>(), tables.sin.data<float>());
  }
  return {device.to_device(tables.cos, Category::workspace), device.to_device(tables.sin, Category::workspace)};
}

}  // namespace cuboid::ops
