// What of a run's memory is known before it starts, and how much of it a machine has.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cuboid/core/error.h"
#include "cuboid/runtime/memory.h"
#include "cuboid/train/trainer.h"

namespace cuboid {

/// What each rank keeps from its first step to its last, by rank: parameters, gradients and the optimizer's state, to
/// the byte, from the layout that they are allocated by. Activations, messages and workspaces come on top.
std::vector<MemoryUse> kept_memory(const RunConfig& run, const ModelConfig& model, const PipelineLayout& layout);

/// Whether what the ranks keep fits: in --memory-limit each, or without it all that share this machine or a GPU in what
/// it has. A reason comes with the table of all ranks.
void check_memory(const RunConfig& run, const ModelConfig& model, const PipelineLayout& layout, const Fabric& fabric,
                  Problems& problems);

/// A rank's limit while it runs: its own with --memory-limit; without it, `shared`, that of all that share its memory.
std::shared_ptr<MemoryLimit> limit_of_rank(const RunConfig& run, const std::shared_ptr<MemoryLimit>& shared);
/// What the `ranks` of this process may take, by rank of the process; ranks with the same limit take it together.
/// On the CPU: nine tenths of what the machine has available now, split evenly over the job's processes on this host.
/// The rest is for what is not counted: data, oneDNN, the C++ library's heap. On GPUs: nine tenths of each GPU's
/// memory; the rest is for CUDA's own, NCCL's buffers and blocks kept for reuse.
std::vector<std::shared_ptr<MemoryLimit>> limits_of_process(const Fabric& fabric, int ranks);

}  // namespace cuboid
