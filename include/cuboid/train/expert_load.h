// How evenly a step's tokens were spread over the experts.
#pragma once

#include <cstdint>
#include <vector>

namespace cuboid {

/// What the routers did with a global batch.
struct ExpertLoad {
  std::vector<std::int64_t> tokens;  ///< copies sent to each expert (E), over all layers; empty in a dense model
  double max_over_mean = 0;          ///< largest over layers of: copies of its fullest expert / those of the mean one
  double aux_loss = 0;  ///< load-balancing loss without its coefficient: sum over layers, mean over micro-batches
  double z_loss = 0;    ///< likewise
};

}  // namespace cuboid
