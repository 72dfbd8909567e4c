// What a pipeline rank holds: its share of the parameters, what belongs to them, and activations as they come and go.
// Private to plan.
#pragma once

#include <vector>

#include "cuboid/plan/predict.h"

#include "pipeline_shape.h"
#include "stages.h"

namespace cuboid::plan {

/// Parameters on one rank, before ZeRO.
struct Elements {
  double dense = 0;
  double expert = 0;
};

/// The memory of a run's ranks. Keeps references to its arguments.
class RankMemory {
 public:
  RankMemory(const SoftwareStack& stack, const RunConfig& run, const ModelConfig& model, const ModelPrice& price,
             const CopyPlacements& data)
      : stack_(stack), run_(run), model_(model), price_(price), data_(data) {}

  /// Of a rank with these stages, ascending; a tied output matrix beside its embedding is the same matrix.
  Elements elements(const Stages& stages, const std::vector<int>& own) const;
  /// Of the embedding, where it is tied to the output matrix.
  double tied_elements() const;
  /// Elements that a rank keeps of what ZeRO shards from a stage on.
  double sharded(const Elements& e, int from_zero) const;

  /// All but activations.
  MemoryByCause fixed(const Elements& e) const;
  /// Most bytes of activations at a time.
  /// @param timeline  takes what is held after each action, `base` included; null: nobody asks
  double peak_activations(const Stages& stages, const std::vector<Span>& spans, double base,
                          std::vector<MemoryPoint>* timeline) const;
  /// Raises the bound to what this rank holds at least under any costs.
  void add_least(const Stages& stages, const std::vector<int>& own, const MostHeld& most, StepBound& bound) const;

 private:
  double shards(const GroupPlacement& group, int from_zero) const { return run_.zero >= from_zero ? group.ranks : 1; }
  double gathered_bytes() const;

  const SoftwareStack& stack_;
  const RunConfig& run_;
  const ModelConfig& model_;
  const ModelPrice& price_;
  const CopyPlacements& data_;
};

}  // namespace cuboid::plan
