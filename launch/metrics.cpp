#include "launch/metrics.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include <nlohmann/json.hpp>

#include "cuboid/core/error.h"
#include "cuboid/formats/durable.h"

#include "launch/prediction_json.h"

namespace cuboid::launch {
namespace {
using Json = nlohmann::ordered_json;

// Whole lines of steps below `step`: a run that was killed has written later ones, the last perhaps in part.
std::string lines_before(const std::string& path, int step) {
  std::string kept;
  std::ifstream file(path);
  for (std::string line; step > 0 && std::getline(file, line) && !file.eof();) {
    const Json json = Json::parse(line, nullptr, false);
    const auto number = json.is_object() ? json.find("step") : json.end();
    if (number != json.end() && number->is_number_integer() && *number < step) kept += line + "\n";
  }
  return kept;
}

// {"parameters": [of rank 0, of rank 1, …], …, "total": […]}.
Json bytes_by_rank(const std::vector<MemoryUse>& ranks) {
  Json json;
  for (const MemoryUse& use : ranks) {
    for (std::size_t i = 0; i < kCategoryCount; ++i) json[name_of(static_cast<Category>(i))].push_back(use.bytes[i]);
    json["total"].push_back(use.total);
  }
  return json;
}

}  // namespace

std::string metrics_line(const StepMetrics& metrics) {
  Json peak;
  for (int i = 0; i < kCategoryCount; ++i) {
    peak[name_of(static_cast<Category>(i))] = metrics.peak_bytes[static_cast<std::size_t>(i)];
  }
  Json line = {{"step", metrics.step},
               {"loss", metrics.loss},
               {"grad_norm", metrics.grad_norm},
               {"skipped_steps", metrics.skipped_steps},
               {"lr", metrics.lr},
               {"tokens", metrics.tokens},
               {"step_seconds", metrics.step_seconds},
               {"tokens_per_second", metrics.tokens_per_second},
               {"tflops_per_rank", metrics.tflops_per_rank},
               {"bubble_fraction", metrics.bubble_fraction},
               {"schedule_bubble_fraction", metrics.schedule_bubble_fraction},
               {"peak_bytes", peak},
               {"rank_peak_bytes", bytes_by_rank(metrics.rank_peaks)}};
  if (const ExpertLoad& load = metrics.experts; !load.tokens.empty()) {
    line["experts"] = {{"tokens", load.tokens},
                       {"max_over_mean", load.max_over_mean},
                       {"router_aux_loss", load.aux_loss},
                       {"router_z_loss", load.z_loss}};
  }
  return line.dump();
}

std::string result_document(const RunStart& start, const TrainResult& result, const Grid& grid,
                            const std::vector<MemoryUse>& predicted, const StepComparison& steps) {
  Json degrees;
  for (Axis axis : kAxes) degrees[name_of(axis)] = grid.degree(axis);
  degrees["order"] = grid.order();
  Json document = {{"steps", result.steps},
                   {"first_step", result.first_step},
                   {"stopped", result.stopped},
                   {"final_loss", result.final_loss},
                   {"validation_loss", result.validation_loss ? Json(*result.validation_loss) : Json(nullptr)},
                   {"skipped_steps", result.skipped_steps},
                   {"params", result.params},
                   {"world", result.world},
                   {"grid", degrees},
                   {"tokens_per_second", result.tokens_per_second},
                   {"bubble_fraction", result.bubble_fraction},
                   {"schedule_bubble_fraction", result.schedule_bubble_fraction},
                   {"predicted_bubble_fraction", start.schedule_bubble},
                   {"predicted_barrier_fraction", start.schedule_barrier},
                   {"stage_layers", start.stage_layers},
                   {"stage_work", start.stage_work},
                   {"stage_work_unit", start.cost_unit}};
  if (start.chosen) {
    const bool named = !start.chosen->best_named.empty();
    document["auto"] = {{"origin", start.chosen->origin},
                        {"makespan", start.chosen->makespan},
                        {"lower_bound", start.chosen->lower_bound},
                        {"best_named", named ? Json(start.chosen->best_named) : Json(nullptr)},
                        {"best_named_makespan", named ? Json(start.chosen->best_named_makespan) : Json(nullptr)}};
  }
  document["rank_peak_bytes"] = bytes_by_rank(result.rank_peaks);
  if (!predicted.empty()) document["predicted_rank_peak_bytes"] = bytes_by_rank(predicted);
  document["step_seconds"] = steps.measured;
  document["predicted_cluster"] = steps.cluster.empty() ? Json() : Json(steps.cluster);
  if (const auto& prediction = steps.prediction) {
    document["predicted_step_seconds"] = prediction->step_seconds;
    for (const auto& [cause, seconds] : causes_of(prediction->seconds)) document["predicted_seconds"][cause] = seconds;
  } else {
    document["predicted_step_seconds"] = nullptr;
    document["not_predicted"] = steps.why_not;
  }
  document["weights_hash"] = result.weights_hash;
  return document.dump(2);
}

MetricsFile::MetricsFile(const std::string& path, int first_step) : path_(path) {
  write_durably(path, lines_before(path, first_step));
  file_.reset(std::fopen(path.c_str(), "a"));
  if (!file_) throw Error(ErrorKind::request, "--out: " + path + ": " + std::strerror(errno));
}

void MetricsFile::add(const StepMetrics& metrics) {
  const std::string line = metrics_line(metrics) + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() || std::fflush(file_.get()) != 0) {
    throw Error(ErrorKind::failed, path_ + ": " + std::strerror(errno));
  }
}

}  // namespace cuboid::launch
