// The operation's gradient against central differences in float64, and what the model says on the meta device.
#include <cmath>
#include <cstdio>
#include <vector>

#include <cuboid/core/random.h>
#include <cuboid/plan/trace.h>

#include "alibi_attention.h"
#include "parallel_alibi.h"

namespace {

using namespace cuboid;

double worst_difference() {
  const Device device;
  // Sizes that differ; this rank's heads are 4 to 7 of 8.
  const example::Alibi shape{.heads = {4, 2, 3}, .first_head = 4, .all_heads = 8};
  const Shape in = {7, 2, (4 + 2 * 2) * 3};
  std::vector<double> x(static_cast<std::size_t>(in.elements()));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = normal_of(1, i);
  const auto tensor = [&](const std::vector<double>& numbers) {
    const Tensor made = device.empty(in, DType::float64);
    std::copy(numbers.begin(), numbers.end(), made.data<double>());
    return made;
  };
  // loss = Σ weight · out, so that the gradient of out is the weights.
  const auto weight = [](std::int64_t i) { return normal_of(2, static_cast<std::uint64_t>(i)); };
  const auto loss = [&](const std::vector<double>& numbers) {
    Tape tape(device, Tape::Mode::forward_only);
    const Tensor y = example::alibi_attention(tape, Tape::constant(tensor(numbers)), shape).value();
    double sum = 0;
    for (std::int64_t i = 0; i < y.elements(); ++i) sum += weight(i) * y.data<double>()[i];
    return sum;
  };
  Tape tape(device);
  const Var input = tape.input(tensor(x));
  const Var y = example::alibi_attention(tape, input, shape);
  const Tensor dy = device.empty(y.shape(), DType::float64);
  for (std::int64_t i = 0; i < dy.elements(); ++i) dy.data<double>()[i] = weight(i);
  tape.backward(y.slot(), dy);
  const Tensor dx = tape.gradient_of(input.slot());

  constexpr double kStep = 1e-5;
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::vector<double> moved = x;
    moved[i] += kStep;
    const double above = loss(moved);
    moved[i] -= 2 * kStep;
    worst = std::max(worst, std::abs((above - loss(moved)) / (2 * kStep) - dx.data<double>()[i]));
  }
  return worst;
}

// FLOPs that the operation told of in one forward pass of a layer, over those of its formula.
double traced_share() {
  const auto model = example::make_parallel_alibi();
  const ModelConfig config = model->tiny();
  register_model(example::make_parallel_alibi(), example::parallel_alibi_configuration());
  const TraceOptions options{.tp = 2, .micro_batch = 3, .seq_len = 10, .dtype = DType::float32};
  double flops = 0;
  for (const TracedEvent& event : trace_model(config, options).layers.front().forward.events) {
    const auto* kernel = std::get_if<TracedKernel>(&event);
    if (kernel && kernel->name == "alibi_attention") flops += kernel->flops;
  }
  return flops / (3.0 * 10 * 11 / 2 * static_cast<double>(config.heads / 2 * config.head_dim) * 4);
}

}  // namespace

int main() {
  const double worst = worst_difference();
  const double share = traced_share();
  std::printf("gradient: largest difference %.2e\ntrace: %.3f of the expected FLOPs\n", worst, share);
  return worst < 1e-8 && std::abs(share - 1) < 1e-12 ? 0 : 1;
}
