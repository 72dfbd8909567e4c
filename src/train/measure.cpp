#include "cuboid/train/measure.h"

#include <algorithm>

#include "cuboid/core/random.h"
#include "cuboid/kernels/kernels.h"
#include "cuboid/runtime/stopwatch.h"

namespace cuboid {
namespace {

constexpr double kEnoughSeconds = 1e-3;
constexpr double kMostInARow = 1000;

Tensor random_matrix(const Device& device, DType dtype, std::int64_t rows, std::int64_t columns, std::uint64_t key) {
  constexpr std::int64_t kPeriod = 4099;  // a prime: no two rows alike
  const Tensor numbers = device.host().empty({rows, columns}, DType::float32, Category::workspace);
  auto* const values = numbers.data<float>();
  for (std::int64_t i = 0; i < std::min(kPeriod, numbers.elements()); ++i) {
    values[i] = static_cast<float>(normal_of(key, static_cast<std::uint64_t>(i)));
  }
  for (std::int64_t i = kPeriod; i < numbers.elements(); ++i) values[i] = values[i - kPeriod];
  const Tensor made = device.empty({rows, columns}, dtype, Category::workspace);
  kernels::convert(device, values, made);
  device.synchronize();  // before the host's numbers go
  return made;
}

const char* kind_of(const Action& action) {
  switch (action.kind) {
    case ActionKind::forward:
      return "F";
    case ActionKind::backward:
      return "B";
    case ActionKind::input_gradient:
      return "I";
    case ActionKind::weight_gradient:
      return "W";
    case ActionKind::step:
      return "step";
    default:
      return "communication";
  }
}

}  // namespace

std::map<std::string, double> seconds_by_kind(const std::vector<Span>& spans) {
  std::map<std::string, double> seconds;
  for (const Span& span : spans) seconds[kind_of(span.action)] += span.end - span.begin;
  return seconds;
}

TimedProduct::TimedProduct(const Device& device, DType dtype, std::int64_t m, std::int64_t n, std::int64_t k)
    : device_(device),
      a_(random_matrix(device, dtype, m, k, 1)),
      b_(random_matrix(device, dtype, k, n, 2)),
      c_(device.zeros({m, n}, dtype, Category::workspace)) {
  multiply();
  device_.synchronize();
}

double TimedProduct::flops() const {
  return 2.0 * static_cast<double>(c_.elements()) * static_cast<double>(a_.dim(1));
}

void TimedProduct::multiply() const {
  kernels::matmul(device_, a_, b_, c_);
}

int TimedProduct::enough() const {
  if (device_.kind() == DeviceKind::cpu) return 1;
  return static_cast<int>(std::clamp(kEnoughSeconds / std::max(seconds(1), 1e-9), 1.0, kMostInARow));
}

double TimedProduct::seconds(int in_a_row) const {
  Stopwatch watch(device_, 2);
  watch.lap();
  for (int i = 0; i < in_a_row; ++i) multiply();
  watch.lap();
  return watch.seconds().front() / in_a_row;
}

}  // namespace cuboid
