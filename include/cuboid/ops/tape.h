// Reverse-mode differentiation for one micro-batch of one pipeline stage. Operations record what their gradient needs;
// backward then runs whole (B), or in two halves (I: input gradients, W: weight gradients), because every weight
// gradient is a closure of its own that can be run later. That is what zero-bubble schedules ask for.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cuboid/runtime/device.h"
#include "cuboid/value/parameter_table.h"
#include "cuboid/value/run_config.h"

namespace cuboid {

/// This rank's shard of a parameter and of its gradient. Gradients add up over micro-batches; whoever owns the step
/// zeroes them.
struct Parameter {
  const ParameterInfo* info = nullptr;
  Tensor value;
  Tensor gradient;
};

/// Where the gradient of a value is collected. Backward closures hold slots, not values, so that a tensor that no
/// gradient needs is freed as soon as forward is past it.
struct Slot {
  int id = -1;  ///< -1: no gradient is wanted (data, and everything computed from data alone)
  bool wanted() const { return id >= 0; }
};

/// A tensor kept for a weight gradient: itself, or the recipe to compute it again when it is needed.
class Saved {
 public:
  Saved(Tensor tensor) : tensor_(std::move(tensor)) {}
  Saved(std::function<Tensor()> recipe) : recipe_(std::move(recipe)) {}
  Tensor get() const { return recipe_ ? recipe_() : tensor_; }

 private:
  Tensor tensor_;
  std::function<Tensor()> recipe_;
};

/// A value computed by an operation: the tensor and its gradient's slot.
class Var {
 public:
  Var() = default;
  const Tensor& value() const { return value_; }
  const Shape& shape() const { return value_.shape(); }
  Slot slot() const { return slot_; }
  /// What a later operation should hold for its weight gradient in place of the value.
  Saved saved() const { return recipe_ ? Saved(recipe_) : Saved(value_); }
  /// The same value, which later operations recompute instead of holding. @pre the recipe gives the value's very bits
  Var recomputed_by(std::function<Tensor()> recipe) const {
    Var changed = *this;
    changed.recipe_ = std::move(recipe);
    return changed;
  }

 private:
  friend class Tape;
  Var(Tensor value, Slot slot) : value_(std::move(value)), slot_(slot) {}
  Tensor value_;
  Slot slot_;
  std::function<Tensor()> recipe_;
};

class Tape {
 public:
  enum class Mode {
    record,        ///< training: keep what backward needs
    forward_only,  ///< evaluation: keep nothing
  };
  /// Told about a parameter's gradient on this tape.
  using Observer = std::function<void(Parameter&)>;
  /// Gets the gradient of the operation's output; passes on those of its inputs with contribute() and its weight
  /// gradients with defer().
  using Backward = std::function<void(Tape&, Tensor)>;

  explicit Tape(Device device, Mode mode = Mode::record, Recompute recompute = Recompute::none)
      : device_(std::move(device)), mode_(mode), recompute_(recompute) {}
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  const Device& device() const { return device_; }
  bool recording() const { return mode_ == Mode::record; }
  /// True if operations that cost no matrix product should hand out recipes for their results.
  bool recomputes_cheap() const { return recording() && recompute_ == Recompute::selective; }

  /// A value without gradient: tokens, tables.
  static Var constant(Tensor value) { return {std::move(value), Slot{}}; }
  /// An input whose gradient is asked for afterwards (gradient_of).
  Var input(Tensor value);
  /// The result of an operation. `inputs` decide whether a gradient flows through; `uses` are the parameters whose
  /// gradients `backward` will defer, each listed once a use.
  Var record(Tensor value, std::initializer_list<Slot> inputs, const std::vector<Parameter*>& uses, Backward backward);

  /// Adds to the gradient in the slot. The tensor is given away: it may become the gradient itself or be overwritten.
  void contribute(Slot slot, Tensor gradient);
  /// Queues the weight gradient of the operation being differentiated. `parameters` are those it adds to.
  void defer(std::vector<Parameter*> parameters, std::function<void()> weight_gradient);

  /// True while backward() (B) runs, false in input_gradient() (I): weight gradients may be added at once.
  bool weights_at_once() const { return weights_at_once_; }
  /// Adds a weight gradient at once, in the midst of an operation's backward. @pre weights_at_once()
  void add_weight_gradient(const std::vector<Parameter*>& parameters, const std::function<void()>& add);

  /// B: gradients of all inputs and weights; weight gradients run as soon as their operation is reached.
  void backward(Slot output, Tensor gradient);
  /// I: input gradients only; weight gradients stay queued.
  void input_gradient(Slot output, Tensor gradient);
  /// W: runs what input_gradient queued, in the same order as backward would.
  void weight_gradient();
  /// The gradient of an input(), once; undefined if nothing flowed there.
  Tensor gradient_of(Slot input);

  /// complete: the last use of a parameter on this tape has added its gradient. before: something is about to be added.
  /// A tape for a part of the same computation, told to the same observers.
  std::unique_ptr<Tape> nested(Mode mode) const;
  void observe(Observer complete, Observer before = {}) {
    complete_ = std::move(complete);
    before_ = std::move(before);
  }

 private:
  struct Node {
    Slot output;
    Backward backward;
  };
  struct Deferred {
    std::vector<Parameter*> parameters;
    std::function<void()> run;
  };
  void walk(Slot output, Tensor gradient);
  void run_deferred();
  void run_weight_gradient(const std::vector<Parameter*>& parameters, const std::function<void()>& run);

  Device device_;
  Mode mode_;
  Recompute recompute_;
  bool weights_at_once_ = false;
  std::vector<Node> nodes_;
  std::vector<Tensor> gradients_;  // by Slot id
  std::vector<Deferred> deferred_;
  std::unordered_map<Parameter*, int> remaining_uses_;
  Observer complete_;
  Observer before_;
};

}  // namespace cuboid
