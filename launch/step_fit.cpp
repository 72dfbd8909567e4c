#include "launch/step_fit.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <iterator>
#include <thread>

#include <fmt/format.h>

#include "cuboid/comm/ranks.h"
#include "cuboid/core/error.h"
#include "cuboid/core/median.h"
#include "cuboid/core/units.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/kernels/kernels.h"
#include "cuboid/plan/cost.h"
#include "cuboid/plan/trace.h"
#include "cuboid/train/step_runner.h"

namespace cuboid::launch {
namespace {

using Clock = std::chrono::steady_clock;

// Small and less small, both families of layers, long and short sequences, split over tensor ranks and not; the first
// few already have some of each.
struct Sample {
  const char* model;
  int seq_len;
  int micro_batch;
  int tp;
};
constexpr Sample kSamples[] = {{"gpt2-nano", 64, 1, 1},   {"llama-nano", 256, 2, 1},  {"gpt2-nano", 192, 1, 2},
                               {"llama-micro", 64, 1, 1}, {"gpt2-micro", 256, 1, 1},  {"llama-nano", 64, 1, 2},
                               {"gpt2-nano", 256, 2, 1},  {"llama-micro", 256, 1, 2}, {"gpt2-micro", 128, 1, 2},
                               {"llama-nano", 128, 1, 1}};
static_assert(std::size(kSamples) == kStepSamples);
constexpr int kMicroBatches = 3;  // of a rank and step
constexpr int kPasses = 2;        // over the samples: what drifts meets all of them

// What a pass takes is a sum of these, each at a rate to be found.
enum Term { kProducts, kFill, kLaunch, kRows, kAttention, kAttentionGradient, kMessages, kTerms };
using Terms = std::array<double, kTerms>;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The cluster with every rate at 1 and what adds to them at 0.
Cluster unit_cluster(Cluster cluster) {
  cluster.device.bfloat16_flops = cluster.device.float32_flops = 1;
  cluster.device.memory_bandwidth = 1e300;
  cluster.stack.matmul_efficiency = cluster.stack.attention_efficiency = 1;
  cluster.stack.attention_backward_efficiency = cluster.stack.memory_efficiency = cluster.stack.row_traffic = 1;
  cluster.stack.launch_seconds = cluster.stack.matmul_fill = 0;
  cluster.levels.front().latency = 1;
  cluster.levels.front().link_bandwidth = 1e300;
  return cluster;
}

// How often each rate counts in a pass: the cost model's own formulas, with one rate at 1 and the others free.
Terms terms_of(const TracedPass& pass, const Cluster& cluster, const GroupPlacement& tensor) {
  const Cluster unit = unit_cluster(cluster);
  Cluster filled = unit;
  filled.stack.matmul_fill = 1;
  Cluster bytes = unit;
  bytes.device.memory_bandwidth = 1;
  Terms terms{};
  for (const TracedEvent& event : pass.events) {
    if (const auto* message = std::get_if<TracedCommunication>(&event)) {
      terms[kMessages] += collective_seconds(unit, tensor, message->operation, message->bytes);
      continue;
    }
    const auto& kernel = std::get<TracedKernel>(event);
    terms[kLaunch] += 1;
    switch (kernel.kind) {
      case TracedKernel::Kind::matmul:
        terms[kProducts] += kernel_seconds(unit, kernel);
        terms[kFill] += kernel_seconds(filled, kernel) - kernel_seconds(unit, kernel);
        break;
      case TracedKernel::Kind::attention:
        terms[kernel.gradient ? kAttentionGradient : kAttention] += kernel_seconds(unit, kernel);
        break;
      case TracedKernel::Kind::other:
        terms[kRows] += kernel_seconds(bytes, kernel);
        break;
    }
  }
  return terms;
}

// What the messages' bytes take: their bandwidth is known.
double bytes_seconds(const TracedPass& pass, Cluster cluster, const GroupPlacement& tensor) {
  cluster.levels.front().latency = 0;
  double seconds = 0;
  for (const TracedEvent& event : pass.events) {
    const auto* message = std::get_if<TracedCommunication>(&event);
    if (message != nullptr) seconds += collective_seconds(cluster, tensor, message->operation, message->bytes);
  }
  return seconds;
}

struct MeasuredPass {
  std::string what;
  Terms terms{};
  double known = 0;  // seconds of it that need no fit
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
  std::vector<double> forward, backward;
  std::vector<double> rest;  // of a step: all but passes and what is sent
};

void measure(const RunConfig& run, const ModelConfig& model, int rounds, Times& times) {
  const PipelineLayout layout = plan_pipeline(run, model);
  run_ranks(run.grid.world(), [&](RankContext& self) {
    StepRunner runner(self, run, model, layout);
    for (int round = -1; round < rounds; ++round) {  // the first warms up
      self.world->barrier();
      const auto start = Clock::now();
      runner.step(round + 1);
      double rest = since(start);
      if (round < 0 || self.rank != 0) continue;
      for (const Span& span : runner.spans()) {
        const double seconds = span.end - span.begin;
        if (span.action.kind == ActionKind::forward) times.forward.push_back(seconds);
        if (span.action.kind == ActionKind::backward) times.backward.push_back(seconds);
        if (span.action.kind != ActionKind::step) rest -= seconds;
      }
      times.rest.push_back(rest);
    }
  });
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
  return 3.0 * kElements * sizeof(float) / median(times);
}

// Median seconds of a kernel on all cores at once. @param make  of a device: the kernel on buffers of its own
double measured_kernel(int cores, const std::function<std::function<void()>(const Device&)>& make) {
  constexpr int kRounds = 21;
  std::vector<double> times;
  run_ranks(cores, [&](RankContext& self) {
    const std::function<void()> kernel = make(self.device);
    kernel();
    for (int round = 0; round < kRounds; ++round) {
      const auto start = Clock::now();
      kernel();
      if (self.rank == 0) times.push_back(since(start));
    }
  });
  return median(times);
}

MeasuredPass pass_of(const std::string& what, const TracedKernel& kernel, const Cluster& cluster, double seconds) {
  TracedPass pass;
  pass.events = {kernel};
  return {what, terms_of(pass, cluster, {}), 0, seconds};
}

// Products and attention alone: so that their rates are known whatever else a pass does.
std::vector<MeasuredPass> kernels_alone(const Cluster& cluster, DType dtype, int cores) {
  std::vector<MeasuredPass> measured;
  struct Product {
    std::int64_t m, n, k;
  };
  for (const auto& [m, n, k] : {Product{64, 384, 128}, {256, 512, 128}, {128, 256, 1024}, {512, 512, 512}}) {
    const TracedKernel kernel{.kind = TracedKernel::Kind::matmul, .dtype = dtype, .m = m, .n = n, .k = k};
    const double seconds = measured_kernel(cores, [&kernel](const Device& device) {
      const auto matrix = [&](std::int64_t rows, std::int64_t columns) {
        return device.zeros({rows, columns}, kernel.dtype, Category::workspace);
      };
      return [device, a = matrix(kernel.m, kernel.k), b = matrix(kernel.k, kernel.n), c = matrix(kernel.m, kernel.n)] {
        kernels::matmul(device, a, b, c);
      };
    });
    measured.push_back(pass_of(fmt::format("product of {} x {} x {}", m, n, k), kernel, cluster, seconds));
  }
  constexpr std::int64_t kHeads = 4;
  constexpr std::int64_t kHeadDim = 32;
  for (const std::int64_t tokens : {128, 256}) {
    for (const bool gradient : {false, true}) {
      TracedKernel kernel{.kind = TracedKernel::Kind::attention, .dtype = dtype, .gradient = gradient};
      kernel.flops = static_cast<double>((gradient ? 10 : 4) * kHeadDim * kHeads * tokens * (tokens + 1) / 2);
      const double seconds = measured_kernel(cores, [&](const Device& device) {
        const auto heads = [&] { return device.zeros({1, kHeads, tokens, kHeadDim}, dtype, Category::workspace); };
        const Tensor sums = device.zeros({1, kHeads, tokens}, DType::float32, Category::workspace);
        const Tensor out = device.zeros({tokens, 1, kHeads * kHeadDim}, dtype, Category::workspace);
        return [device, gradient, out, sums, dout = device.clone(out, Category::workspace), q = heads(), k = heads(),
                v = heads(), dq = heads(), dk = heads(), dv = heads()] {
          if (gradient) {
            kernels::attention_gradient(device, dout, q, k, v, out, sums, {}, dq, dk, dv);
          } else {
            kernels::attention(device, q, k, v, {}, out, sums);
          }
        };
      });
      const std::string what = fmt::format("attention{} of {} tokens", gradient ? "'s gradient" : "", tokens);
      measured.push_back(pass_of(what, kernel, cluster, seconds));
    }
  }
  return measured;
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
  stack.micro_batch_seconds = 0;
  if (rates[kMessages] > 0) cluster.levels.front().latency = rates[kMessages];
}

// A sample's run: on every core a rank.
RunConfig run_of(const Sample& sample, DType dtype, int cores) {
  const int tp = cores % sample.tp == 0 ? sample.tp : 1;
  RunConfig run;
  run.grid = Grid({{tp, 1, 1, cores / tp, 1}}, Grid::kDefaultOrder);
  run.seq_len = sample.seq_len;
  run.micro_batch = sample.micro_batch;
  run.global_batch = kMicroBatches * sample.micro_batch * run.grid.degree(Axis::dp);
  run.dtype = dtype;
  return run;
}

struct Measured {
  std::vector<MeasuredPass> passes;                                // F and B of each sample
  std::vector<std::pair<std::array<double, 2>, double>> the_rest;  // parameters and 1; seconds
};

void add_sample(const Sample& sample, const RunConfig& run, const Times& times, const Cluster& cluster,
                Measured& measured) {
  const ModelTrace trace = trace_model(load_model(sample.model), trace_options(run));
  const GroupPlacement tensor = place_group(cluster, run.grid, {Axis::tp});
  MeasuredPass forward{fmt::format("{}, {} x {} tokens, tp {}, F", sample.model, sample.micro_batch, sample.seq_len,
                                   run.grid.degree(Axis::tp)),
                       {},
                       0,
                       median(times.forward)};
  MeasuredPass backward = forward;
  backward.what.back() = 'B';
  backward.seconds = median(times.backward);
  double parameters = 0;
  const auto add = [&](const TracedBlock& block) {
    const auto add_pass = [&](MeasuredPass& sum, const TracedPass& pass) {
      const Terms terms = terms_of(pass, cluster, tensor);
      for (std::size_t i = 0; i < kTerms; ++i) sum.terms[i] += block.repeat * terms[i];
      sum.known += block.repeat * bytes_seconds(pass, cluster, tensor);
    };
    add_pass(forward, block.forward);
    add_pass(backward, block.backward);
    parameters += static_cast<double>(block.repeat * block.parameters.local);
  };
  add(trace.embedding);
  for (const TracedBlock& layer : trace.layers) add(layer);
  add(trace.head);
  measured.passes.push_back(forward);
  measured.passes.push_back(backward);
  measured.the_rest.push_back({{parameters, 1.0}, median(times.rest)});
}

}  // namespace

StepFit fit_steps(Cluster cluster, DType dtype, int rounds, int samples) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  cluster.device.shared_cores = cores;
  cluster.device.processors = 1;
  cluster.device.memory_bandwidth = measured_bandwidth(cores);
  cluster.stack.memory_efficiency = 1;
  const auto count = static_cast<std::size_t>(samples);
  std::vector<Times> times(count);
  for (int pass = 0; pass < kPasses; ++pass) {
    const int share = rounds / kPasses + (pass < rounds % kPasses ? 1 : 0);
    for (std::size_t i = 0; i < count && share > 0; ++i) {
      measure(run_of(kSamples[i], dtype, cores), load_model(kSamples[i].model), share, times[i]);
    }
  }
  Measured measured{kernels_alone(cluster, dtype, cores), {}};
  for (std::size_t i = 0; i < count; ++i) {
    add_sample(kSamples[i], run_of(kSamples[i], dtype, cores), times[i], cluster, measured);
  }
  std::vector<std::pair<Terms, double>> rows;
  for (const MeasuredPass& pass : measured.passes) {
    rows.emplace_back(pass.terms, std::max(pass.seconds - pass.known, 0.1 * pass.seconds));
  }
  const Terms rates = non_negative_fit(rows);
  set_rates(cluster, rates, dtype);
  const auto rest = non_negative_fit(measured.the_rest);
  cluster.stack.optimizer_traffic = rest[0] * cluster.device.memory_bandwidth;
  cluster.stack.step_seconds = rest[1];
  StepFit fit{std::move(cluster), {}};
  for (const MeasuredPass& pass : measured.passes) {
    double predicted = pass.known;
    for (std::size_t i = 0; i < kTerms; ++i) predicted += rates[i] * pass.terms[i];
    fit.passes.push_back({pass.what, pass.seconds, predicted});
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [terms, seconds] = measured.the_rest[i];
    fit.passes.push_back({fmt::format("{}, tp {}, the step's rest", kSamples[i].model, kSamples[i].tp), seconds,
                          rest[0] * terms[0] + rest[1] * terms[1]});
  }
  return fit;
}

std::string fit_text(const StepFit& fit) {
  std::string text;
  for (const FittedPass& pass : fit.passes) {
    text += fmt::format("{:<44} measured {:>9}, fitted {:>9}  {:+.0f} %\n", pass.what, human_seconds(pass.measured),
                        human_seconds(pass.predicted), 100 * (pass.predicted / pass.measured - 1));
  }
  return text;
}

}  // namespace cuboid::launch
