#include "bubble.h"

namespace cuboid {
namespace {

constexpr std::int64_t kKinds = 4;  // F, B, I, W: the first of ActionKind

}  // namespace

PipelineCosts mean_costs(const std::vector<Span>& spans, int stages, Communicator& world, const Device& device) {
  // Sums of seconds, then counts.
  const Tensor sums = device.zeros({2, stages, kKinds}, DType::float64, Category::workspace);
  double* seconds = sums.data<double>();
  double* counts = seconds + stages * kKinds;
  for (const Span& span : spans) {
    if (!computes(span.action.kind)) continue;
    const std::int64_t i = span.action.stage * kKinds + static_cast<std::int64_t>(span.action.kind);
    seconds[i] += span.end - span.begin;
    counts[i] += 1;
  }
  all_reduce_in_place(world, sums);
  const auto mean = [&](int stage, ActionKind kind) {
    const std::int64_t i = stage * kKinds + static_cast<std::int64_t>(kind);
    return counts[i] > 0 ? seconds[i] / counts[i] : 0;
  };
  PipelineCosts costs;
  costs.stages.clear();
  for (int stage = 0; stage < stages; ++stage) {
    costs.stages.push_back({.forward = mean(stage, ActionKind::forward),
                            .backward = mean(stage, ActionKind::backward),
                            .input_gradient = mean(stage, ActionKind::input_gradient),
                            .weight_gradient = mean(stage, ActionKind::weight_gradient)});
  }
  return costs;
}

double BubbleMeter::schedule_bubble(const std::vector<Span>& spans, Communicator& world, const Device& device) const {
  const PipelineCosts costs = mean_costs(spans, schedule_.stages, world, device);
  return world.rank() == 0 ? simulate(schedule_, costs).bubble_fraction : 0;
}

}  // namespace cuboid
