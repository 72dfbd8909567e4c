// AdamW and SGD on a rank's shards, and the learning rate over a run.
#pragma once

#include <vector>

#include "cuboid/parallel/parameter_store.h"
#include "cuboid/value/run_config.h"

namespace cuboid {

/// Learning rate of step `step` (from 0) of `steps`: linear warm-up from lr/warmup to lr, then constant, or a cosine or
/// line from lr down to min_lr, which the step after the last would reach.
double learning_rate(const OptimizerConfig& config, int step, int steps);

/// Factor for the gradients: min(1, clip / (norm + 1e-6)); 1 without clipping. A norm that is not finite gives 1: the
/// numbers are left for the loss check to report.
double clipping_factor(double clip, double norm);

class Optimizer {
 public:
  /// Allocates the moments (AdamW: two a weight; none for parameters that share values).
  Optimizer(const Device& device, const OptimizerConfig& config, ParameterStore& store);
  /// Updates all weights from their gradients. @param gradient_scale  from clipping_factor
  void step(double lr, double gradient_scale);

 private:
  struct Moments {
    Parameter* parameter;
    Tensor m, v;
  };
  Device device_;
  OptimizerConfig config_;
  std::vector<Moments> moments_;
  int steps_ = 0;
};

}  // namespace cuboid
