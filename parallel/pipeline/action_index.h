// Where each action of a schedule stands, and what it needs. Internal to parallel/pipeline.
#pragma once

#include <array>
#include <vector>

#include "cuboid/value/schedule.h"

namespace cuboid::pipeline {

/// A row and a position in it; rank -1: nowhere.
struct Place {
  int rank = -1;
  int position = -1;
  bool exists() const { return rank >= 0; }
};

/// Up to two actions that must be done before another one; unused ones do not exist.
struct Needs {
  std::array<Action, 2> actions{};
  int count = 0;
  void add(const Action& action) { actions[static_cast<std::size_t>(count++)] = action; }
  const Action* begin() const { return actions.data(); }
  const Action* end() const { return actions.data() + count; }
};

class ActionIndex {
 public:
  /// Indexes the first occurrence of every computing or transferring action inside the schedule's stages ×
  /// micro-batches.
  explicit ActionIndex(const Schedule& schedule);

  bool contains(const Action& action) const {
    return action.stage >= 0 && action.stage < stages_ && action.micro_batch >= 0 &&
           action.micro_batch < micro_batches_;
  }
  /// @pre contains(action), and the action computes or transfers
  Place at(const Action& action) const { return places_[slot(action)]; }
  Place at(ActionKind kind, int stage, int micro_batch) const { return at({kind, stage, micro_batch}); }
  /// B or I of the stage, whichever the schedule has (I when it has neither).
  Action input_gradient(int stage, int micro_batch) const;
  /// What a computing action needs, in this order: F(s): F(s-1). B(s), I(s): F(s), then B or I of s+1. W(s): I(s).
  Needs needs(const Action& action) const;
  /// The RECV of a SEND and the SEND of a RECV.
  static Action partner(const Action& transfer);
  /// The computing action whose result a SEND carries, and the one that takes what a RECV brings.
  Action computing_end(const Action& transfer) const;

 private:
  std::size_t slot(const Action& action) const {
    return (static_cast<std::size_t>(action.kind) * static_cast<std::size_t>(stages_) +
            static_cast<std::size_t>(action.stage)) *
               static_cast<std::size_t>(micro_batches_) +
           static_cast<std::size_t>(action.micro_batch);
  }
  int stages_;
  int micro_batches_;
  std::vector<Place> places_;
};

}  // namespace cuboid::pipeline
