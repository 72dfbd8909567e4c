#include "cuboid/ops/tape.h"

#include <utility>

#include "cuboid/kernels/kernels.h"

namespace cuboid {

Var Tape::input(Tensor value) {
  if (!recording()) return constant(std::move(value));
  gradients_.emplace_back();
  return {std::move(value), Slot{static_cast<int>(gradients_.size()) - 1}};
}

Var Tape::record(Tensor value, std::initializer_list<Slot> inputs, std::initializer_list<Parameter*> uses,
                 Backward backward) {
  if (!recording()) return constant(std::move(value));
  bool flows = uses.size() > 0;
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

void Tape::defer(std::initializer_list<Parameter*> parameters, std::function<void()> weight_gradient) {
  deferred_.push_back({parameters, std::move(weight_gradient)});
}

void Tape::run_deferred() {
  // By index and moved out: each closure frees what it holds as soon as it has run.
  for (auto& queued : deferred_) {
    const Deferred work = std::move(queued);
    if (before_) {
      for (Parameter* p : work.parameters) before_(*p);
    }
    work.run();
    for (Parameter* p : work.parameters) {
      if (--remaining_uses_[p] == 0 && complete_) complete_(*p);
    }
  }
  deferred_.clear();
}

void Tape::walk(Slot output, Tensor gradient, bool weights_at_once) {
  contribute(output, std::move(gradient));
  while (!nodes_.empty()) {
    const Node node = std::move(nodes_.back());
    nodes_.pop_back();
    Tensor dy = std::exchange(gradients_[static_cast<std::size_t>(node.output.id)], Tensor());
    CUBOID_CHECK(dy.defined(), "an operation's output has no gradient: its result was not used");
    node.backward(*this, std::move(dy));
    if (weights_at_once) run_deferred();
  }
}

void Tape::backward(Slot output, Tensor gradient) {
  walk(output, std::move(gradient), true);
}
void Tape::input_gradient(Slot output, Tensor gradient) {
  walk(output, std::move(gradient), false);
}
void Tape::weight_gradient() {
  run_deferred();
}

Tensor Tape::gradient_of(Slot input) {
  CUBOID_CHECK(input.wanted(), "not an input of this tape");
  return std::exchange(gradients_[static_cast<std::size_t>(input.id)], Tensor());
}

}  // namespace cuboid
