// The named pipeline schedules as pure functions: ranks, micro-batches and virtual stages in, rows of F, B, I and W
// out. Transfers, reductions and optimizer steps are added by passes (passes.h). Definitions and formulas: docs on
// schedules.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cuboid/value/schedule.h"

namespace cuboid {

struct ScheduleRequest {
  std::string name = "1f1b";
  int ranks = 1;           ///< p, pipeline ranks
  int micro_batches = 1;   ///< m, a data-parallel rank's micro-batches a step
  int virtual_stages = 0;  ///< v, stages a rank; 0: the schedule's own (1, or 2 for interleaved and V placements)
};

/// All names that make_schedule knows.
const std::vector<std::string>& schedule_names();

/// Which rank's row of F and B, or of F, I and W, a generator is to make.
struct RowRequest {
  int rank = 0;
  int ranks = 1;
  int micro_batches = 1;
  int virtual_stages = 1;
};
/// A pure function. A stage's B (or W) must ascend in micro-batches: sums are then the same under every schedule.
using RowGenerator = std::function<std::vector<Action>(const RowRequest&)>;
/// Adds a schedule: from then on every command knows it by this name, and what it makes is verified like a file's.
/// The planner takes it that with more micro-batches no rank holds fewer at its peak.
/// Before ranks start: not thread safe. @throws std::logic_error if the name is taken
void register_schedule(const std::string& name, int virtual_stages, RowGenerator row);

/// v when it is not given. @throws Error{request} for an unknown name, with the nearest known one
int default_virtual_stages(std::string_view name);

/// Fewest micro-batches a step that it is defined for on so many ranks. @throws as default_virtual_stages
int fewest_micro_batches(std::string_view name, int ranks);

/// The compute-only schedule: every stage's weight gradients (B or W) in ascending micro-batch order.
/// Placement: stage s on rank s mod p (loop), or for zb-v, v-half, v-min and dualpipe-v stages r and 2p-1-r on rank r
/// (V).
/// @throws Error{request} with all reasons: unknown name, ranks or micro-batches below 1, virtual stages or a number of
///         micro-batches that the schedule is not defined for, over 2^23 micro-batches of all stages.
Schedule make_schedule(const ScheduleRequest& request);

}  // namespace cuboid
