#include "launch/step_fit.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <iterator>
#include <thread>

#include <fmt/format.h>

#include "cuboid/comm/ranks.h"
#include "cuboid/core/error.h"
#include "cuboid/core/units.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/kernels/kernels.h"
#include "cuboid/plan/cost.h"
#include "cuboid/plan/trace.h"
#include "cuboid/train/step_runner.h"

namespace cuboid::launch {
namespace {

using Clock = std::chrono::steady_clock;

// Small and less small, both families of layers, long and short sequences.
struct Sample {
  const char* model;
  int seq_len;
  int micro_batch;
};
constexpr Sample kSamples[] = {{"gpt2-nano", 64, 1},    {"gpt2-nano", 256, 2},  {"gpt2-micro", 128, 1},
                               {"gpt2-micro", 512, 1},  {"llama-nano", 64, 1},  {"llama-nano", 256, 2},
                               {"llama-micro", 128, 1}, {"llama-micro", 512, 1}};
constexpr int kMicroBatches = 3;  // of a rank and step; the shortest counts

// What a pass takes is a sum of these, each at a rate to be found.
enum Term { kProducts, kFill, kLaunch, kRows, kAttention, kAttentionGradient, kFixed, kTerms };
using Terms = std::array<double, kTerms>;

// What else the machine does only ever adds.
double shortest(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// How often each rate counts in a pass: the cost model's own formulas, with one rate at 1 and the others free.
Terms terms_of(const TracedPass& pass, const Cluster& cluster) {
  Cluster flops = cluster;
  flops.device.bfloat16_flops = flops.device.float32_flops = 1;
  flops.device.memory_bandwidth = 1e300;
  flops.stack.matmul_efficiency = flops.stack.attention_efficiency = flops.stack.attention_backward_efficiency = 1;
  flops.stack.memory_efficiency = flops.stack.row_traffic = 1;
  flops.stack.launch_seconds = flops.stack.matmul_fill = 0;
  Cluster filled = flops;
  filled.stack.matmul_fill = 1;
  Cluster bytes = flops;
  bytes.device.memory_bandwidth = 1;
  Terms terms{};
  for (const TracedEvent& event : pass.events) {
    const auto* kernel = std::get_if<TracedKernel>(&event);
    if (kernel == nullptr) continue;
    terms[kLaunch] += 1;
    switch (kernel->kind) {
      case TracedKernel::Kind::matmul:
        terms[kProducts] += kernel_seconds(flops, *kernel);
        terms[kFill] += kernel_seconds(filled, *kernel) - kernel_seconds(flops, *kernel);
        break;
      case TracedKernel::Kind::attention:
        terms[kernel->gradient ? kAttentionGradient : kAttention] += kernel_seconds(flops, *kernel);
        break;
      case TracedKernel::Kind::other:
        terms[kRows] += kernel_seconds(bytes, *kernel);
        break;
    }
  }
  return terms;
}

struct MeasuredPass {
  std::string what;
  Terms terms{};
  double seconds = 0;
};

/// Least squares of relative errors, no coefficient below 0: each is set to its best beside the others, over and over.
template <std::size_t N>
std::array<double, N> non_negative_fit(const std::vector<std::pair<std::array<double, N>, double>>& rows) {
  std::array<std::array<double, N>, N> square{};
  std::array<double, N> right{};
  std::array<double, N> scale{};
  for (const auto& [terms, seconds] : rows) {
    for (std::size_t i = 0; i < N; ++i) scale[i] = std::max(scale[i], terms[i] / seconds);
  }
  for (const auto& [terms, seconds] : rows) {
    for (std::size_t i = 0; i < N; ++i) {
      if (scale[i] == 0) continue;
      const double a = terms[i] / seconds / scale[i];
      right[i] += a;
      for (std::size_t j = 0; j < N; ++j) {
        if (scale[j] > 0) square[i][j] += a * terms[j] / seconds / scale[j];
      }
    }
  }
  constexpr int kSweeps = 20'000;
  std::array<double, N> found{};
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (std::size_t i = 0; i < N; ++i) {
      if (square[i][i] == 0) continue;
      double rest = right[i];
      for (std::size_t j = 0; j < N; ++j) rest -= j == i ? 0 : square[i][j] * found[j];
      found[i] = std::max(0.0, rest / square[i][i]);
    }
  }
  for (std::size_t i = 0; i < N; ++i) found[i] = scale[i] == 0 ? 0 : found[i] / scale[i];
  return found;
}

struct Times {
  std::vector<double> forward, backward, update;
};

Times measure(const RunConfig& run, const ModelConfig& model, int rounds) {
  const PipelineLayout layout = plan_pipeline(run, model);
  Times times;
  run_ranks(run.grid.world(), [&](RankContext& self) {
    StepRunner runner(self, run, model, layout);
    for (int round = -1; round < rounds; ++round) {
      self.world->barrier();
      runner.step(round + 1);
      if (round < 0 || self.rank != 0) continue;
      for (const Span& span : runner.spans()) {
        const double seconds = span.end - span.begin;
        if (span.action.kind == ActionKind::forward) times.forward.push_back(seconds);
        if (span.action.kind == ActionKind::backward) times.backward.push_back(seconds);
        if (span.action.kind == ActionKind::step) times.update.push_back(seconds);
      }
    }
  });
  return times;
}

// Bytes/s that sums of arrays move, on all cores at once.
double measured_bandwidth(int cores) {
  constexpr std::int64_t kElements = 1 << 18;
  constexpr int kRounds = 101;
  std::vector<double> times;
  run_ranks(cores, [&](RankContext& self) {
    const Tensor a = self.device.zeros({kElements}, DType::float32, Category::workspace);
    const Tensor b = self.device.zeros({kElements}, DType::float32, Category::workspace);
    const Tensor c = self.device.zeros({kElements}, DType::float32, Category::workspace);
    for (int round = 0; round < kRounds; ++round) {
      const auto start = Clock::now();
      kernels::add(self.device, a, b, c);
      if (self.rank == 0) times.push_back(since(start));
    }
  });
  return 3.0 * kElements * sizeof(float) / shortest(times);
}

void set_rates(Cluster& cluster, const Terms& rates, DType dtype) {
  if (!(rates[kProducts] > 0)) {
    throw Error(ErrorKind::failed, "--save: the times measured say nothing of matrix products; is the machine busy?");
  }
  double& peak = dtype == DType::bfloat16 ? cluster.device.bfloat16_flops : cluster.device.float32_flops;
  // A rate is a share of the peak; what is faster than any product lasts as long as at the peak.
  for (const Term term : {kProducts, kAttention, kAttentionGradient}) {
    if (rates[term] > 0) peak = std::max(peak, 1 / rates[term]);
  }
  const auto share = [&](Term term) { return rates[term] > 0 ? std::min(1.0, 1 / (rates[term] * peak)) : 1.0; };
  SoftwareStack& stack = cluster.stack;
  stack.matmul_efficiency = share(kProducts);
  stack.attention_efficiency = share(kAttention);
  stack.attention_backward_efficiency = share(kAttentionGradient);
  stack.matmul_fill = rates[kFill] / rates[kProducts];
  stack.launch_seconds = rates[kLaunch];
  stack.row_traffic = std::max(1e-3, rates[kRows] * cluster.device.memory_bandwidth * stack.memory_efficiency);
  stack.micro_batch_seconds = 2 * rates[kFixed];
}

}  // namespace

StepFit fit_steps(Cluster cluster, DType dtype, int rounds) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<MeasuredPass> passes;
  std::vector<std::pair<std::array<double, 2>, double>> updates;
  for (const Sample& sample : kSamples) {
    const ModelConfig model = load_model(sample.model);
    RunConfig run;
    run.grid = Grid({{1, 1, 1, cores, 1}}, Grid::kDefaultOrder);
    run.seq_len = sample.seq_len;
    run.micro_batch = sample.micro_batch;
    run.global_batch = kMicroBatches * sample.micro_batch * cores;
    run.dtype = dtype;
    TraceOptions options;
    options.micro_batch = run.micro_batch;
    options.seq_len = run.seq_len;
    options.dtype = dtype;
    options.reduce_dtype = run.reduce_dtype;
    const ModelTrace trace = trace_model(model, options);
    const Times times = measure(run, model, rounds);
    MeasuredPass forward{fmt::format("{}, {} x {} tokens, F", sample.model, sample.micro_batch, sample.seq_len),
                         {},
                         shortest(times.forward)};
    MeasuredPass backward = forward;
    backward.what.back() = 'B';
    backward.seconds = shortest(times.backward);
    const auto add = [&](const TracedBlock& block) {
      const Terms f = terms_of(block.forward, cluster);
      const Terms b = terms_of(block.backward, cluster);
      for (std::size_t i = 0; i < kTerms; ++i) {
        forward.terms[i] += block.repeat * f[i];
        backward.terms[i] += block.repeat * b[i];
      }
    };
    add(trace.embedding);
    for (const TracedBlock& layer : trace.layers) add(layer);
    add(trace.head);
    forward.terms[kFixed] = backward.terms[kFixed] = 1;
    passes.push_back(forward);
    passes.push_back(backward);
    updates.push_back({{static_cast<double>(trace.total_parameters), 1.0}, shortest(times.update)});
  }
  cluster.device.shared_cores = cores;
  cluster.device.processors = 1;
  cluster.device.memory_bandwidth = measured_bandwidth(cores);
  cluster.stack.memory_efficiency = 1;
  std::vector<std::pair<Terms, double>> rows;
  for (const MeasuredPass& pass : passes) rows.emplace_back(pass.terms, pass.seconds);
  const Terms rates = non_negative_fit(rows);
  set_rates(cluster, rates, dtype);
  const auto update = non_negative_fit(updates);
  cluster.stack.optimizer_traffic = update[0] * cluster.device.memory_bandwidth;
  cluster.stack.step_seconds = update[1];
  StepFit fit{std::move(cluster), {}};
  for (const MeasuredPass& pass : passes) {
    double predicted = 0;
    for (std::size_t i = 0; i < kTerms; ++i) predicted += rates[i] * pass.terms[i];
    fit.passes.push_back({pass.what, pass.seconds, predicted});
  }
  return fit;
}

std::string fit_text(const StepFit& fit) {
  std::string text;
  for (const FittedPass& pass : fit.passes) {
    text += fmt::format("{:<34} measured {:>9}, fitted {:>9}  {:+.0f} %\n", pass.what, human_seconds(pass.measured),
                        human_seconds(pass.predicted), 100 * (pass.predicted / pass.measured - 1));
  }
  return text;
}

}  // namespace cuboid::launch
