#include <chrono>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cuboid/core/log.h"
#include "cuboid/core/median.h"
#include "cuboid/core/units.h"
#include "cuboid/formats/cluster_file.h"
#include "cuboid/formats/durable.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/plan/trace.h"
#include "cuboid/train/measure.h"
#include "cuboid/train/step_runner.h"

#include "launch/bench.h"
#include "launch/job.h"
#include "launch/step_fit.h"

namespace cuboid::launch {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr const char* kUsage = "cuboid bench step [--model M] [--tp N --pp N --dp N --cp N] [flags]";
constexpr const char* kSummary =
    "Times whole training steps on random tokens, and between them a matrix product of the same type on every rank at "
    "once:\nwhat share of the machine's rate the model's arithmetic reaches. Where the device's rated peak is known, "
    "also MFU (the model's\nFLOPs, by the peak) and HFU (all products that are computed, recomputation too).";
constexpr std::int64_t kProductOfCpu = 512;
constexpr std::int64_t kProductOfGpu = 4096;  // fills the largest of them

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Request {
  BenchRun bench;
  BenchRanks where;
  int rounds = 5;
  std::int64_t product = 0;
  std::string cluster;
  std::string save;
  int samples = kStepSamples;
  bool json = false;
};

void add_flags(Flags& flags, Request& request) {
  add_run_flags_of_bench(flags, request.bench);
  flags.text("order", "AXES", request.bench.order, "axes from the fastest-varying on");
  add_ranks_flags(flags, request.where);
  add_device_flag(flags, request.where.device);
  flags.section("Measurement");
  flags.whole("rounds", request.rounds, "steps measured, after one to warm up", 1, 10'000);
  flags.whole("product-size", request.product,
              fmt::format("N of the N³ product; 0: {}, on GPUs {}", kProductOfCpu, kProductOfGpu), 0, 1 << 16);
  flags.text("cluster", "C", request.cluster,
             "preset or file whose [device] has the rated peak that MFU and HFU refer to; on GPUs without it the "
             "preset that has the GPU");
  flags.text("save", "FILE.toml", request.save,
             "cluster file: also time steps of small models with a rank on every core, and fit the rates of products, "
             "attention, row kernels, messages and the optimizer to them");
  flags.whole("samples", request.samples, "small models of --save: fewer are quicker and say less", 1, kStepSamples);
  flags.toggle("json", request.json, "one JSON document");
}

/// What a rank could compute at most.
struct Peak {
  double flops_per_second = 0;
  std::string source;  // "hgx-h200, H200-SXM-141GB"
};

std::optional<Peak> peak_of(const Request& request) {
  const auto peak = [&](const std::string& cluster, const DeviceSpec& device) {
    return Peak{device.flops(request.bench.run.dtype), fmt::format("{}, {}", cluster, device.name)};
  };
  if (!request.cluster.empty()) {
    const Cluster cluster = load_cluster(request.cluster);
    return peak(cluster.name, cluster.device);
  }
  if (request.where.gpus.empty()) return std::nullopt;
  const GpuReport report = find_gpus();
  const auto rated = rating_of(report.gpus.at(static_cast<std::size_t>(request.where.gpus.front())));
  if (!rated) return std::nullopt;
  return peak(rated->cluster, rated->device);
}

// FLOPs of the products that all ranks compute in a step, from the trace of the model.
double executed_flops(const RunConfig& run, const ModelConfig& model) {
  const ModelTrace trace = trace_model(model, trace_options(run));
  double of_micro_batch = 0;  // on one tensor rank
  const auto add = [&](const TracedBlock& block) {
    of_micro_batch += block.repeat * (flops(block.forward) + flops(block.backward));
  };
  add(trace.embedding);
  for (const TracedBlock& layer : trace.layers) add(layer);
  add(trace.head);
  return of_micro_batch * run.grid.degree(Axis::tp) * run.global_batch / run.micro_batch;
}

struct Times {
  std::vector<double> steps, products;
  double product_flops = 0;
  std::map<std::string, double> spans;  // of rank 0, seconds of all steps
};

void run_rank(RankContext& self, const RunConfig& run, const ModelConfig& model, const PipelineLayout& layout,
              const Request& request, Times& times) {
  StepRunner runner(self, run, model, layout);
  const std::int64_t of_device = self.device.kind() == DeviceKind::cuda ? kProductOfGpu : kProductOfCpu;
  const std::int64_t size = request.product > 0 ? request.product : of_device;
  const TimedProduct product(self.device, run.dtype, size, size, size);
  const int in_a_row = product.enough();
  for (int round = -1; round < request.rounds; ++round) {  // the first warms up
    self.world->barrier();
    const auto start = Clock::now();
    runner.step(round + 1);
    self.device.synchronize();
    self.world->barrier();
    const double step = since(start);
    const double alone = product.seconds(in_a_row);
    if (round < 0 || self.rank != 0) continue;
    times.steps.push_back(step);
    times.products.push_back(alone);
    for (const auto& [kind, seconds] : seconds_by_kind(runner.spans())) times.spans[kind] += seconds;
  }
  if (self.rank == 0) times.product_flops = product.flops();
}

/// What the times say.
struct Rates {
  double seconds = 0;            ///< of a step
  double tokens_per_second = 0;  ///< of all ranks
  double model = 0;              ///< the model's FLOP/s, a rank
  double executed = 0;           ///< the same with recomputation
  double product = 0;            ///< of the product alone
};

Rates rates_of(const Times& times, const RunConfig& run, const ModelConfig& model) {
  Rates rates;
  rates.seconds = median(times.steps);
  const double tokens = static_cast<double>(run.global_batch) * run.seq_len;
  rates.tokens_per_second = tokens / rates.seconds;
  rates.model = flops_per_token(model, run.seq_len).training() * rates.tokens_per_second / run.grid.world();
  rates.executed = executed_flops(run, model) / rates.seconds / run.grid.world();
  rates.product = times.product_flops / median(times.products);
  return rates;
}

std::string json_of(const Rates& rates, const Times& times, const std::optional<Peak>& peak, const RunConfig& run,
                    const Request& request) {
  Json spans = Json::object();
  for (const auto& [kind, sum] : times.spans) spans[kind] = sum / request.rounds;
  const auto share = [&](double flops_per_second) {
    return peak ? Json(flops_per_second / peak->flops_per_second) : Json();
  };
  return Json{{"world", run.grid.world()},
              {"device", request.where.gpus.empty() ? "cpu" : "cuda"},
              {"step_seconds", rates.seconds},
              {"tokens_per_second", rates.tokens_per_second},
              {"model_flops_per_second_per_rank", rates.model},
              {"matmul_flops_per_second_per_rank", rates.product},
              {"share_of_matmul", rates.model / rates.product},
              {"mfu", share(rates.model)},
              {"hfu", share(rates.executed)},
              {"peak_flops_per_second", peak ? Json(peak->flops_per_second) : Json()},
              {"peak_source", peak ? Json(peak->source) : Json()},
              {"rank_0_seconds", spans}}
             .dump(2) +
         "\n";
}

std::string text_of(const Rates& rates, const Times& times, const std::optional<Peak>& peak, const Request& request,
                    const std::string& fitted) {
  std::string text =
      fmt::format("step {}, {:.0f} tokens/s, {:.1f} GFLOP/s a rank: {:.0f} % of a product's {:.1f} (median of {})\n",
                  human_seconds(rates.seconds), rates.tokens_per_second, rates.model * 1e-9,
                  100 * rates.model / rates.product, rates.product * 1e-9, request.rounds);
  if (peak) {
    text +=
        fmt::format("MFU {:.1f} %, HFU {:.1f} % of {:.4g} TFLOP/s ({})\n", 100 * rates.model / peak->flops_per_second,
                    100 * rates.executed / peak->flops_per_second, peak->flops_per_second * 1e-12, peak->source);
  } else if (!request.where.gpus.empty()) {
    text += "MFU unknown: no cluster preset has this GPU; name one that has its peak with --cluster\n";
  }
  text += fitted;
  for (const auto& [kind, sum] : times.spans) {
    text += fmt::format("  rank 0 {:<14} {}\n", kind, human_seconds(sum / request.rounds));
  }
  return text;
}

// What --save fits, written to its file; as text.
std::string saved_fit(const Request& request, DType dtype) {
  const StepFit fit = fit_steps(cluster_to_complete(request.save, {}), dtype, request.rounds, request.samples);
  write_durably(request.save, write_cluster_file(fit.cluster));
  log::info("wrote " + request.save);
  return fit_text(fit);
}

}  // namespace

int bench_step(const Arguments& arguments) {
  Flags flags(kUsage, kSummary);
  Request request;
  request.bench.run.model = "gpt2-nano";
  add_flags(flags, request);
  Problems problems;
  if (!flags.read(arguments, problems)) return 0;
  const Processes* job = join_job(FabricKind::automatic);
  problems.add_if(request.save.empty() && flags.value_of("samples").has_value(),
                  "--samples: says nothing without --save");
  problems.add_if(!request.save.empty() && request.where.device == DeviceChoice::cuda,
                  fmt::format("--save {}: what is fitted are the rates of CPU cores; leave it out with --device cuda",
                              request.save));
  check_new_file("--save", request.save, problems);
  ModelConfig model;
  const RunConfig run = checked_run(request.bench, model, problems);
  check_threads(request.where.device, run.threads_per_rank, problems);
  choose_gpus(request.where, run.grid.world(), problems);
  problems.throw_if_any();
  hosts_of_ranks(run.grid.world(), request.where);
  const std::optional<Peak> peak = peak_of(request);
  const PipelineLayout layout = plan_pipeline(run, model);
  Times times;
  run_on_ranks(run.grid.world(), request.where, run.threads_per_rank,
               [&](RankContext& self) { run_rank(self, run, model, layout, request, times); });
  if (job != nullptr && job->process() != 0) return 0;
  const std::string fitted = request.save.empty() ? "" : saved_fit(request, run.dtype);
  const Rates rates = rates_of(times, run, model);
  fmt::print("{}",
             request.json ? json_of(rates, times, peak, run, request) : text_of(rates, times, peak, request, fitted));
  return 0;
}

}  // namespace cuboid::launch
