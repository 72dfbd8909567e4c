// cuboid plan: the best grids for a model on a cluster.
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cuboid/core/log.h"
#include "cuboid/core/text.h"
#include "cuboid/core/units.h"
#include "cuboid/formats/cluster_file.h"
#include "cuboid/formats/durable.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/parallel/pipeline/generators.h"
#include "cuboid/plan/report.h"
#include "cuboid/plan/search.h"

#include "launch/commands.h"
#include "launch/emit.h"
#include "launch/flags.h"
#include "launch/outputs.h"
#include "launch/prediction_json.h"

namespace cuboid::launch {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kUsage = "cuboid plan --model M --cluster C --gpus N --global-batch B --seq-len S [flags]";
constexpr const char* kSummary =
    "Searches tp x cp x ep x pp x dp, axis order, schedule, virtual stages, ZeRO, sequence parallelism, recompute and\n"
    "micro-batch for the fastest training steps that fit. Sequences are cut (cp) where a rank keeps 4096 tokens or "
    "more.";

struct Request {
  PlanRequest plan;
  std::string model;
  std::string cluster;
  std::int64_t memory_limit = 0;
  EmitFormat emit = EmitFormat::none;
  std::string schedules;
  std::string html;
  bool json = false;
};

void add_flags(Flags& flags, Request& request) {
  PlanRequest& plan = request.plan;
  flags.section("What to train");
  flags.text("model", "M", request.model,
             "preset name (see `cuboid models`), a Hugging Face config.json, or a folder with one");
  flags.whole("global-batch", plan.global_batch, "sequences a step, over all devices", 1);
  flags.whole("seq-len", plan.seq_len, "tokens of a sequence", 1);
  flags.choice<DType>("dtype", plan.dtype, {{"float32", DType::float32}, {"bfloat16", DType::bfloat16}},
                      "type of activations and of the weights as they are computed with");
  flags.section("On what");
  flags.text("cluster", "C", request.cluster, "a preset or a TOML file; presets: " + join(cluster_names()));
  flags.whole("gpus", plan.gpus, "devices to use, all of them", 1);
  flags.bytes("memory-limit", request.memory_limit, "what a device may use", "what the cluster's has");
  flags.section("Search");
  flags.whole("top", plan.top, "candidates listed", 1);
  flags.text("schedules", "S,S,...", request.schedules,
             "pipeline schedules to try: any of `cuboid schedule`'s; without it " + join(planned_schedules()));
  flags.toggle("exhaustive", plan.exhaustive,
               "walk every candidate that fits, also those whose lower bound rules them out: slow, finds the same");
  flags.section("Output");
  flags.choice<EmitFormat>("emit", request.emit,
                           {{"none", EmitFormat::none},
                            {"megatron", EmitFormat::megatron},
                            {"torchtitan", EmitFormat::torchtitan},
                            {"deepspeed", EmitFormat::deepspeed},
                            {"slurm", EmitFormat::slurm},
                            {"cuboid", EmitFormat::cuboid}},
                           "print the best plan as another program's flags or file, and search only what it can run; "
                           "cuboid: a run file for `cuboid train --config`");
  flags.text("html", "FILE", request.html, "write a report: one page that needs no network");
  flags.toggle("json", request.json, "print one JSON document");
}

std::vector<std::string> split_words(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    words.push_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return words;
}

void read_schedules(const Request& request, PlanRequest& plan, Problems& problems) {
  if (request.schedules.empty()) return;
  // What --emit's program can run, if it cannot run all.
  const std::vector<std::string> allowed = std::exchange(plan.schedules, {});
  for (const std::string& word : split_words(request.schedules)) {
    try {
      Flags::one_of(word, allowed.empty() ? schedule_names() : allowed);
      plan.schedules.push_back(word);
    } catch (const Error& error) {
      problems.add(fmt::format("--schedules {}: {}", request.schedules, error.what()));
    }
  }
}

Json candidates_json(const std::vector<PlanCandidate>& candidates) {
  Json list = Json::array();
  for (const PlanCandidate& candidate : candidates) {
    list.push_back(prediction_json(candidate.run, candidate.prediction));
  }
  return list;
}

Json result_json(const Request& request, const PlanResult& result, const std::string& emitted) {
  Json document;
  document["candidates"] = candidates_json(result.best);
  document["searched"] = result.searched;
  document["feasible"] = result.feasible;
  document["rejected"] = result.rejected;
  document["seconds"] = result.seconds;
  document["pareto"] = candidates_json(result.pareto);
  document["explanation"] = result.explanation;
  if (request.emit != EmitFormat::none) document["emit"] = emitted;
  return document;
}

std::string row(const PlanCandidate& c) {
  const Grid& grid = c.run.grid;
  const StepPrediction& p = c.prediction;
  const auto percent = [&](double seconds) { return 100 * seconds / p.step_seconds; };
  return fmt::format(
      "{:>4} {:>3} {:>4} {:>3} {:>5}  {:<16} {:>2}  {:>2} {:>3}  {:<9} {:>2}  {:>9} {:>5.1f}  {:>9}  "
      "{:>5.1f} {:>5.1f} {:>5.1f} {:>5.1f} {:>5.1f} {:>5.1f}\n",
      grid.degree(Axis::tp), grid.degree(Axis::cp), grid.degree(Axis::pp), grid.degree(Axis::ep), grid.degree(Axis::dp),
      c.run.schedule, c.run.virtual_stages, c.run.zero, c.run.sequence_parallel ? "yes" : "no",
      name_of(c.run.recompute), c.run.micro_batch, human_seconds(p.step_seconds), 100 * p.mfu,
      human_bytes(static_cast<std::uint64_t>(p.memory().total())), percent(p.seconds.compute),
      percent(p.seconds.tp_comm), percent(p.seconds.pp_comm), percent(p.seconds.dp_comm), percent(p.seconds.bubble),
      percent(p.seconds.optimizer));
}

constexpr const char* kHeader =
    "  tp  cp   pp  ep    dp  schedule          v zero  sp  recompute mb       step  MFU%     memory  "
    "comp%   tp%   pp%   dp% bubbl  opt%\n";

std::string result_text(const PlanResult& result) {
  std::string text;
  if (!result.best.empty()) {
    text += kHeader;
    for (const PlanCandidate& candidate : result.best) text += row(candidate);
    text += "\nNone of all candidates is both faster and smaller than\n";
    text += kHeader;
    for (const PlanCandidate& candidate : result.pareto) text += row(candidate);
    text += "\n";
  }
  text += result.explanation + "\n\n";
  text +=
      fmt::format("searched {} in {}: {} feasible\n", result.searched, human_seconds(result.seconds), result.feasible);
  for (const auto& [reason, count] : result.rejected) text += fmt::format("  {:>8} {}\n", count, reason);
  return text;
}

std::string percent(double part) {
  return fmt::format("{:.1f} %", 100 * part);
}

void write_report(const Request& request, const PlanResult& result, Predictor& predictor) {
  if (result.best.empty()) {
    log::warning("--html: nothing is feasible, so there is no report");
    return;
  }
  const PlanRequest& plan = request.plan;
  const Cluster& cluster = predictor.cluster();
  const PlanCandidate& best = result.best.front();
  Report report;
  report.title = fmt::format("{} on {} x {}", predictor.model().name, plan.gpus, cluster.device.name);
  report.subtitle =
      fmt::format("cluster {}, {}; global batch {} of {} tokens; {} candidates searched, {} feasible", cluster.name,
                  cluster.stack.name, plan.global_batch, plan.seq_len, result.searched, result.feasible);
  report.explanation = result.explanation;
  report.facts = {{human_seconds(best.prediction.step_seconds), "a step"},
                  {percent(best.prediction.mfu), "model FLOPs utilisation"},
                  {percent(best.prediction.bubble_fraction), "bubble"},
                  {fmt::format("{:.0f}", best.prediction.tokens_per_second_per_gpu), "tokens a second and device"},
                  {human_bytes(static_cast<std::uint64_t>(best.prediction.memory().total())), "fullest device"}};
  report.candidates = result.best;
  report.candidates_json = candidates_json(result.best).dump();
  report.memory_limit = plan.memory_limit > 0 ? plan.memory_limit : static_cast<double>(cluster.device.memory_bytes);
  write_durably(request.html, report_page(predictor, report));
}

}  // namespace

int plan_command(const Arguments& arguments) {
  Flags flags(kUsage, kSummary);
  Request request;
  add_flags(flags, request);
  Problems problems;
  if (!flags.read(arguments, problems)) return 0;
  for (const char* name : {"model", "cluster", "gpus", "global-batch", "seq-len"}) {
    problems.add_if(!flags.value_of(name), fmt::format("--{}: must be given", name));
  }
  PlanRequest& plan = request.plan;
  restrict_to(request.emit, plan);
  read_schedules(request, plan, problems);
  check_new_file("--html", request.html, problems);
  problems.throw_if_any();
  plan.memory_limit = static_cast<double>(request.memory_limit);
  Predictor predictor(load_model(request.model), load_cluster(request.cluster));
  PlanResult result = search_plans(predictor, plan);
  for (auto* list : {&result.best, &result.pareto}) {
    for (PlanCandidate& candidate : *list) candidate.run.model = request.model;
  }
  if (!request.html.empty()) write_report(request, result, predictor);
  std::string emitted;
  if (!result.best.empty()) {
    emitted = emit(request.emit, result.best.front().run, predictor.model(), predictor.cluster());
  }
  if (request.json) {
    fmt::print("{}\n", result_json(request, result, emitted).dump(2));
  } else if (request.emit == EmitFormat::none) {
    fmt::print("{}", result_text(result));
  } else {
    fmt::print("{}", emitted);
    fmt::print(stderr, "{}\n", result.explanation);
  }
  return 0;
}

}  // namespace cuboid::launch
