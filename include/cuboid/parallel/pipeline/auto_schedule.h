// A schedule for given costs: never worse than the best named one under the same cap on activations, and better where
// stages are unequal.
#pragma once

#include <optional>
#include <string>

#include "cuboid/parallel/pipeline/simulate.h"
#include "cuboid/value/schedule.h"

namespace cuboid {

struct AutoRequest {
  int ranks = 1;
  int micro_batches = 1;
  int virtual_stages = 1;  ///< stages a rank; with 2, both loop and V placement are tried
  PipelineCosts costs;     ///< of every stage (ranks × virtual stages of them), or one for all
  std::optional<int>
      max_activations;  ///< most micro-batches of one stage that a rank may hold; at least virtual_stages
  int rounds =
      0;  ///< of random improvement; 0: 400, fewer where stages × micro-batches exceed 2048, so that time is bounded
};

struct AutoSchedule {
  Schedule schedule;  ///< named "auto"; compute-only
  double makespan = 0;
  /// No schedule with loop placement (or V, where tried) can be shorter: see makespan_lower_bound.
  double lower_bound = 0;
  std::string origin;      ///< the named schedule it is, or that the search started from
  std::string best_named;  ///< the fastest named schedule with these virtual stages within the cap; empty: none fits
  double best_named_makespan = 0;
};

/// Method: priority list scheduling. Every named schedule with these virtual stages is timed at the given costs; its
/// start times become priorities of a list scheduler in which a rank that is free takes the ready action of the
/// smallest start time, W only where nothing else is ready or in its own turn, B whole or apart, and an F only while
/// the cap leaves room to finish all micro-batches under way (the banker's rule). The best result is improved by
/// scheduling again and again from its own start times with noise. Every candidate, the named schedules included, is
/// compared by simulate; the fastest wins. Random numbers are counter-based: equal requests give equal schedules.
/// @throws Error{request} for sizes below 1, over 2^23 micro-batches of all stages, and a cap below virtual_stages
AutoSchedule find_schedule(const AutoRequest& request);

/// A lower bound on the makespan of any schedule with the stages on the given ranks: the largest, over ranks, of
/// - start-up (F of all stages before the rank's first) + all its work;
/// - start-up + all its F and I + the way of the last gradient back through the stages before it, to W of stage 0;
/// - start-up + the time micro-batches must be held (F of the stage, through all later stages, to its W) / the cap;
/// and of one micro-batch's way through the pipeline and back. Where B takes less than I and W, or overlapped pairs
/// take less than their sum, the smaller times count.
double makespan_lower_bound(const AutoRequest& request, const std::vector<int>& rank_of_stage);

}  // namespace cuboid
