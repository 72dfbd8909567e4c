// Which layers go to which pipeline stage.
#pragma once

#include <vector>

namespace cuboid {

/// Splits the model's blocks into contiguous stages so that the slowest stage is as fast as possible; of equal splits
/// the one with the smallest sum of squared stage costs, then the one whose first stages have fewest layers.
/// @param block_costs  cost of the embedding, of L layers and of the head: L + 2 numbers ≥ 0, any unit. The embedding
/// is
///                     in the first stage, the head in the last, and every stage has at least one layer.
/// @return layers of each stage: `stages` numbers ≥ 1 whose sum is L
/// @throws Error{request} for fewer layers than stages or fewer than one stage
std::vector<int> balance_layers(const std::vector<double>& block_costs, int stages);

}  // namespace cuboid
