// The memory of a whole run before it starts: the trace of its blocks, walked through the rows of its own schedule, on
// top of the layout that its parameters are allocated by. What `train` prints beside what it has measured.
#pragma once

#include <vector>

#include "cuboid/runtime/memory.h"
#include "cuboid/train/pipeline_plan.h"
#include "cuboid/value/model_config.h"
#include "cuboid/value/run_config.h"

namespace cuboid {

/// Each rank's peaks over a training step, by rank, as its MemoryAccount will count them with one thread a rank. Exact
/// but for
/// - messages between stages, which lie in the sender's account until they are taken: as many as the schedule's own
///   timing leaves under way (layout.costs), and a rank that falls behind leaves more;
/// - experts, whose tokens are taken to be spread evenly, whatever the router will say;
/// - the total with ZeRO 2 and 3, where a stage's gradients are counted as whole from the start of its backward.
/// Not in it: what evaluation, checkpoints and reports take for a moment.
/// @pre check_run finds nothing
std::vector<MemoryUse> predict_memory(const RunConfig& run, const ModelConfig& model, const PipelineLayout& layout);

}  // namespace cuboid
