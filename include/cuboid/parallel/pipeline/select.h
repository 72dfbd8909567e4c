// The schedule that a run asks for: a named one, or one read from a file.
#pragma once

#include <string_view>

#include "cuboid/value/run_config.h"
#include "cuboid/value/schedule.h"

namespace cuboid {

/// Prefix of --schedule values that name a CSV file.
inline constexpr std::string_view kSchedulePathPrefix = "file:";

/// --schedule value for a schedule that is searched for the costs of the stages (auto_schedule.h).
inline constexpr std::string_view kAutoSchedule = "auto";

/// Stages of the run's schedule, which exists if this returns. @pre global batch = dp × micro-batch × count
/// @throws Error{request} with all reasons: no such name or file, faults of the schedule, a file for another number of
///         ranks or micro-batches, more activations held than --max-activations
int stages_of(const RunConfig& run);

/// The run's schedule, proven by verify: compute-only for a named one and for a file without transfers; a file's own
/// transfers are kept (sends need not wait for receivers), its UNSHARD, RESHARD and REDUCE_GRAD are not: --zero decides
/// them. Notes of the proof are logged. @pre as stages_of, and the schedule is not auto @throws as stages_of
Schedule schedule_of(const RunConfig& run);

/// True if the schedule contains SEND or RECV.
bool has_transfers(const Schedule& schedule);

}  // namespace cuboid
