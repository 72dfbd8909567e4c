// A schedule of our own.
#pragma once

#include <vector>

#include <cuboid/parallel/pipeline/generators.h>

namespace example {

/// GPipe in waves of as many micro-batches as there are ranks: each wave's forwards, then its backwards. No rank ever
/// holds more activations than 1F1B's first one, at the price of a bubble a wave.
std::vector<cuboid::Action> waves_row(const cuboid::RowRequest& request);

}  // namespace example
