#include "explain.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "cuboid/core/units.h"

namespace cuboid::plan {
namespace {

std::string size(double bytes) {
  return human_bytes(static_cast<std::uint64_t>(std::max(0.0, bytes)));
}

std::string grid_text(const Grid& grid) {
  std::string text;
  for (const Axis axis : kAxes) {
    if (grid.degree(axis) > 1)
      text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name_of(axis), grid.degree(axis));
  }
  return text.empty() ? "one device" : text;
}

std::string settings_text(const RunConfig& run) {
  std::string text = fmt::format("micro-batches of {}", run.micro_batch);
  if (run.grid.degree(Axis::pp) > 1) {
    text += fmt::format(", {}", run.schedule);
    if (run.virtual_stages > 1) text += fmt::format(" with {} stages a rank", run.virtual_stages);
  }
  if (run.grid.copies() > 1) text += fmt::format(", ZeRO {}", run.zero);
  if (run.sequence_parallel) text += ", sequence parallelism";
  text += run.recompute == Recompute::none        ? ", nothing recomputed"
          : run.recompute == Recompute::selective ? ", selective recompute"
                                                  : ", full recompute";
  return text;
}

std::string causes_text(const Grid& grid, const StepPrediction& p) {
  const bool tensor_alone = grid.degree(Axis::cp) == 1 && grid.degree(Axis::ep) == 1;
  const std::pair<const char*, double> causes[] = {
      {tensor_alone ? "tensor-parallel messages" : "messages inside layers", p.seconds.tp_comm},
      {"stage transfers", p.seconds.pp_comm},
      {"data-parallel messages", p.seconds.dp_comm},
      {"the bubble", p.seconds.bubble},
      {"the optimizer", p.seconds.optimizer}};
  std::string text = fmt::format("{:.0f} % of it computing", 100 * p.seconds.compute / p.step_seconds);
  for (const auto& [cause, seconds] : causes) {
    if (seconds >= 0.005 * p.step_seconds) text += fmt::format(", {:.0f} % {}", 100 * seconds / p.step_seconds, cause);
  }
  return text;
}

// Where the tensor group ends: the level whose links it stays within.
std::string tensor_text(const Cluster& cluster, const Grid& grid) {
  const int tp = grid.degree(Axis::tp);
  if (tp == 1) return "No matrix is split: tensor parallelism would only add messages. ";
  const GroupPlacement group = place_group(cluster, grid, {Axis::tp});
  for (std::size_t level = 0; level < group.inside.size(); ++level) {
    if (group.inside[level] == tp) {
      return fmt::format("Tensor groups of {} stay within {}. ", tp, cluster.levels[level].name);
    }
  }
  return fmt::format("Tensor groups of {} span every level of the network. ", tp);
}

// What the same plan does with a setting changed back: the price of not having chosen it.
std::string without(Predictor& predictor, RunConfig run, double limit, double seconds, const char* what) {
  const StepPrediction other = predictor.predict(run, {.spans = false, .memory_limit = limit});
  if (!other.feasible) return fmt::format("Without {} it would need {}. ", what, size(other.memory().total()));
  if (other.step_seconds <= seconds) return "";
  return fmt::format("Without {} a step would take {:.1f} % longer. ", what, 100 * (other.step_seconds / seconds - 1));
}

std::string reasons_text(const PlanResult& result) {
  std::string text;
  for (const auto& [reason, count] : result.rejected)
    text += fmt::format("{}{} by {}", text.empty() ? "" : ", ", count, reason);
  return text;
}

}  // namespace

std::string explain(Predictor& predictor, const PlanRequest& request, double limit, const PlanResult& result,
                    double smallest) {
  const Cluster& cluster = predictor.cluster();
  if (result.best.empty()) {
    std::string text = fmt::format("No way to train {} on {} x {} was found: {}.", predictor.model().name, request.gpus,
                                   cluster.device.name, reasons_text(result));
    if (std::isfinite(smallest)) {
      text +=
          fmt::format(" The smallest candidate needs at least {} a device of {}: take more devices, or larger ones.",
                      size(smallest), size(limit));
    }
    return text;
  }
  const RunConfig& run = result.best.front().run;
  const StepPrediction& p = result.best.front().prediction;
  std::string text = fmt::format("{} in order {}, with {}: a step of {}, {}. ", grid_text(run.grid), run.grid.order(),
                                 settings_text(run), human_seconds(p.step_seconds), causes_text(run.grid, p));
  text += tensor_text(cluster, run.grid);
  text += fmt::format("The fullest device needs {} of {}. ", size(p.memory().total()), size(limit));
  RunConfig changed = run;
  if (run.recompute != Recompute::none) {
    changed.recompute = Recompute::none;
    text += without(predictor, changed, limit, p.step_seconds, "recomputation");
    changed = run;
  }
  if (run.zero > 0) {
    changed.zero = 0;
    text += without(predictor, changed, limit, p.step_seconds, "ZeRO");
    changed = run;
  }
  if (run.sequence_parallel) {
    changed.sequence_parallel = false;
    text += without(predictor, changed, limit, p.step_seconds, "sequence parallelism");
  }
  const auto other = std::find_if(result.best.begin(), result.best.end(), [&](const PlanCandidate& c) {
    return !(c.run.grid.degrees() == run.grid.degrees());
  });
  if (other != result.best.end()) {
    text += fmt::format("The next best other grid, {}, takes {:.1f} % longer.", grid_text(other->run.grid),
                        100 * (other->prediction.step_seconds / p.step_seconds - 1));
  } else {
    text += fmt::format("All of the {} best have this grid.", result.best.size());
  }
  return text;
}

}  // namespace cuboid::plan
