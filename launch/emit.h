// A plan in other programs' words.
#pragma once

#include <string>
#include <vector>

#include "cuboid/plan/search.h"

namespace cuboid::launch {

enum class EmitFormat { none, megatron, torchtitan, deepspeed, slurm, cuboid };

/// Leaves only what the format's program can run: its schedules and ZeRO stages.
void restrict_to(EmitFormat format, PlanRequest& request);

/// Flags, or a file's text. What a program decides for itself is left out.
/// - megatron: flags of pretrain_gpt.py
/// - torchtitan: a TOML file's [training], [parallelism] and [activation_checkpoint]
/// - deepspeed: a JSON configuration
/// - slurm: an sbatch script that runs `cuboid train`
/// - cuboid: a run file for `cuboid train --config`
std::string emit(EmitFormat format, const RunConfig& run, const ModelConfig& model, const Cluster& cluster);

}  // namespace cuboid::launch
