// The schedule that a run asks for: a named one, or one read from a file.
#pragma once

#include <string_view>

#include "cuboid/value/run_config.h"
#include "cuboid/value/schedule.h"

namespace cuboid {

/// Prefix of --schedule values that name a CSV file.
inline constexpr std::string_view kSchedulePathPrefix = "file:";

/// The run's schedule, proven by verify: compute-only for a named one and for a file without transfers; a file's own
/// transfers are kept (its sends need not wait for receivers). Notes of the proof (weight gradients out of order) are
/// logged. @pre global batch = dp × micro-batch × count
/// @throws Error{request} with all reasons: no such name or file, faults of the schedule, a file for another number of
///         ranks or micro-batches
Schedule schedule_of(const RunConfig& run);

/// True if the schedule contains SEND or RECV.
bool has_transfers(const Schedule& schedule);

}  // namespace cuboid
