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
  /// Allocates the moments (AdamW: two float32 a weight) of the parts of buckets that this rank owns.
  Optimizer(const Device& device, const OptimizerConfig& config, ParameterStore& store);
  /// Updates the owned weights from their gradients and publishes them to all data-parallel ranks.
  /// @param gradient_scale  from clipping_factor
  void step(double lr, double gradient_scale);

  /// What is kept of a bucket between steps.
  struct Moments {
    const ParameterBucket* bucket;
    Tensor m, v;  ///< (part), where the parameters' owned stretches lie as in the bucket; undefined for SGD
  };
  /// Of every bucket with values of its own.
  const std::vector<Moments>& moments() const { return moments_; }
  /// Updates done, which the bias correction counts; set when moments are loaded.
  int steps() const { return steps_; }
  void set_steps(int steps) { steps_ = steps; }

 private:
  void update(const Moments& state, const Parameter& parameter, double lr, double gradient_scale) const;

  Device device_;
  OptimizerConfig config_;
  ParameterStore& store_;
  std::vector<Moments> moments_;
  int steps_ = 0;
};

}  // namespace cuboid
