// The profile of a model's blocks over a job of several processes. Private to train/.
#pragma once

#include "cuboid/comm/processes.h"
#include "cuboid/train/pipeline_plan.h"

namespace cuboid {

/// As measured_block_costs(run, model), the same numbers on every process: process 0 measures the blocks, and the
/// hand-over is between processes 0 and 1. Collective over the job. @pre several processes
BlockCosts measured_block_costs(const RunConfig& run, const ModelConfig& model, Processes& job);

}  // namespace cuboid
