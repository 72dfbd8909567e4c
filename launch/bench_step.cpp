#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cuboid/core/log.h"
#include "cuboid/core/median.h"
#include "cuboid/core/random.h"
#include "cuboid/core/units.h"
#include "cuboid/formats/cluster_file.h"
#include "cuboid/formats/durable.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/kernels/kernels.h"
#include "cuboid/train/step_runner.h"

#include "launch/bench.h"
#include "launch/job.h"
#include "launch/step_fit.h"

namespace cuboid::launch {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr const char* kUsage = "cuboid bench step [--model M] [--tp N --pp N --dp N] [flags]";
constexpr const char* kSummary =
    "Times whole training steps on random tokens, and between them a matrix product of the same type on every rank at "
    "once:\nwhat share of the machine's rate the model's arithmetic reaches.";
constexpr std::int64_t kProduct = 512;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Times {
  std::vector<double> steps, products;
  std::map<std::string, double> spans;  // of rank 0, seconds of all steps
};

// F, B, …: what a span's action is called in schedules.
std::string kind_of(const Action& action) {
  switch (action.kind) {
    case ActionKind::forward:
      return "F";
    case ActionKind::backward:
      return "B";
    case ActionKind::input_gradient:
      return "I";
    case ActionKind::weight_gradient:
      return "W";
    case ActionKind::step:
      return "step";
    default:
      return "communication";
  }
}

void run_rank(RankContext& self, const RunConfig& run, const ModelConfig& model, const PipelineLayout& layout,
              int rounds, Times& times) {
  StepRunner runner(self, run, model, layout);
  const Tensor a = self.device.zeros({kProduct, kProduct}, run.dtype, Category::workspace);
  const Tensor b = self.device.zeros({kProduct, kProduct}, run.dtype, Category::workspace);
  const Tensor c = self.device.zeros({kProduct, kProduct}, run.dtype, Category::workspace);
  for (int round = -1; round < rounds; ++round) {  // the first warms up
    self.world->barrier();
    auto start = Clock::now();
    runner.step(round + 1);
    self.world->barrier();
    const double step = since(start);
    start = Clock::now();
    kernels::matmul(self.device, a, b, c);
    const double product = since(start);
    if (round < 0 || self.rank != 0) continue;
    times.steps.push_back(step);
    times.products.push_back(product);
    for (const Span& span : runner.spans()) times.spans[kind_of(span.action)] += span.end - span.begin;
  }
}

}  // namespace

int bench_step(const Arguments& arguments) {
  Flags flags(kUsage, kSummary);
  BenchRun bench;
  BenchRanks where;
  int rounds = 5;
  int samples = kStepSamples;
  std::string save;
  bool json = false;
  bench.run.model = "gpt2-nano";
  add_run_flags_of_bench(flags, bench);
  flags.text("order", "AXES", bench.order, "axes from the fastest-varying on");
  add_ranks_flags(flags, where);
  flags.section("Measurement");
  flags.whole("rounds", rounds, "steps measured, after one to warm up", 1, 10'000);
  flags.text("save", "FILE.toml", save,
             "cluster file: also time steps of small models with a rank on every core, and fit the rates of products, "
             "attention, row kernels, messages and the optimizer to them");
  flags.whole("samples", samples, "small models of --save: fewer are quicker and say less", 1, kStepSamples);
  flags.toggle("json", json, "one JSON document");
  Problems problems;
  if (!flags.read(arguments, problems)) return 0;
  join_job(FabricKind::automatic);
  problems.add_if(save.empty() && flags.value_of("samples").has_value(), "--samples: says nothing without --save");
  problems.throw_if_any();
  const ModelConfig model = load_model(bench.run.model);
  const RunConfig run = checked_run(bench, model, problems);
  problems.throw_if_any();
  hosts_of_ranks(run.grid.world(), where);
  const PipelineLayout layout = plan_pipeline(run, model);
  Times times;
  run_on_ranks(run.grid.world(), where, run.threads_per_rank,
               [&](RankContext& self) { run_rank(self, run, model, layout, rounds, times); });
  if (job() != nullptr && job()->process() != 0) return 0;

  std::string fitted;
  if (!save.empty()) {
    std::error_code ignored;
    const StepFit fit = fit_steps(load_cluster(std::filesystem::exists(save, ignored) ? save : "cpu-local"), run.dtype,
                                  rounds, samples);
    write_durably(save, write_cluster_file(fit.cluster));
    log::info("wrote " + save);
    fitted = fit_text(fit);
  }
  const double seconds = median(times.steps);
  const double tokens = static_cast<double>(run.global_batch) * run.seq_len;
  const double rate = flops_per_token(model, run.seq_len).training() * tokens / seconds / run.grid.world();
  const double product = 2.0 * kProduct * kProduct * kProduct / median(times.products);
  if (json) {
    Json spans = Json::object();
    for (const auto& [kind, sum] : times.spans) spans[kind] = sum / rounds;
    fmt::print("{}\n", Json{{"world", run.grid.world()},
                            {"step_seconds", seconds},
                            {"tokens_per_second", tokens / seconds},
                            {"model_flops_per_second_per_rank", rate},
                            {"matmul_flops_per_second_per_rank", product},
                            {"share_of_matmul", rate / product},
                            {"rank_0_seconds", spans}}
                           .dump(2));
    return 0;
  }
  fmt::print("step {}, {:.0f} tokens/s, {:.1f} GFLOP/s a rank: {:.0f} % of a {}³ product's {:.1f} (median of {})\n",
             human_seconds(seconds), tokens / seconds, rate * 1e-9, 100 * rate / product, kProduct, product * 1e-9,
             rounds);
  fmt::print("{}", fitted);
  for (const auto& [kind, sum] : times.spans) fmt::print("  rank 0 {:<14} {}\n", kind, human_seconds(sum / rounds));
  return 0;
}

}  // namespace cuboid::launch
