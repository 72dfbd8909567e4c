#include "cuboid/models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace cuboid {

std::vector<double> rope_frequencies(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  std::vector<double> frequencies(static_cast<std::size_t>(config.head_dim / 2));
  for (std::size_t j = 0; j < frequencies.size(); ++j) {
    double f = std::pow(config.rope_theta, -2.0 * static_cast<double>(j) / static_cast<double>(config.head_dim));
    if (scaling.kind == RopeScaling::Kind::linear) {
      f /= scaling.factor;
    } else if (scaling.kind == RopeScaling::Kind::llama3) {
      // Turns the pair makes over the context of pre-training: few turns are slowed, many are kept.
      const double turns = static_cast<double>(scaling.original_positions) * f / (2 * std::numbers::pi);
      const double keep = std::clamp(
          (turns - scaling.low_frequency_factor) / (scaling.high_frequency_factor - scaling.low_frequency_factor), 0.0,
          1.0);
      f = keep * f + (1 - keep) * f / scaling.factor;
    }
    frequencies[j] = f;
  }
  return frequencies;
}

}  // namespace cuboid
