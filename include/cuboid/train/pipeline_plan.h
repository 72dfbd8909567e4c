// How a run is laid out over the pipeline: what the model's blocks cost, which layers each stage has, and the schedule
// of its micro-batches. Decided once before ranks start, the same for all of them; it changes speed, never results.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuboid/parallel/pipeline/simulate.h"
#include "cuboid/value/model_config.h"
#include "cuboid/value/run_config.h"
#include "cuboid/value/schedule.h"

namespace cuboid {

/// Times of a model's blocks on one micro-batch of one tensor-parallel rank, and of a hand-over between two stages.
struct BlockCosts {
  StageCosts embedding;
  StageCosts layer;  ///< of one layer
  StageCosts head;   ///< final norm, output matrix and loss
  double transfer = 0;
  Balance source = Balance::flops;  ///< flops: in FLOPs; measured: in seconds
  const char* unit() const { return source == Balance::measured ? "s" : "FLOP"; }
};

/// From the model's arithmetic: matrix products as FLOPs, row kernels as FLOPs of equal duration. I and W cost as much
/// as F each, and B both, but
/// - the embedding has no I, and the scatter of its W costs what the gather of its F does;
/// - the head computes its output matrix and loss in backward: F is the final norm alone, B has three products of the
///   output matrix (logits, their gradient times the matrix, and times the activations), and where I and W are apart
///   both compute the logits, two products each;
/// - full recompute runs a layer's F again in its B, or in its I.
/// A hand-over inside one process moves no data: transfer is 0.
BlockCosts modelled_block_costs(const RunConfig& run, const ModelConfig& model);

/// From a short profile: the embedding, one layer and the head with the loss of this model run a few micro-batches of
/// this run's size on one tensor-parallel group of threads, and two threads exchange a stage boundary. The shortest of
/// the repetitions counts: what else the machine does only ever adds.
BlockCosts measured_block_costs(const RunConfig& run, const ModelConfig& model);

/// What --schedule auto found.
struct AutoChoice {
  std::string origin;  ///< the named schedule it is, or that the search started from
  double makespan = 0;
  double lower_bound = 0;
  std::string best_named;  ///< within the same cap; empty: none fits
  double best_named_makespan = 0;
};

struct PipelineLayout {
  std::vector<int> stage_layers;   ///< layers of each stage
  Schedule schedule;               ///< F, B, I and W, and transfers only if a file has them
  Schedule training;               ///< with transfers, reductions and the step
  Schedule evaluation;             ///< forward only
  PipelineCosts costs;             ///< of each stage, on which the choices rest
  std::vector<double> stage_work;  ///< of each stage, all its actions on one micro-batch
  const char* unit = "FLOP";       ///< of costs and work
  double bubble = 0;               ///< bubble fraction of the schedule at these costs
  double barrier = 0;              ///< share of the step that ranks lose to the barrier at its end: Simulation::barrier
  std::optional<AutoChoice> chosen;  ///< with --schedule auto
};

/// @param blocks  modelled or measured, as run.balance says
/// @throws Error{request} for a schedule or split that does not exist
PipelineLayout plan_pipeline(const RunConfig& run, const ModelConfig& model, const BlockCosts& blocks);
/// Models or measures the blocks first.
PipelineLayout plan_pipeline(const RunConfig& run, const ModelConfig& model);

}  // namespace cuboid
