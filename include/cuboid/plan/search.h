// Which grid: all ways to run a model on so many devices of a cluster, the fastest first. Every candidate is first held
// against lower bounds of its time and memory; only those that could be among the best are walked through their
// schedules. Not here: flags, and what other frameworks call a plan (launch/).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cuboid/plan/predict.h"

namespace cuboid {

struct PlanRequest {
  int gpus = 1;
  int global_batch = 1;
  int seq_len = 1024;
  DType dtype = DType::bfloat16;
  double memory_limit = 0;                      ///< bytes a device; 0: the cluster's
  int top = 10;                                 ///< candidates kept
  bool exhaustive = false;                      ///< walk every candidate that fits: slow, and finds the same
  std::vector<std::string> schedules;           ///< allowed; empty: the planner's own list (planned_schedules)
  std::vector<int> zero_stages = {0, 1, 2, 3};  ///< allowed
  int largest_zero_with_pipeline = 3;           ///< with pp > 1
  int largest_ep = 1 << 20;                     ///< most ranks over which experts are split; 1: every rank keeps all
  int largest_cp = 1 << 20;                     ///< most ranks over which a sequence is cut; 1: it is not
  int least_zero_with_context = 0;              ///< with cp > 1
  bool context_with_experts = true;             ///< cp > 1 for models with experts, too
};

/// Fewest tokens of a sequence that a search leaves a rank with: cutting shorter ones saves little and only adds
/// messages.
inline constexpr int kFewestTokensOfAPart = 4096;

/// Named schedules that a search tries where nothing else is asked for: not those that another one always beats.
const std::vector<std::string>& planned_schedules();

struct PlanCandidate {
  RunConfig run;
  StepPrediction prediction;
};

struct PlanResult {
  std::vector<PlanCandidate> best;    ///< fastest first; empty if nothing is feasible
  std::vector<PlanCandidate> pareto;  ///< of all: none else is both faster and smaller; fastest first
  std::int64_t searched = 0;          ///< feasible + all rejected; a grid that no setting can save counts once
  std::int64_t feasible = 0;          ///< walked, and fits
  std::map<std::string, std::int64_t> rejected;  ///< by reason
  double seconds = 0;                            ///< of the search
  std::string explanation;                       ///< why the best is the best, or why there is none; one paragraph
};

/// The same result, order included, for the same request. With `exhaustive` best and pareto are the same.
/// @throws Error{request} with all reasons for a request that no cluster could meet: more devices than it has, numbers
///         below 1, a sequence longer than the model's positions
PlanResult search_plans(Predictor& predictor, const PlanRequest& request);

}  // namespace cuboid
