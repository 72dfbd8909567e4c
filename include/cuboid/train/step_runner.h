// Training steps without a trainer around them: one rank's replica, optimizer and random tokens, for measurements.
#pragma once

#include "cuboid/comm/ranks.h"
#include "cuboid/models/registry.h"
#include "cuboid/train/optimizer.h"
#include "cuboid/train/pipeline_plan.h"
#include "cuboid/train/replica.h"

namespace cuboid {

class StepRunner {
 public:
  /// Collective over the world. Weights are drawn from a fixed seed. `run` and `model` must outlive the runner.
  StepRunner(RankContext& context, const RunConfig& run, const ModelConfig& model, const PipelineLayout& layout);

  /// A whole step s: forward and backward of the global batch, reductions, norm, clipping and update.
  void step(int s);
  /// What this rank did in the last step, and when.
  const std::vector<Span>& spans() const { return replica_.spans(); }

 private:
  void update();

  RankContext& context_;
  const RunConfig& run_;
  const ModelConfig& model_;
  Replica replica_;
  Optimizer optimizer_;
};

}  // namespace cuboid
