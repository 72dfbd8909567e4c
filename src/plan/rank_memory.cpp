#include "rank_memory.h"

#include <algorithm>
#include <limits>

namespace cuboid::plan {

Elements RankMemory::elements(const Stages& stages, const std::vector<int>& own) const {
  Elements sum;
  for (const int stage : own) {
    sum.dense += stages[stage].parameters;
    sum.expert += stages[stage].expert_parameters;
  }
  const bool first = own.front() == 0;
  const bool last = own.back() + 1 == stages.count();
  if (model_.tied && first && last) sum.dense -= tied_elements();
  return sum;
}

double RankMemory::tied_elements() const {
  return static_cast<double>(model_.vocab * model_.hidden) / run_.grid.degree(Axis::tp);
}

double RankMemory::sharded(const Elements& e, int from_zero) const {
  return e.dense / shards(data_.dense, from_zero) + e.expert / shards(data_.expert, from_zero);
}

MemoryByCause RankMemory::fixed(const Elements& e) const {
  MemoryByCause memory;
  memory.parameters = sharded(e, 3) * stack_.parameter_bytes;
  memory.gradients = sharded(e, 2) * stack_.gradient_bytes;
  memory.optimizer = sharded(e, 1) * stack_.optimizer_bytes;
  memory.communication = stack_.reserved_bytes + gathered_bytes();
  return memory;
}

// ZeRO-3 holds two whole layers: one computes, the next is gathered.
double RankMemory::gathered_bytes() const {
  if (run_.zero < 3) return 0;
  double most = 0;
  for (const BlockPrice& layer : price_.layers) most = std::max(most, layer.parameters + layer.expert_parameters);
  return 2 * most * stack_.parameter_bytes;
}

double RankMemory::peak_activations(const Stages& stages, const std::vector<Span>& spans, double base,
                                    std::vector<MemoryPoint>* timeline) const {
  double held = 0;
  double peak = 0;
  for (const Span& span : spans) {
    if (!computes(span.action.kind)) continue;
    const ActivationBytes& bytes = stages[span.action.stage].bytes;
    const ActionKind kind = span.action.kind;
    if (kind == ActionKind::forward) held += bytes.kept;
    peak = std::max(peak, held + (kind == ActionKind::weight_gradient ? 0 : bytes.temporary));
    if (kind == ActionKind::forward && timeline != nullptr) timeline->push_back({span.begin, base + held});
    if (kind == ActionKind::backward) held -= bytes.kept;
    if (kind == ActionKind::input_gradient) held -= bytes.kept - bytes.kept_for_weights;
    if (kind == ActionKind::weight_gradient) held -= bytes.kept_for_weights;
    if (kind != ActionKind::forward && timeline != nullptr) timeline->push_back({span.end, base + held});
  }
  return peak;
}

void RankMemory::add_least(const Stages& stages, const std::vector<int>& own, const MostHeld& most,
                           StepBound& bound) const {
  double kept = std::numeric_limits<double>::infinity();
  double for_weights = kept;
  double temporary = kept;
  for (const int stage : own) {
    kept = std::min(kept, stages[stage].bytes.kept);
    for_weights = std::min(for_weights, stages[stage].bytes.kept_for_weights);
    temporary = std::min(temporary, stages[stage].bytes.temporary);
  }
  const double base = fixed(elements(stages, own)).total();
  bound.kept_bytes = std::max(bound.kept_bytes, base + most.of_whole.whole * kept);
  const auto bytes = [&](const Held& held) { return base + held.whole * kept + held.for_weights * for_weights; };
  // Behind the one time comes an action with temporary bytes, behind the other perhaps W, which has none.
  bound.memory_bytes = std::max({bound.memory_bytes, bytes(most.of_whole) + temporary, bytes(most.of_weights)});
}

}  // namespace cuboid::plan
