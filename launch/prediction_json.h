// Predictions as JSON and as text: the record that `cuboid simulate` prints for one configuration and `cuboid plan` for
// each candidate.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cuboid/plan/predict.h"

namespace cuboid::launch {

/// Grid, schedule, memory_bytes, step_seconds, rates, seconds by cause.
nlohmann::ordered_json prediction_json(const RunConfig& run, const StepPrediction& prediction);

/// Seconds by cause with the names they have in JSON.
std::vector<std::pair<const char*, double>> causes_of(const SecondsByCause& seconds);

/// {parameters, gradients, optimizer, activations, communication, total}, bytes.
nlohmann::ordered_json memory_json(const MemoryByCause& memory);

/// "none", "selective", "full".
const char* name_of(Recompute recompute);

/// A few lines for people.
std::string prediction_text(const RunConfig& run, const Cluster& cluster, const StepPrediction& prediction);

}  // namespace cuboid::launch
