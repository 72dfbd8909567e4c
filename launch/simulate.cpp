// cuboid simulate: a run's step and memory predicted for a cluster; and the predictions against published runs.
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cuboid/core/log.h"
#include "cuboid/core/text.h"
#include "cuboid/core/units.h"
#include "cuboid/formats/cluster_file.h"
#include "cuboid/formats/durable.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/formats/published_runs.h"
#include "cuboid/parallel/pipeline/draw.h"
#include "cuboid/plan/predict.h"
#include "cuboid/plan/report.h"
#include "cuboid/plan/validate.h"
#include "cuboid/train/check.h"

#include "launch/commands.h"
#include "launch/flags.h"
#include "launch/outputs.h"
#include "launch/prediction_json.h"
#include "launch/train_flags.h"

namespace cuboid::launch {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kUsage = "cuboid simulate --model M --cluster C [flags of train], or --validate FILE";
constexpr const char* kSummary =
    "Predicts a training step's time, by cause, and each rank's memory on a cluster, without running it. Takes the\n"
    "flags of `cuboid train`, so that a run can be tried by changing one word; those that change neither time nor "
    "memory count for nothing.";

struct Request {
  RunDraft draft;
  std::string cluster;
  std::string validate;
  std::string svg;
  std::string html;
  bool json = false;
};

void add_simulate_flags(Flags& flags, Request& request) {
  flags.section("Simulation");
  flags.text("cluster", "C", request.cluster, "a preset or a TOML file; presets: " + join(cluster_names()));
  flags.text("validate", "FILE", request.validate,
             "predict every run of a file of published runs, beside what was measured; --cluster then takes the place "
             "of the preset of the same name");
  flags.text("svg", "FILE", request.svg, "draw the pipeline; with --validate, predicted against measured step times");
  flags.text("html", "FILE", request.html, "write a report on one run: one page that needs no network");
  flags.toggle("json", request.json, "print one JSON document");
  add_run_flags(flags, request.draft);
}

// The run over time: memory of each pipeline rank as its stage's activations come and go.
Json stages_json(const StepPrediction& prediction) {
  Json stages = Json::array();
  for (const RankPrediction& rank : prediction.ranks) {
    Json timeline = Json::array();
    for (const MemoryPoint& point : rank.timeline) timeline.push_back({point.time, std::llround(point.bytes)});
    stages.push_back({{"memory_bytes", memory_json(rank.memory)}, {"busy_seconds", rank.busy}, {"memory", timeline}});
  }
  return stages;
}

void write_report(const std::string& path, Predictor& predictor, const RunConfig& run,
                  const StepPrediction& prediction) {
  Report report;
  report.title = fmt::format("{} on {}", predictor.model().name, predictor.cluster().name);
  report.subtitle =
      fmt::format("{} devices, {} sequences of {} tokens a step", run.grid.world(), run.global_batch, run.seq_len);
  report.explanation = prediction.feasible ? "It fits." : join(prediction.reasons);
  report.facts = {{human_seconds(prediction.step_seconds), "a step"},
                  {fmt::format("{:.1f} %", 100 * prediction.mfu), "MFU"},
                  {human_bytes(static_cast<std::uint64_t>(prediction.memory().total())), "on the fullest device"}};
  report.candidates = {{run, prediction}};
  report.candidates_json = Json::array({prediction_json(run, prediction)}).dump();
  report.memory_limit =
      static_cast<double>(run.memory_limit > 0 ? run.memory_limit : predictor.cluster().device.memory_bytes);
  write_durably(path, report_page(predictor, report));
}

// Model and cluster of one run. Every fault goes to problems.
std::pair<ModelConfig, Cluster> checked_inputs(const Request& request, const RunConfig& run, Problems& problems) {
  std::pair<ModelConfig, Cluster> inputs;
  problems.add_if(run.model.empty(),
                  "--model: give a preset name, a config.json or a folder with one; presets: " + join(preset_names()));
  problems.add_if(request.cluster.empty(),
                  "--cluster: give a preset or a TOML file; presets: " + join(cluster_names()));
  if (!run.model.empty()) {
    collect(problems, [&] {
      inputs.first = load_model(run.model);
      check_layout(inputs.first, run, problems);
    });
  }
  if (!request.cluster.empty()) {
    collect(problems, [&] {
      inputs.second = load_cluster(request.cluster);
      check_cluster(inputs.second, run, problems);
    });
  }
  return inputs;
}

int simulate_run(const Request& request, const RunConfig& run, Problems& problems) {
  auto [model, cluster] = checked_inputs(request, run, problems);
  problems.throw_if_any();
  Predictor predictor(std::move(model), std::move(cluster));
  const StepPrediction prediction =
      predictor.predict(run, {.spans = true, .memory_limit = static_cast<double>(run.memory_limit)});
  if (!request.svg.empty()) {
    Drawing drawing;
    drawing.title = fmt::format("{} on {}", predictor.model().name, predictor.cluster().name);
    drawing.subtitle = fmt::format("{}, step {}", run.schedule, human_seconds(prediction.step_seconds));
    drawing.spans = prediction.simulation.spans;
    drawing.unit = "s";
    write_durably(request.svg, draw_svg(drawing));
  }
  if (!request.html.empty()) write_report(request.html, predictor, run, prediction);
  if (!request.json) {
    fmt::print("{}", prediction_text(run, predictor.cluster(), prediction));
    return 0;
  }
  Json record = prediction_json(run, prediction);
  record["cluster"] = predictor.cluster().name;
  record["stage_layers"] = prediction.stage_layers;
  record["stages"] = stages_json(prediction);
  fmt::print("{}\n", record.dump(2));
  return 0;
}

Json summary_json(const ErrorSummary& summary) {
  return {{"runs", summary.runs},
          {"mean_absolute_error", summary.mean},
          {"max_absolute_error", summary.largest},
          {"mean_error", summary.bias}};
}

Json run_json(const ValidatedRun& run) {
  const auto optional = [](const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); };
  const bool predicted = run.why_not.empty();
  return {{"id", run.run.id},
          {"source", run.run.source},
          {"cluster", run.cluster},
          {"measured_step_seconds", optional(run.run.step_seconds)},
          {"predicted_step_seconds", predicted ? Json(run.step_seconds) : Json(nullptr)},
          {"measured_memory_bytes", optional(run.run.memory_bytes)},
          {"predicted_memory_bytes", predicted ? Json(std::llround(run.memory_bytes)) : Json(nullptr)},
          {"out_of_memory", run.run.out_of_memory},
          {"feasible", predicted ? Json(run.feasible) : Json(nullptr)},
          {"note", predicted ? run.run.note : "not predicted: " + run.why_not}};
}

Json validation_json(const Validation& validation) {
  Json document;
  document["runs"] = Json::array();
  for (const ValidatedRun& run : validation.runs) document["runs"].push_back(run_json(run));
  document["mean_absolute_error"] = validation.step.mean;
  document["max_absolute_error"] = validation.step.largest;
  document["by_source"] = Json::object();
  for (const auto& [source, summary] : validation.by_source) document["by_source"][source] = summary_json(summary);
  document["memory"] = summary_json(validation.memory);
  document["out_of_memory"] = {{"runs", validation.out_of_memory}, {"called_infeasible", validation.called_infeasible}};
  document["not_predicted"] = validation.not_predicted;
  document["memory_within_tolerance"] = {{"runs", validation.memory_within}, {"tolerance", kMemoryTolerance}};
  document["mean_spearman"] = validation.mean_spearman;
  document["sweeps"] = Json::array();
  for (const Sweep& sweep : validation.sweeps) {
    document["sweeps"].push_back({{"source", sweep.source},
                                  {"first", sweep.first_id},
                                  {"runs", sweep.runs},
                                  {"spearman", sweep.spearman},
                                  {"best_measured_is_predicted", sweep.best_ranked}});
  }
  return document;
}

std::string validation_text(const Validation& validation) {
  std::string text;
  for (const ValidatedRun& run : validation.runs) {
    if (!run.why_not.empty()) {
      text += fmt::format("{:<52} not predicted: {}\n", run.run.id, run.why_not);
    } else if (run.run.step_seconds) {
      text += fmt::format("{:<52} measured {:>9.4g} s, predicted {:>9.4g} s, {:+6.1f} %{}{}\n", run.run.id,
                          *run.run.step_seconds, run.step_seconds, 100 * run.error(),
                          run.run.note.empty() ? "" : "; doubtful: ", run.run.note);
    }
  }
  const auto row = [](const std::string& name, const ErrorSummary& s) {
    return fmt::format("{:<100} {:>4} runs, mean {:5.1f} %, largest {:5.1f} %, bias {:+5.1f} %\n", name, s.runs,
                       100 * s.mean, 100 * s.largest, 100 * s.bias);
  };
  text += "\n";
  for (const auto& [source, summary] : validation.by_source) text += row(source, summary);
  text += row("all step times", validation.step);
  text += row("memory, where it is published", validation.memory);
  text += fmt::format("{} of these {} within {:.0f} %\n", validation.memory_within, validation.memory.runs,
                      100 * kMemoryTolerance);
  text += fmt::format("{} of {} runs that ran out of memory are called infeasible; {} runs are not predicted\n",
                      validation.called_infeasible, validation.out_of_memory, validation.not_predicted);
  int in_three = 0;
  for (const Sweep& sweep : validation.sweeps) in_three += sweep.best_ranked <= 3;
  text += fmt::format(
      "{} sweeps over grids: Spearman's rank correlation {:.2f} on average, the best measured among "
      "the three best predicted in {}\n",
      validation.sweeps.size(), validation.mean_spearman, in_three);
  return text;
}

int validate_runs(const Request& request) {
  std::vector<Cluster> given;
  if (!request.cluster.empty()) given.push_back(load_cluster(request.cluster));
  const Validation validation = validate(read_published_runs(request.validate), given);
  if (!request.svg.empty()) write_durably(request.svg, draw_validation_svg(validation));
  fmt::print("{}", request.json ? validation_json(validation).dump(2) + "\n" : validation_text(validation));
  return 0;
}

}  // namespace

int simulate_command(const Arguments& arguments) {
  Flags flags(kUsage, kSummary);
  Request request;
  add_simulate_flags(flags, request);
  Problems problems;
  const RunConfig run = read_run(flags, request.draft, arguments, problems);
  if (flags.print_help_if_wanted()) return 0;
  check_new_file("--svg", request.svg, problems);
  check_new_file("--html", request.html, problems);
  if (request.validate.empty()) return simulate_run(request, run, problems);
  for (const std::string& name : flags.given()) {
    const bool goes_with = name == "validate" || name == "cluster" || name == "svg" || name == "json";
    if (name == "html") {
      problems.add("--html: is a report on one run; with --validate use --svg");
    } else if (!goes_with) {
      problems.add(fmt::format("--{}: --validate takes models and grids from its file's runs", name));
    }
  }
  problems.throw_if_any();
  return validate_runs(request);
}

}  // namespace cuboid::launch
