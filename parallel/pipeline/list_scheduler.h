// Priority list scheduling of a pipeline step. Internal to parallel/pipeline.
#pragma once

#include <vector>

#include "cuboid/parallel/pipeline/simulate.h"
#include "cuboid/value/schedule.h"

namespace cuboid::pipeline {

/// A number for each F, I (or B) and W, indexed by stage × micro-batches + micro-batch.
struct PerAction {
  std::vector<double> forward;
  std::vector<double> input_gradient;
  std::vector<double> weight_gradient;
};

struct ListProblem {
  int ranks = 1;
  int micro_batches = 1;
  std::vector<int> rank_of_stage;
  const PipelineCosts* costs = nullptr;
  int max_activations = 0;  ///< a rank's; 0: no cap
  int stages() const { return static_cast<int>(rank_of_stage.size()); }
};

/// How stages run backward.
enum class Halves {
  apart,           ///< I and W
  whole,           ///< B
  apart_if_equal,  ///< B on stages where it takes less than I and W (an output matrix that both would multiply again)
};

struct ListPolicy {
  Halves halves = Halves::apart;
  double patience = 0;  ///< wait for an action of smaller key that arrives within this times the ready one's duration
};

struct ListResult {
  std::vector<std::vector<Action>> rows;
  PerAction starts;
  double makespan = 0;
};

/// Each rank, when free, takes the ready action with the smallest key. Each stage takes its micro-batches in ascending
/// order in F, in I and in W. @pre max_activations is 0 or at least the number of stages of a rank
ListResult list_schedule(const ListProblem& problem, const PerAction& keys, const ListPolicy& policy);

}  // namespace cuboid::pipeline
