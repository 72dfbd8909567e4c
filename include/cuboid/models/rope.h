// Rotary position embedding: the angle per position of each rotated pair.
#pragma once

#include <vector>

#include "cuboid/value/model_config.h"

namespace cuboid {

/// The head_dim/2 angles per position, in radians: theta^(-2j/D), changed by the config's scaling. linear: all divided
/// by factor. llama3 (Llama 3.1): wavelengths above original/low divided by factor, below original/high kept, in
/// between blended linearly in original/wavelength.
std::vector<double> rope_frequencies(const ModelConfig& config);

}  // namespace cuboid
