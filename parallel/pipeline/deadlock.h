// Walks the rows of a schedule until all end or none can move. Internal to parallel/pipeline.
#pragma once

#include <vector>

#include "cuboid/parallel/pipeline/verify.h"

#include "action_index.h"

namespace cuboid::pipeline {

/// A row that cannot move on.
struct Blocked {
  int rank = -1;
  Action action;  ///< where it waits
  Action needed;  ///< what it waits for
  int needed_rank = -1;
};

/// The ranks of one cycle of waiting, in order; empty when every row runs to its end.
/// @pre complete: every needed action and every transfer's partner stands somewhere
std::vector<Blocked> find_deadlock(const Schedule& schedule, const ActionIndex& index, SendMode sends);

}  // namespace cuboid::pipeline
