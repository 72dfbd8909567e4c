// The communication of a training step along each axis, as the model's own code does it: what placement minimises.
#pragma once

#include "cuboid/value/model_config.h"
#include "cuboid/value/run_config.h"
#include "cuboid/value/traffic.h"

namespace cuboid {

/// Of the pipeline rank that communicates most: collectives inside layers from the trace of a micro-batch (trace.h),
/// times micro-batches and layers; messages between stages; gradients (and, from ZeRO 1 on, parameters) over the
/// axes whose ranks hold copies, in buckets. Left out are sums of a few numbers (losses, norms), the tied embedding's
/// gradient between first and last stage, and the way back from the last pipeline rank to the first of interleaved
/// schedules.
/// @throws Error{request} if the model cannot be split so
Traffic step_traffic(const RunConfig& run, const ModelConfig& model);

}  // namespace cuboid
