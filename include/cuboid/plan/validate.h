// The cost model against measured runs: each published run predicted with the parameters of its kind of device and
// software stack, and statistics of the errors.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cuboid/formats/published_runs.h"
#include "cuboid/value/cluster.h"

namespace cuboid {

struct ValidatedRun {
  PublishedRun run;
  std::string cluster;  ///< the preset it was predicted with
  double step_seconds = 0;
  double memory_bytes = 0;
  bool feasible = true;
  std::string why_not;  ///< not predicted, and why; empty otherwise
  /// predicted ÷ measured - 1. @pre predicted, and measured
  double error() const { return step_seconds / *run.step_seconds - 1; }
  double memory_error() const { return memory_bytes / *run.memory_bytes - 1; }
};

/// Absolute relative errors.
struct ErrorSummary {
  int runs = 0;
  double mean = 0;
  double largest = 0;
  double bias = 0;  ///< mean of signed errors
};

/// Runs of one model on one number of devices with one global batch, from one source, that differ in their grid,
/// micro-batch or schedule: what a planner would choose from.
struct Sweep {
  std::string source;
  std::string first_id;
  int runs = 0;
  double spearman = 0;  ///< rank correlation of predicted and measured step times, ties averaged
  int best_ranked = 0;  ///< place, from 1, of the measured best among the predictions
};

constexpr double kMemoryTolerance = 0.08;

struct Validation {
  std::vector<ValidatedRun> runs;
  ErrorSummary step;
  ErrorSummary memory;
  int memory_within = 0;                          ///< runs whose memory is off by at most kMemoryTolerance
  std::map<std::string, ErrorSummary> by_source;  ///< of steps
  std::vector<Sweep> sweeps;                      ///< of 3 runs or more
  double mean_spearman = 0;
  int not_predicted = 0;
  int out_of_memory = 0;      ///< runs that failed for memory …
  int called_infeasible = 0;  ///< … of which the prediction says so
};

/// The preset whose hardware and software made the run; "" if none describes them. A source may have used two stacks.
std::string cluster_of(const PublishedRun& run);

/// Predicts every run; one that no preset describes, or that cannot be expressed, is kept with the reason.
/// @param clusters  used in place of the presets of the same name: a fit under way
Validation validate(const std::vector<PublishedRun>& runs, const std::vector<Cluster>& clusters = {});

/// Predicted against measured step times, logarithmic, a colour a source: a self-contained SVG.
std::string draw_validation_svg(const Validation& validation);

}  // namespace cuboid
