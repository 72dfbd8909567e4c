// cuboid train: reads the request, checks it, trains, and reports to people and machines.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cuboid/core/log.h"
#include "cuboid/core/text.h"
#include "cuboid/core/units.h"
#include "cuboid/formats/cluster_file.h"
#include "cuboid/formats/durable.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/formats/run_file.h"
#include "cuboid/formats/safetensors.h"
#include "cuboid/models/registry.h"
#include "cuboid/plan/memory.h"
#include "cuboid/runtime/memory_table.h"
#include "cuboid/train/check.h"
#include "cuboid/train/data.h"
#include "cuboid/train/memory.h"
#include "cuboid/train/trainer.h"
#include "cuboid/train/weights.h"

#include "launch/commands.h"
#include "launch/gpus.h"
#include "launch/job.h"
#include "launch/metrics.h"
#include "launch/outputs.h"
#include "launch/pipeline_report.h"
#include "launch/progress.h"
#include "launch/step_comparison.h"
#include "launch/stop_signal.h"
#include "launch/train_flags.h"

namespace cuboid::launch {
namespace {

constexpr const char* kUsage = "cuboid train --model M --data PATH... [flags]";
constexpr const char* kSummary =
    "Trains a transformer on a grid of ranks: threads of this process, or processes under mpirun and srun. What is\n"
    "learned does not depend on the grid. Everything is checked before anything is allocated; all reasons are reported "
    "at once.";

ModelConfig checked_model(const RunConfig& run, const Checkpoint* checkpoint, const Fabric& fabric, bool is_whole,
                          Problems& problems) {
  if (!is_whole) problems.throw_if_any();  // what was left to a file is unknown, not missing
  std::optional<ModelConfig> model;
  if (run.model.empty()) {
    problems.add("--model: give a preset name, a config.json or a folder with one; presets: " + join(preset_names()));
  } else {
    collect(problems, [&] { model = load_model(run.model); });
  }
  bool lays_out = false;
  if (model) {
    const std::size_t before = problems.reasons().size();
    check_run(*model, run, problems);
    lays_out = problems.reasons().size() == before && run.balance == Balance::flops;
  } else {
    check_settings(run, problems);
  }
  if (job() == nullptr || job()->process() == 0) check_outputs(run, problems);
  if (problems.empty()) return *model;
  // The request is refused: say what else is wrong with it too. (train() says so where nothing here is wrong.)
  if (lays_out) collect(problems, [&] { check_memory(run, *model, plan_pipeline(run, *model), fabric, problems); });
  if (model && checkpoint) check_checkpoint(*checkpoint, *model, problems);
  if (model && run.seq_len > 0 && !run.data.paths.empty()) {
    collect(problems, [&] { SampleSource(run.data, run.seq_len, model->vocab, run.seed); });
  }
  if (checkpoint == nullptr && !run.weights.empty()) {
    collect(problems, [&] {
      const WeightFolder weights = WeightFolder::open(run.weights);
      if (model) check_weights(weights, *model, problems);
    });
  }
  problems.throw_if_any();
  return {};
}

std::string grid_text(const Grid& grid) {
  std::string text;
  for (Axis axis : kAxes) {
    if (grid.degree(axis) > 1)
      text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name_of(axis), grid.degree(axis));
  }
  return text.empty() ? "1 rank" : fmt::format("{} ranks ({})", grid.world(), text);
}

void announce(const RunConfig& run, const ModelConfig& model, const RunStart& start) {
  log::info(fmt::format("{}, {} parameters, on {}", model.name, human_count(static_cast<double>(start.params)),
                        grid_text(run.grid)));
  log::info(fmt::format("{} samples of {} tokens to train on, {} to validate", start.train_samples, run.seq_len,
                        start.validation_samples));
  announce_pipeline(run, start);
}

// Settings in which a run differs from the one that wrote its checkpoint: what is learned changes, or only how.
void announce_resume(const Checkpoint& checkpoint, const RunConfig& run) {
  log::info(fmt::format("going on after step {} from {}", checkpoint.index().step, checkpoint.path()));
  if (checkpoint.index().step >= run.steps) log::info(fmt::format("all {} steps are done", run.steps));
  if (checkpoint.run() == nullptr) return;
  std::vector<std::string> layout;
  for (const auto& d : compare_runs(*checkpoint.run(), run)) {
    if (d.section == "Run") continue;
    const std::string change = fmt::format("{} = {} (stored: {})", d.key, d.now, d.stored);
    if (d.section == "Process grid" || d.section == "Pipeline" || d.key == "micro-batch") {
      layout.push_back(change);
    } else {
      log::warning("differs from the stored run: " + change);
    }
  }
  if (!layout.empty()) log::info("laid out differently from the stored run: " + join(layout));
}

// Whether a folder's checkpoints are another run's, which a new run would mix its own with.
void warn_of_other_checkpoints(const RunConfig& run) {
  if (run.out.empty() || !Checkpoint::find(run.out)) return;
  log::warning(
      fmt::format("--out {}: holds checkpoints of an earlier run; --resume auto would go on from there", run.out));
}

struct Finished {
  RunStart start;
  TrainResult result;
  std::vector<double> step_seconds;  // of every step
};

// What every rank was doing: a line each for people, the whole in the run's folder.
void tell_failure(const RunConfig& run, const std::vector<std::string>& reports) {
  for (const auto& report : reports) log::warning(report.substr(0, report.find('\n')));
  if (run.out.empty()) return;
  const auto path = std::filesystem::path(run.out) / "failure.txt";
  std::ofstream file(path);
  for (const auto& report : reports) file << report;
  file.close();
  if (file) log::warning("the last communications of every rank are in " + path.string());
}

Finished run_training(const RunConfig& asked, const ModelConfig& model, const Checkpoint* checkpoint,
                      const Fabric& fabric) {
  const RunConfig run = with_absolute_paths(asked);
  const int first_step = checkpoint ? static_cast<int>(checkpoint->index().step) : 0;
  std::unique_ptr<FolderLock> lock;
  Finished finished;
  std::optional<MetricsFile> metrics;
  std::optional<Progress> progress;
  TrainEvents events;
  events.on_start = [&](const RunStart& start) {
    if (!run.out.empty()) {
      const std::filesystem::path out(run.out);
      lock = make_output_folder(run);
      if (checkpoint == nullptr) warn_of_other_checkpoints(run);
      metrics.emplace((out / "metrics.jsonl").string(), first_step);
    }
    finished.start = start;
    announce(run, model, start);
    if (checkpoint) announce_resume(*checkpoint, run);
    progress.emplace(first_step, run.steps);
  };
  events.on_step = [&](const StepMetrics& step) {
    if (metrics) metrics->add(step);
    progress->step(step);
    finished.step_seconds.push_back(step.step_seconds);
  };
  events.on_validation = [&](int step, double loss) { progress->validation(step + 1, loss); };
  events.on_checkpoint = [&](const Position& position, const std::string& path) {
    log::info(fmt::format("checkpoint after step {}: {}", position.step, path));
  };
  events.on_failure = [&](const std::vector<std::string>& reports) { tell_failure(run, reports); };
  listen_for_stop(fabric.job == nullptr);
  events.stop_wanted = [] { return !stop_signal().empty(); };
  finished.result = train(run, model, events, checkpoint, fabric);
  return finished;
}

void announce_stop(const TrainResult& result, const RunConfig& run) {
  const std::string signal = stop_signal();
  const std::string why = signal.empty() ? fmt::format("--max-seconds {}", exact(run.max_seconds)) : signal;
  log::info(fmt::format("stopped after step {} of {} by {}{}", result.steps, run.steps, why,
                        run.out.empty() ? "; nothing is saved without --out"
                                        : fmt::format("; --resume auto --out {} goes on from there", run.out)));
}

// What the trace of the model and the run's own schedule said of each rank's memory. Nothing with --balance measured:
// its schedule rests on times that are not measured again; and nothing with GPUs: workspaces are the CPU's in a trace.
std::vector<MemoryUse> predicted_memory(const Finished& finished, RunConfig run, const ModelConfig& model,
                                        const Fabric& fabric) {
  if (run.balance == Balance::measured || !fabric.gpus.empty()) return {};
  run.stage_layers = finished.start.stage_layers;
  return predict_memory(run, model, plan_pipeline(run, model));
}

std::string summary(const Finished& finished, const RunConfig& run, const std::vector<MemoryUse>& predicted,
                    const StepComparison& steps) {
  const TrainResult& result = finished.result;
  std::string text = fmt::format("steps             {}\nloss              {:.4f}\n", result.steps, result.final_loss);
  if (result.validation_loss) text += fmt::format("validation loss   {:.4f}\n", *result.validation_loss);
  const bool stepped = !finished.step_seconds.empty();  // not where a resumed run was at its end
  if (stepped) text += fmt::format("tokens a second   {:.0f}\n", result.tokens_per_second);
  text += comparison_text(steps);
  if (stepped && run.grid.degree(Axis::pp) > 1) text += bubble_summary(finished.start, result);
  text += "memory at its peak\n" + memory_table_of_ranks(result.rank_peaks) + "\n";
  if (stepped && !predicted.empty()) text += "as predicted\n" + memory_table_of_ranks(predicted) + "\n";
  text += fmt::format("weights hash      {}\n", result.weights_hash);
  if (result.skipped_steps > 0) {
    text += fmt::format("skipped steps     {} (loss or gradient not finite)\n", result.skipped_steps);
  }
  if (!run.out.empty()) text += fmt::format("written to        {}\n", run.out);
  return text;
}

}  // namespace

int train_command(const Arguments& arguments) {
  Flags flags(kUsage, kSummary);
  RunDraft draft;
  bool json = false;
  std::string cluster_name;
  add_run_flags(flags, draft);
  flags.text("cluster", "C", cluster_name,
             "a preset or a TOML file, such as `bench --save` writes: what the step is predicted to take there stands "
             "beside what it took; default on CPUs: cpu-local with the cores of this machine");
  flags.toggle("json", json, "print the result as one JSON document on standard output");
  Problems problems;
  collect(problems, [] { join_job(FabricKind::automatic); });  // so that one process speaks for all from here on
  const RunConfig run = read_run(flags, draft, arguments, problems);
  if (flags.print_help_if_wanted()) return 0;
  const bool from_file = flags.value_of("config") || flags.value_of("resume");
  const bool is_whole = !from_file || !run.model.empty();
  Fabric fabric;
  collect(problems, [&] { fabric = {join_job(draft.fabric), draft.ranks_per_process}; });
  collect(problems,
          [&] { fabric.gpus = choose_gpus(draft.device, run.grid.world(), fabric.job, draft.ranks_per_process); });
  std::optional<Cluster> cluster;
  collect(problems, [&] {
    const bool here = cluster_name.empty() && fabric.gpus.empty();
    if (here) cluster_name = "cpu-local";
    if (cluster_name.empty()) return;
    cluster = load_cluster(cluster_name);
    // The preset is any machine's; this one's cores are known, and ranks share them.
    if (here) cluster->device.shared_cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  });
  const Checkpoint* checkpoint = draft.checkpoint ? &*draft.checkpoint : nullptr;
  const auto per_process = flags.value_of("ranks-per-process");
  problems.add_if(per_process && fabric.job == nullptr && draft.ranks_per_process != run.grid.world(),
                  fmt::format("--ranks-per-process {}: without mpirun or srun one process runs all {} ranks",
                              per_process.value_or(""), run.grid.world()));
  const ModelConfig model = checked_model(run, checkpoint, fabric, is_whole, problems);
  if (speaks()) {
    for (const auto& doubt : doubts_about_run(model, run)) log::warning(doubt);
  }
  const Finished finished = run_training(run, model, checkpoint, fabric);
  if (fabric.job != nullptr && fabric.job->process() != 0) return 0;  // rank 0's process has the result
  const TrainResult& result = finished.result;
  if (result.stopped) announce_stop(result, run);
  const std::vector<MemoryUse> predicted = predicted_memory(finished, run, model, fabric);
  const StepComparison steps = compare_step(cluster, cluster_name, run, model, finished.start, finished.step_seconds);
  fmt::print("{}", json ? result_document(finished.start, result, run.grid, predicted, steps) + "\n"
                        : summary(finished, run, predicted, steps));
  if (result.nan_stop) {
    throw Error(ErrorKind::failed,
                fmt::format("the loss or gradient of step {} is not a number (--stop-on-nan)", result.steps - 1));
  }
  return 0;
}

}  // namespace cuboid::launch
