#include "cuboid/ops/tape.h"

#include <utility>

#include "cuboid/kernels/kernels.h"

namespace cuboid {

Var Tape::input(Tensor value) {
  if (!recording()) return constant(std::move(value));
  gradients_.emplace_back();
  return {std::move(value), Slot{static_cast<int>(gradients_.size()) - 1}};
}

Var Tape::record(Tensor value, std::initializer_list<Slot> inputs, const std::vector<Parameter*>& uses,
                 Backward backward) {
  if (!recording()) return constant(std::move(value));
  bool flows = !uses.empty();
  for (const Slot x : inputs) flows = flows || x.wanted();
  if (!flows) return constant(std::move(value));
  for (Parameter* p : uses) ++remaining_uses_[p];
  Var output = input(std::move(value));
  nodes_.push_back({output.slot(), std::move(backward)});
  return output;
}

void Tape::contribute(Slot slot, Tensor gradient) {
  if (!slot.wanted()) return;
  Tensor& sum = gradients_[static_cast<std::size_t>(slot.id)];
  if (!sum.defined()) {
    sum = std::move(gradient);
    return;
  }
  // Two uses of a value: add into whichever tensor nobody else reads (a deferred weight gradient may hold either).
  Tensor target = sum.unique() ? sum : gradient.unique() ? gradient : device_.empty(sum.shape(), sum.dtype());
  kernels::add(device_, sum, gradient, target);
  sum = std::move(target);
}

void Tape::defer(std::vector<Parameter*> parameters, std::function<void()> weight_gradient) {
  deferred_.push_back({std::move(parameters), std::move(weight_gradient)});
}

void Tape::run_weight_gradient(const std::vector<Parameter*>& parameters, const std::function<void()>& run) {
  const PhaseScope scope(device_, TracedPhase::weight_gradient);
  if (before_) {
    for (Parameter* p : parameters) before_(*p);
  }
  run();
  for (Parameter* p : parameters) {
    if (--remaining_uses_[p] == 0 && complete_) complete_(*p);
  }
}

void Tape::add_weight_gradient(const std::vector<Parameter*>& parameters, const std::function<void()>& add) {
  CUBOID_CHECK(weights_at_once_, "weight gradients are deferred");
  run_weight_gradient(parameters, add);
}

void Tape::run_deferred() {
  // Moved out one by one: each closure frees what it holds as soon as it has run.
  for (auto& queued : deferred_) {
    const Deferred work = std::move(queued);
    run_weight_gradient(work.parameters, work.run);
  }
  deferred_.clear();
}

void Tape::walk(Slot output, Tensor gradient) {
  const PhaseScope scope(device_, TracedPhase::input_gradient);
  contribute(output, std::move(gradient));
  while (!nodes_.empty()) {
    const Node node = std::move(nodes_.back());
    nodes_.pop_back();
    Tensor dy = std::exchange(gradients_[static_cast<std::size_t>(node.output.id)], Tensor());
    CUBOID_CHECK(dy.defined(), "an operation's output has no gradient: its result was not used");
    node.backward(*this, std::move(dy));
    if (weights_at_once_) run_deferred();
  }
}

void Tape::backward(Slot output, Tensor gradient) {
  weights_at_once_ = true;
  walk(output, std::move(gradient));
}

void Tape::input_gradient(Slot output, Tensor gradient) {
  weights_at_once_ = false;
  walk(output, std::move(gradient));
}

void Tape::weight_gradient() {
  run_deferred();
}

std::unique_ptr<Tape> Tape::nested(Mode mode) const {
  auto made = std::make_unique<Tape>(device_, mode);
  made->observe(complete_, before_);
  return made;
}

Tensor Tape::gradient_of(Slot input) {
  CUBOID_CHECK(input.wanted(), "not an input of this tape");
  return std::exchange(gradients_[static_cast<std::size_t>(input.id)], Tensor());
}

}  // namespace cuboid
