// A run's step time as the planner predicts it for a cluster, beside what the run measured.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuboid/plan/predict.h"
#include "cuboid/train/trainer.h"
#include "cuboid/value/cluster.h"

namespace cuboid::launch {

struct StepComparison {
  double measured = 0;                       ///< median seconds of a step, the first left out if there are more
  std::optional<StepPrediction> prediction;  ///< nothing: see why_not
  std::string cluster;                       ///< its name
  std::string origin;                        ///< whose numbers they are: a preset's, or a file's
  std::string why_not;                       ///< why there is no prediction
};

/// Predicts the run, laid out as it was.
/// @param cluster  nothing: not said, and then nothing is predicted
/// @param asked  the preset or file that the cluster was read from
/// @param step_seconds  of every step
StepComparison compare_step(const std::optional<Cluster>& cluster, const std::string& asked, RunConfig run,
                            const ModelConfig& model, const RunStart& start, std::vector<double> step_seconds);

/// A few lines for people.
std::string comparison_text(const StepComparison& comparison);

}  // namespace cuboid::launch
