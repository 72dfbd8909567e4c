#include "launch/step_comparison.h"

#include <algorithm>

#include <fmt/format.h>

#include "cuboid/core/median.h"
#include "cuboid/core/text.h"
#include "cuboid/core/units.h"
#include "cuboid/formats/cluster_file.h"

#include "launch/prediction_json.h"

namespace cuboid::launch {
namespace {

// The first step warms up.
double settled(std::vector<double> values) {
  if (values.empty()) return 0;
  if (values.size() > 1) values.erase(values.begin());
  return median(std::move(values));
}

std::string origin_of(const std::string& asked) {
  const auto presets = cluster_names();
  if (std::find(presets.begin(), presets.end(), asked) == presets.end()) return asked + "'s numbers";
  return asked + "'s preset numbers; fit with `cuboid bench comm|gemm|step --save FILE`";
}

}  // namespace

StepComparison compare_step(const std::optional<Cluster>& cluster, const std::string& asked, RunConfig run,
                            const ModelConfig& model, const RunStart& start, std::vector<double> step_seconds) {
  StepComparison comparison;
  comparison.measured = settled(std::move(step_seconds));
  if (!cluster) {
    comparison.why_not = "no --cluster says what these GPUs do";
    return comparison;
  }
  comparison.cluster = cluster->name;
  comparison.origin = origin_of(asked);
  Problems problems;
  check_cluster(*cluster, run, problems);
  if (!problems.empty()) {
    comparison.why_not = join(problems.reasons(), "; ");
    return comparison;
  }
  run.stage_layers = start.stage_layers;
  comparison.prediction = Predictor(model, *cluster).predict(run);
  return comparison;
}

std::string comparison_text(const StepComparison& comparison) {
  if (comparison.measured == 0) return {};  // nothing was left to do
  std::string text = fmt::format("step, median      {}\n", human_seconds(comparison.measured));
  if (!comparison.prediction) return text + fmt::format("step, predicted   none: {}\n", comparison.why_not);
  const StepPrediction& p = *comparison.prediction;
  text +=
      fmt::format("step, predicted   {}, {:+.0f} % from measured  ({})\n", human_seconds(p.step_seconds),
                  comparison.measured > 0 ? 100 * (p.step_seconds / comparison.measured - 1) : 0.0, comparison.origin);
  std::vector<std::string> parts;
  for (const auto& [cause, seconds] : causes_of(p.seconds)) {
    if (seconds > 0) parts.push_back(fmt::format("{} {}", cause, human_seconds(seconds)));
  }
  return text + fmt::format("  of which        {}\n", join(parts));
}

}  // namespace cuboid::launch
