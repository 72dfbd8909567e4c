// The machine that this process runs on, as a topology: cores by hwloc, GPUs by their driver's tools.
#pragma once

#include <string>

#include "cuboid/value/topology.h"

namespace cuboid::launch {

/// Standard output of a shell command; empty if it fails.
std::string output_of(const std::string& command);

/// Cores with their caches and NUMA nodes, and network cards. Bandwidths are assumed, and a note says so.
Topology cores_of_this_machine();

/// GPUs, from `nvidia-smi topo -m` and `nvidia-smi -L`; without a driver the cores.
/// @throws Error{request} if nvidia-smi prints what cannot be read
Topology this_machine();

}  // namespace cuboid::launch
