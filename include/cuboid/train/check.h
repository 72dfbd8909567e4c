// Whether a run can be trained at all: arithmetic on the model's and the run's values, done before files are mapped,
// memory is allocated or threads start. Not here: what only a look at the files can tell (data, weights, folders).
#pragma once

#include <string>
#include <vector>

#include "cuboid/core/error.h"
#include "cuboid/value/model_config.h"
#include "cuboid/value/run_config.h"

namespace cuboid {

/// Most ranks that one process may run as threads.
inline constexpr int kMostRanksPerProcess = 1024;

/// Adds the reasons why no model at all could be trained by this run: ranges, and settings that need each other.
void check_settings(const RunConfig& run, Problems& problems);

/// Adds every reason why this model cannot be cut over the run's tensor and pipeline ranks.
void check_split(const ModelConfig& model, const RunConfig& run, Problems& problems);

/// Adds the reasons why this model does not fit this grid, schedule and batch, wherever it would run: what a plan is
/// checked by. Not here: what a run needs besides (data, folders, processes).
void check_layout(const ModelConfig& model, const RunConfig& run, Problems& problems);

/// Adds every reason why this model cannot be trained by this run, each naming its flag, the value and what is allowed:
/// check_settings, and what the model's dimensions rule out.
void check_run(const ModelConfig& model, const RunConfig& run, Problems& problems);

/// What is probably not meant, though it can be run.
std::vector<std::string> doubts_about_run(const ModelConfig& model, const RunConfig& run);

/// "1, 2 or 4"; long lists are cut in the middle: "1, 2, 3, …, 96 or 128".
std::string alternatives(const std::vector<std::int64_t>& values);

}  // namespace cuboid
