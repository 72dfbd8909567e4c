// What a run's step takes on a cluster, and the memory it needs: the trace of one micro-batch, priced (cost.h), walked
// through the run's own schedule (parallel/pipeline/simulate.h), with what data parallelism, the optimizer and the step
// add. All data-parallel replicas and the ranks of a tensor group do the same, so one pipeline is walked, whatever the
// number of devices.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuboid/parallel/pipeline/simulate.h"
#include "cuboid/plan/cost.h"
#include "cuboid/plan/trace.h"
#include "cuboid/value/cluster.h"
#include "cuboid/value/model_config.h"
#include "cuboid/value/run_config.h"

namespace cuboid {

/// A step's seconds by what the rank with the most work does, or waits for; their sum is the step.
struct SecondsByCause {
  double compute = 0;
  double tp_comm = 0;    ///< exposed messages inside layers: tensor, context, expert parallel
  double pp_comm = 0;    ///< exposed transfers between stages
  double dp_comm = 0;    ///< exposed reductions and gathers over data-parallel ranks
  double bubble = 0;     ///< idle: the pipeline's, and waiting for the slowest node
  double optimizer = 0;  ///< its step and the fixed time of a step
  double total() const { return compute + tp_comm + pp_comm + dp_comm + bubble + optimizer; }
};

/// Bytes of one rank.
struct MemoryByCause {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;    ///< at the peak: kept for backward, and temporary
  double communication = 0;  ///< gathered parameters, and what the stack reserves
  double total() const { return parameters + gradients + optimizer + activations + communication; }
};

struct MemoryPoint {
  double time = 0;   ///< seconds into the step
  double bytes = 0;  ///< held from then on, temporaries left out
};

/// A pipeline rank.
struct RankPrediction {
  MemoryByCause memory;               ///< at its peak
  std::vector<MemoryPoint> timeline;  ///< filled on demand, see PredictOptions
  double busy = 0;                    ///< seconds of its actions
};

struct StepPrediction {
  bool feasible = true;
  std::vector<std::string> reasons;  ///< why not: memory
  double step_seconds = 0;
  SecondsByCause seconds;
  double bubble_fraction = 0;  ///< seconds.bubble / step_seconds
  double tokens_per_second_per_gpu = 0;
  /// FLOPs rule: matrix products of forward and twice as many of backward, the output matrix included, attention's
  /// causal half (flops_per_token in models/registry.h), per second and device.
  double model_flops_per_gpu = 0;
  double mfu = 0;     ///< of the device's peak for the run's dtype
  double hfu = 0;     ///< the same with every product that is computed: recomputation and copies included
  int peak_rank = 0;  ///< pipeline rank that needs most memory
  std::vector<RankPrediction> ranks;
  std::vector<int> stage_layers;
  Schedule schedule;      ///< as walked, only with PredictOptions::spans
  Simulation simulation;  ///< its times in seconds, only with PredictOptions::spans
  const MemoryByCause& memory() const { return ranks[static_cast<std::size_t>(peak_rank)].memory; }
};

struct PredictOptions {
  bool spans = false;       ///< keep the schedule, its spans and memory over time, for drawing
  double memory_limit = 0;  ///< bytes of a rank; 0: the cluster's
};

/// What a step cannot be better than, found without walking its schedule.
struct StepBound {
  double step_seconds = 0;
  double memory_bytes = 0;
  double kept_bytes = 0;  ///< of it, without what is temporary: grows with the activations that are kept
};

/// Predicts runs of one model on one cluster; keeps traces, so that runs that share a micro-batch's shape are cheap.
class Predictor {
 public:
  Predictor(ModelConfig model, Cluster cluster);
  ~Predictor();
  Predictor(const Predictor&) = delete;
  Predictor& operator=(const Predictor&) = delete;

  const ModelConfig& model() const { return model_; }
  const Cluster& cluster() const { return cluster_; }

  /// @pre check_layout finds nothing, and the grid fits the cluster
  /// @throws Error{request} for a schedule that does not exist for this grid
  StepPrediction predict(const RunConfig& run, const PredictOptions& options = {});

  /// Lower bounds of what predict finds for a run with a named schedule, in microseconds. Time: start-up of a rank and
  /// all its work, and where B is whole the way of the last gradient back to the first stage; with reductions and the
  /// optimizer as in predict. Memory: the weights and the activations that the schedule must hold at least.
  /// Where the memory is over the limit already, the time is left at 0.
  /// @pre as predict; the schedule is a name
  StepBound bound(const RunConfig& run, double memory_limit = std::numeric_limits<double>::infinity());

  /// The trace that prices this run.
  const ModelTrace& trace(const RunConfig& run);

 private:
  struct Cached;
  struct Priced;
  struct Shapes;
  Cached& cached(const RunConfig& run);
  Priced& priced(Cached& cached, const RunConfig& run);
  ModelConfig model_;
  Cluster cluster_;
  std::vector<std::unique_ptr<Cached>> traces_;
  std::unique_ptr<Shapes> shapes_;
};

/// Adds the reasons why the grid does not fit the cluster.
void check_cluster(const Cluster& cluster, const RunConfig& run, Problems& problems);

}  // namespace cuboid
