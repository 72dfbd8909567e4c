// The operation's gradient against central differences, in float64.
#include <cmath>
#include <cstdio>
#include <vector>

#include <cuboid/core/random.h>

#include "alibi_attention.h"

int main() {
  using namespace cuboid;
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
  std::printf("largest difference %.2e\n", worst);
  return worst < 1e-8 ? 0 : 1;
}
