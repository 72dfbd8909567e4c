// A topology, and ranks placed on it, for people and machines: text, SVG, and the forms that launchers read.
#pragma once

#include <optional>
#include <string>

#include "cuboid/plan/place.h"
#include "cuboid/value/grid.h"
#include "cuboid/value/topology.h"

namespace cuboid::launch {

struct PlacedGrid {
  Grid grid;
  Traffic traffic;
  PlacedRanks ranks;
};

std::string topology_text(const Topology& topology, const std::optional<PlacedGrid>& placed);
/// One JSON document as docs say; levels, links and devices of all nodes.
std::string topology_json(const Topology& topology, const std::optional<PlacedGrid>& placed);
std::string topology_svg(const Topology& topology, const std::optional<PlacedGrid>& placed);

/// Open MPI's rank file. Cores are a device's own, or of those near a GPU as many as go round.
std::string placed_rank_file(const Topology& topology, const std::vector<int>& device_of_rank);
/// Open MPI's host file, for ranks that fill node after node. @throws Error{request} if they do not
std::string placed_host_file(const Topology& topology, const std::vector<int>& device_of_rank);
/// The options and, where the distribution is arbitrary, the host file of Slurm.
std::string placed_slurm(const Topology& topology, const std::vector<int>& device_of_rank);
/// For each node the order of its GPUs in which local rank i takes device i.
std::string placed_cuda_devices(const Topology& topology, const std::vector<int>& device_of_rank);

}  // namespace cuboid::launch
