// The chain of actions that makes a schedule as long as it is. With other costs the same chain still has to be walked,
// so that its time bounds the schedule's from below whatever they are.
#pragma once

#include <array>
#include <vector>

#include "cuboid/parallel/pipeline/simulate.h"
#include "cuboid/value/schedule.h"

namespace cuboid {

struct CriticalPath {
  int rank = 0;       ///< on which it ends
  int transfers = 0;  ///< between ranks
  /// Of each stage: how many F, B, I and W it has.
  std::vector<std::array<int, 4>> actions;
  friend bool operator==(const CriticalPath&, const CriticalPath&) = default;
};

/// The path to the end of a rank's row: from each action back to the one whose end it waited for.
/// @param simulation  simulate(schedule, costs) @pre the schedule has no transfers, and overlap is 1
CriticalPath critical_path(const Schedule& schedule, const PipelineCosts& costs, const Simulation& simulation,
                           int rank);

}  // namespace cuboid
