// What a training step on this machine's cores costs, as parameters of a cluster: fitted to steps of small models, run
// with a rank on every core at once, so that no run to be predicted is among them.
#pragma once

#include <string>
#include <vector>

#include "cuboid/core/dtype.h"
#include "cuboid/value/cluster.h"

namespace cuboid::launch {

/// Steps of small models that a fit may use.
inline constexpr int kStepSamples = 10;

/// A pass, F or B of one micro-batch of a whole model, or the rest of a step, as measured and as the fitted cluster
/// prices it.
struct FittedPass {
  std::string what;
  double measured = 0;   ///< seconds
  double predicted = 0;  ///< seconds
};

struct StepFit {
  Cluster cluster;
  std::vector<FittedPass> passes;
};

/// Fits to the cluster: rate and fill of matrix products, launch-seconds, bandwidth and traffic of row kernels,
/// attention's efficiencies, the first level's latency as a step meets it (of a rank that waits and sleeps, not of one
/// that only sends), the fixed time of a step, the optimizer's traffic, and the cores that ranks share. Coefficients
/// are those of plan/cost.h, by least squares of relative errors with none below 0, of median times.
/// @param cluster  its first level's bandwidth is taken as it is
/// @param rounds   steps of each sample, after one that warms up
/// @param samples  how many samples, from 1 to kStepSamples
/// @throws Error{failed} if the measured times say nothing of matrix products
StepFit fit_steps(Cluster cluster, DType dtype, int rounds, int samples);

/// The fit beside what was measured, a line a pass.
std::string fit_text(const StepFit& fit);

}  // namespace cuboid::launch
