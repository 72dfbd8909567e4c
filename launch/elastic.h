// A run that goes on with what is left of its hosts: which of them answer, the largest grid for their slots, and the
// command line of the run on it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuboid/value/model_config.h"
#include "cuboid/value/run_config.h"

#include "launch/hosts.h"

namespace cuboid::launch {

/// The hosts on which a command can be run, in their order. A host is asked by the program that mpirun reaches it with:
/// OMPI_MCA_plm_rsh_agent, or ssh. This host always answers; one that takes longer than ten seconds does not.
std::vector<Host> answering(const std::vector<Host>& hosts);

/// The grid with the most ranks whose processes fit on so many slots: no axis longer than the run's, the tensor and
/// context degrees divisors of the run's, everything else as it is (the global batch above all). Of grids with equally
/// many ranks the one with the longest tensor axis, then the longest pipeline, then the longest context axis: weights
/// grow least, then activations.
/// None if not even the smallest is possible, or fits in the run's memory limit.
std::optional<Grid> largest_grid(const RunConfig& run, const ModelConfig& model, int ranks_per_process, int slots);

/// The arguments of `cuboid train` with the grid's degrees in place of those that they name.
std::vector<std::string> on_grid(const std::vector<std::string>& arguments, const Grid& grid);

}  // namespace cuboid::launch
