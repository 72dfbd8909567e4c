// Which GPUs a command's ranks compute on, and what such GPUs are rated for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuboid/comm/processes.h"
#include "cuboid/runtime/gpus.h"
#include "cuboid/value/cluster.h"

#include "launch/flags.h"

namespace cuboid::launch {

enum class DeviceChoice { automatic, cpu, cuda };
/// --device
void add_device_flag(Flags& flags, DeviceChoice& device);

/// The GPUs of this process's ranks, as RankOptions has them; none: they compute on the CPU.
/// @param ranks  of the world  @param job  null: all of them are threads of this process
/// @throws Error{request} where GPUs are asked for and there are none, or too few for the processes of a host
std::vector<int> choose_gpus(DeviceChoice device, int ranks, const Processes* job, int ranks_per_process);

/// A cluster preset whose device a GPU is.
struct RatedGpu {
  std::string cluster;
  DeviceSpec device;
};
/// By the GPU's name and memory: the chip ("H200") is in the names of both, and not as another board (PCIe, NVL) or a
/// part (MIG). Of several presets the first whose memory is within a tenth of the GPU's. Nothing: no preset has it.
std::optional<RatedGpu> rating_of(const Gpu& gpu);

}  // namespace cuboid::launch
