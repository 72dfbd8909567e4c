#include "launch/prediction_json.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cuboid/core/units.h"

namespace cuboid::launch {
namespace {

using Json = nlohmann::ordered_json;

// Bytes are whole numbers wherever machines read them.
std::int64_t whole(double bytes) {
  return std::llround(bytes);
}

std::string size(double bytes) {
  return human_bytes(static_cast<std::uint64_t>(std::max(0.0, bytes)));
}

}  // namespace

const char* name_of(Recompute recompute) {
  return recompute == Recompute::none ? "none" : recompute == Recompute::selective ? "selective" : "full";
}

std::vector<std::pair<const char*, double>> causes_of(const SecondsByCause& s) {
  return {{"compute", s.compute}, {"tp_comm", s.tp_comm}, {"pp_comm", s.pp_comm},
          {"dp_comm", s.dp_comm}, {"bubble", s.bubble},   {"optimizer", s.optimizer}};
}

Json memory_json(const MemoryByCause& memory) {
  return {{"parameters", whole(memory.parameters)},       {"gradients", whole(memory.gradients)},
          {"optimizer", whole(memory.optimizer)},         {"activations", whole(memory.activations)},
          {"communication", whole(memory.communication)}, {"total", whole(memory.total())}};
}

Json prediction_json(const RunConfig& run, const StepPrediction& prediction) {
  const Grid& grid = run.grid;
  Json record;
  for (const Axis axis : {Axis::tp, Axis::cp, Axis::ep, Axis::pp, Axis::dp}) record[name_of(axis)] = grid.degree(axis);
  record["order"] = grid.order();
  record["virtual_stages"] = static_cast<int>(prediction.stage_layers.size()) / grid.degree(Axis::pp);
  record["schedule"] = run.schedule;
  record["zero"] = run.zero;
  record["sequence_parallel"] = run.sequence_parallel;
  record["recompute"] = name_of(run.recompute);
  record["micro_batch"] = run.micro_batch;
  record["feasible"] = prediction.feasible;
  record["reasons"] = prediction.reasons;
  record["memory_bytes"] = memory_json(prediction.memory());
  record["peak_stage"] = prediction.peak_rank;
  record["step_seconds"] = prediction.step_seconds;
  record["tokens_per_second_per_gpu"] = prediction.tokens_per_second_per_gpu;
  record["model_tflops_per_gpu"] = prediction.model_flops_per_gpu / 1e12;
  record["mfu"] = prediction.mfu;
  record["hfu"] = prediction.hfu;
  record["bubble_fraction"] = prediction.bubble_fraction;
  for (const auto& [cause, seconds] : causes_of(prediction.seconds)) record["seconds"][cause] = seconds;
  return record;
}

std::string prediction_text(const RunConfig& run, const Cluster& cluster, const StepPrediction& prediction) {
  const MemoryByCause& m = prediction.memory();
  const std::int64_t limit = run.memory_limit > 0 ? run.memory_limit : cluster.device.memory_bytes;
  std::string text = fmt::format(
      "step {} on {} x {}: {:.0f} tokens/s and {:.1f} model TFLOP/s a device, MFU {:.1f} %, "
      "HFU {:.1f} %\n",
      human_seconds(prediction.step_seconds), run.grid.world(), cluster.device.name,
      prediction.tokens_per_second_per_gpu, prediction.model_flops_per_gpu / 1e12, 100 * prediction.mfu,
      100 * prediction.hfu);
  for (const auto& [cause, seconds] : causes_of(prediction.seconds)) {
    text += fmt::format("  {:<10} {:>10}  {:5.1f} %\n", cause, human_seconds(seconds),
                        100 * seconds / prediction.step_seconds);
  }
  text += fmt::format(
      "memory {} of {} on pipeline rank {}, the fullest: parameters {}, gradients {}, optimizer {}, "
      "activations {}, communication {}\n",
      size(m.total()), size(static_cast<double>(limit)), prediction.peak_rank, size(m.parameters), size(m.gradients),
      size(m.optimizer), size(m.activations), size(m.communication));
  text += fmt::format("layers of the stages {}\n", fmt::join(prediction.stage_layers, ","));
  for (const std::string& reason : prediction.reasons) text += "infeasible: " + reason + "\n";
  return text;
}

}  // namespace cuboid::launch
