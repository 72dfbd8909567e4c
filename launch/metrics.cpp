#include "launch/metrics.h"

#include <cerrno>
#include <cstring>

#include <nlohmann/json.hpp>

#include "cuboid/core/error.h"

namespace cuboid::launch {
namespace {
using Json = nlohmann::ordered_json;
}

std::string metrics_line(const StepMetrics& metrics) {
  Json peak;
  for (int i = 0; i < kCategoryCount; ++i) {
    peak[name_of(static_cast<Category>(i))] = metrics.peak_bytes[static_cast<std::size_t>(i)];
  }
  const Json line = {{"step", metrics.step},
                     {"loss", metrics.loss},
                     {"grad_norm", metrics.grad_norm},
                     {"lr", metrics.lr},
                     {"tokens", metrics.tokens},
                     {"step_seconds", metrics.step_seconds},
                     {"tokens_per_second", metrics.tokens_per_second},
                     {"tflops_per_rank", metrics.tflops_per_rank},
                     {"bubble_fraction", metrics.bubble_fraction},
                     {"peak_bytes", peak}};
  return line.dump();
}

std::string result_document(const RunStart& start, const TrainResult& result, const Grid& grid) {
  Json degrees;
  for (Axis axis : kAxes) degrees[name_of(axis)] = grid.degree(axis);
  degrees["order"] = grid.order();
  const Json document = {{"steps", result.steps},
                         {"final_loss", result.final_loss},
                         {"validation_loss", result.validation_loss ? Json(*result.validation_loss) : Json(nullptr)},
                         {"params", result.params},
                         {"world", result.world},
                         {"grid", degrees},
                         {"tokens_per_second", result.tokens_per_second},
                         {"bubble_fraction", result.bubble_fraction},
                         {"predicted_bubble_fraction", start.schedule_bubble},
                         {"stage_layers", start.stage_layers},
                         {"weights_hash", result.weights_hash}};
  return document.dump(2);
}

MetricsFile::MetricsFile(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "w")) {
  if (!file_) throw Error(ErrorKind::request, "--out: " + path + ": " + std::strerror(errno));
}

void MetricsFile::add(const StepMetrics& metrics) {
  const std::string line = metrics_line(metrics) + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() || std::fflush(file_.get()) != 0) {
    throw Error(ErrorKind::failed, path_ + ": " + std::strerror(errno));
  }
}

}  // namespace cuboid::launch
