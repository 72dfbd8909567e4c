// The pass that makes ZeRO a part of the schedule: when parameters are gathered and freed, and when gradients are
// reduced.
#pragma once

#include "cuboid/value/schedule.h"

namespace cuboid {

/// zero ≥ 2: REDUCE_GRAD after every B or W of a stage, since only its shard of the gradient is kept between
/// micro-batches (the one after the last stays where it is). zero 3: UNSHARD of a stage ahead of its first use, while
/// the stage before computes, and RESHARD when neither the next stage to compute nor the one after needs it. At most
/// two stages of a rank are whole at a time, and none at the end of the row. Other values of zero change nothing.
Schedule add_sharding(const Schedule& schedule, int zero);

}  // namespace cuboid
