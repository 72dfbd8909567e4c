// Readers and writers of what describes a machine's wiring: `nvidia-smi topo -m`, NCCL's topology XML
// (NCCL_TOPO_DUMP_FILE), and this project's TOML. Bounds are checked before anything is allocated by them; all faults
// of a file are reported together.
#pragma once

#include <string>
#include <string_view>

#include "cuboid/value/topology.h"

namespace cuboid {

/// The matrix that `nvidia-smi topo -m` prints: with or without network cards, NUMA and CPU columns, coloured or not.
/// The text has no bandwidths: those of NVLink generations and PCIe are assumed, and a note says so.
/// @param source  the file's name, for messages
/// @throws Error{request} naming line and column of each fault: unknown cells, rows that do not fit the columns, a pair
///         that differs in its two directions, the output of another `nvidia-smi topo` option
Topology parse_nvidia_topology(std::string_view text, const std::string& source);

/// NCCL's XML, version 1. @throws Error{request} naming the line of each fault
Topology parse_nccl_topology(std::string_view text, const std::string& source);

/// The list that `nvidia-smi -L` prints, which has the UUIDs of GPUs and their MIG instances: fills in the devices'
/// ids. A GPU that is divided is replaced by its instances, which have no peer access to each other or to other GPUs.
/// @throws Error{request} for lines that it cannot be sure of, or GPUs that the topology does not have
void add_gpu_list(Topology& topology, std::string_view text, const std::string& source);

/// TOML: reading what was written gives the same value.
std::string write_topology(const Topology& topology);
/// @throws Error{request} with every fault: unknown keys, wrong types, negative bandwidths, paths to devices that are
///         not there
Topology parse_topology(std::string_view text, const std::string& source);

/// Whichever of the formats the file has. Of a cluster's TOML (formats/cluster_file.h) so many devices are taken; 0:
/// two nodes. @throws Error{request} also for a file that is none of them
Topology read_topology(const std::string& path, int cluster_devices = 0);

}  // namespace cuboid
