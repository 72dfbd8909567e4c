// Times a schedule: all rows walked together with a cost for each action. What an executor would do whose sends do not
// wait and whose receives are posted before they are needed; the computing order is the row's.
#pragma once

#include <vector>

#include "cuboid/value/schedule.h"

namespace cuboid {

/// Time of each action on one micro-batch of one stage, in any one unit.
struct StageCosts {
  double forward = 1;
  double backward = 2;  ///< B, where it is not split
  double input_gradient = 1;
  double weight_gradient = 1;
};

struct PipelineCosts {
  std::vector<StageCosts> stages = {StageCosts{}};  ///< one a stage, or one for all
  double transfer = 0;  ///< from the end of a stage on one rank until its neighbour on another rank can use the result
  double overlap = 1;   ///< an overlapped F and B take this times the sum of both
  /// Ranks that can compute at full speed at a time. Where more compute, each has an equal share of that (processor
  /// sharing): ranks that are threads on few cores, to which another rank's bubble is a gift. 0: all of them.
  double at_once = 0;
  /// Share of a micro-batch's activations that I frees already (the rest stays until W); B frees all.
  double freed_by_input_gradient = 0;

  const StageCosts& of(int stage) const { return stages[stages.size() == 1 ? 0 : static_cast<std::size_t>(stage)]; }
  /// Time of a computing action by itself; 0 for any other.
  double of(const Action& action) const;
};

struct Simulation {
  double makespan = 0;               ///< when the last rank ends; the first action of all starts at 0
  std::vector<double> busy;          ///< computing time of each rank
  std::vector<double> idle;          ///< makespan - busy
  std::vector<double> idle_in_span;  ///< time from a rank's own first to last action, less busy
  /// makespan - the longest of the ranks' own spans: what a step loses because all ranks meet at its end (the global
  /// gradient norm). 0 where a rank works from the first action to the last, as rank 0 of 1F1B does.
  double barrier = 0;
  double bubble_fraction = 0;  ///< sum of idle / (ranks × makespan)
  /// Most activations each rank held, in micro-batches of one stage: +1 at F, back to 0 with B, or I and W.
  std::vector<double> peak_activations;
  std::vector<std::vector<Span>> spans;  ///< each rank's actions in the row's order; transfers take no time of the rank
};

/// @pre costs.stages has one entry, or one a stage
/// @throws Error{request} for a schedule that does not run to its end, with verify's reasons
Simulation simulate(const Schedule& schedule, const PipelineCosts& costs = {});

}  // namespace cuboid
