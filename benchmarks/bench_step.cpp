// Training steps against what the machine can do: model FLOP/s a rank beside the rate of a 1024³ matrix product of the
// same type, measured between the steps. Several variants of a run alternate step by step, so that other work on the
// machine and its clock disturb all of them alike:
//
//   bench_step                                     GPT-2, T=512, one rank, one thread
//   bench_step zero=0,dp=2 zero=1,dp=2             two variants and their ratio
//
// Rates are given by wall clock and by CPU seconds of the process: on a machine with other work only the second holds.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <semaphore>
#include <thread>

#include <boost/program_options.hpp>
#include <fmt/format.h>
#include <omp.h>

#include "cuboid/core/median.h"
#include "cuboid/core/text.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/train/check.h"
#include "cuboid/train/measure.h"
#include "cuboid/train/step_runner.h"

namespace cuboid {
namespace {

struct Seconds2 {
  double wall = 0, cpu = 0;
};

Seconds2 now() {
  timespec cpu{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  const auto wall = std::chrono::steady_clock::now().time_since_epoch();
  return {std::chrono::duration<double>(wall).count(),
          static_cast<double>(cpu.tv_sec) + 1e-9 * static_cast<double>(cpu.tv_nsec)};
}

Seconds2 operator-(Seconds2 a, Seconds2 b) {
  return {a.wall - b.wall, a.cpu - b.cpu};
}

template <typename F>
double median_of(const std::vector<Seconds2>& times, F&& part) {
  std::vector<double> values;
  for (const Seconds2& t : times) values.push_back(part(t));
  return median(std::move(values));
}

/// One variant's ranks, standing by until they are told to run a step.
class Session {
 public:
  Session(std::string label, const RunConfig& run, const ModelConfig& model)
      : name(std::move(label)), run_(run), model_(model), layout_(plan_pipeline(run, model)), thread_([this] {
          serve();
        }) {
    await();  // until the weights are there
  }
  ~Session() {
    stop_ = true;
    go_.release();
    thread_.join();
  }
  void step(bool counts) {
    const Seconds2 begin = now();
    go_.release();
    await();
    if (counts) steps.push_back(now() - begin);
  }
  int world() const { return run_.grid.world(); }
  const RunConfig& run() const { return run_; }

  std::string name;
  std::vector<Seconds2> steps;
  std::map<std::string, double> spans;  // seconds of rank 0 by kind of action, all steps

 private:
  void await() {
    ready_.acquire();
    if (failure_) std::rethrow_exception(failure_);
  }
  void serve() {
    try {
      run_ranks(world(), [this](RankContext& context) { serve_rank(context); },
                {.deadline = 3600, .threads_per_rank = run_.threads_per_rank});
    } catch (...) {
      failure_ = std::current_exception();
    }
    ready_.release();
  }
  void serve_rank(RankContext& context) {
    StepRunner runner(context, run_, model_, layout_);
    for (int s = 0;; ++s) {
      context.world->barrier();
      if (context.rank == 0) {
        ready_.release();
        go_.acquire();
      }
      context.world->barrier();
      if (stop_) return;
      runner.step(s);
      if (context.rank == 0) {
        for (const auto& [kind, seconds] : seconds_by_kind(runner.spans())) spans[kind] += seconds;
      }
    }
  }
  RunConfig run_;
  const ModelConfig& model_;
  PipelineLayout layout_;
  bool stop_ = false;
  std::exception_ptr failure_;
  std::binary_semaphore go_{0};
  std::binary_semaphore ready_{0};
  std::thread thread_;
};

/// A 1024³ product of one thread group, over and over.
class Product {
 public:
  explicit Product(DType dtype) : product_({}, dtype, kSize, kSize, kSize) {}
  void measure() {
    const Seconds2 begin = now();
    for (int i = 0; i < kRepeats; ++i) product_.multiply();
    times_.push_back(now() - begin);
  }
  double flops() const { return kRepeats * product_.flops(); }
  const std::vector<Seconds2>& times() const { return times_; }

 private:
  static constexpr std::int64_t kSize = 1024;
  static constexpr int kRepeats = 20;
  TimedProduct product_;
  std::vector<Seconds2> times_;
};

/// "zero=1,dp=2": settings of a variant, on top of the common ones.
RunConfig apply(RunConfig run, const std::string& settings) {
  AxisValues degrees{{1, 1, 1, 1, 1}};
  std::size_t begin = 0;
  while (begin < settings.size()) {
    const std::size_t end = std::min(settings.find(',', begin), settings.size());
    const std::string item = settings.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos) throw Error(ErrorKind::request, item + ": NAME=VALUE is expected");
    const std::string key = item.substr(0, equals);
    const std::string value = item.substr(equals + 1);
    const auto one_of = [&](auto choices) {
      for (const auto& [name, chosen] : choices) {
        if (value == name) return chosen;
      }
      throw Error(ErrorKind::request, item + ": no such value");
    };
    using std::pair;
    if (key == "dtype") {
      run.dtype =
          one_of(std::vector<pair<std::string, DType>>{{"float32", DType::float32}, {"bfloat16", DType::bfloat16}});
    } else if (key == "recompute") {
      run.recompute = one_of(std::vector<pair<std::string, Recompute>>{
          {"none", Recompute::none}, {"selective", Recompute::selective}, {"full", Recompute::full}});
    } else if (key == "schedule") {
      run.schedule = value;
    } else if (key == "sequence-parallel") {
      run.sequence_parallel = value == "1";
    } else if (key == "zero") {
      run.zero = std::stoi(value);
    } else if (key == "micro-batch") {
      run.micro_batch = std::stoi(value);
    } else if (key == "dropout") {
      run.dropout = std::stod(value);
    } else {
      const auto axis = std::find_if(kAxes.begin(), kAxes.end(), [&](Axis a) { return key == name_of(a); });
      if (axis == kAxes.end()) {
        throw Error(ErrorKind::request,
                    item + ": dtype, recompute, schedule, sequence-parallel, zero, micro-batch, dropout, tp, pp or dp");
      }
      degrees[*axis] = std::stoi(value);
    }
  }
  run.grid = Grid(degrees, Grid::kDefaultOrder);
  return run;
}

void report(const std::vector<std::unique_ptr<Session>>& sessions, std::map<DType, Product>& products,
            const ModelConfig& model, int rounds) {
  const auto wall = [](Seconds2 t) { return t.wall; };
  const auto cpu = [](Seconds2 t) { return t.cpu; };
  for (const auto& [dtype, product] : products) {
    fmt::print("matmul 1024x1024x1024 {}: {:.1f} GFLOP/s by CPU time, {:.1f} by wall clock (median of {})\n",
               name_of(dtype), product.flops() / median_of(product.times(), cpu) * 1e-9,
               product.flops() / median_of(product.times(), wall) * 1e-9, product.times().size());
  }
  fmt::print("{:32} {:>10} {:>10} {:>12} {:>12} {:>10} {:>10} {:>8}\n", "variant", "step s", "tokens/s", "GFLOP/s rank",
             "of matmul", "cpu s", "of matmul", "vs first");
  for (const auto& session : sessions) {
    const RunConfig& run = session->run();
    const double tokens = static_cast<double>(run.global_batch) * run.seq_len;
    const double flops = flops_per_token(model, run.seq_len).training() * tokens;
    const double seconds = median_of(session->steps, wall);
    const double cpu_seconds = median_of(session->steps, cpu);
    const auto& product = products.at(run.dtype);
    // A product of `threads` threads against a rank of as many.
    const double peak_wall = product.flops() / median_of(product.times(), wall);
    const double peak_cpu = product.flops() / median_of(product.times(), cpu);
    std::vector<double> ratios;
    for (std::size_t i = 0; i < session->steps.size(); ++i) {
      ratios.push_back(session->steps[i].cpu / sessions.front()->steps[i].cpu);
    }
    fmt::print("{:32} {:>10.4f} {:>10.1f} {:>12.1f} {:>11.1f}% {:>10.4f} {:>9.1f}% {:>8.3f}\n", session->name, seconds,
               tokens / seconds, flops / seconds / session->world() * 1e-9,
               100 * flops / seconds / session->world() / peak_wall, cpu_seconds, 100 * flops / cpu_seconds / peak_cpu,
               median(ratios));
    std::string parts;
    for (const auto& [kind, sum] : session->spans) parts += fmt::format(" {} {:.4f}", kind, sum / (rounds + 1));
    fmt::print("{:32}  rank 0, seconds a step:{}\n", "", parts);
  }
}

int run(int argc, char** argv) {
  namespace po = boost::program_options;
  std::string model_name;
  int rounds = 0;
  RunConfig common;
  common.data.paths = {"random tokens"};
  std::vector<std::string> variants;
  po::options_description options("bench_step [flags] [VARIANT...]: a VARIANT is NAME=VALUE,... (see the source)");
  options.add_options()("help", "print this")("model", po::value(&model_name)->default_value("gpt2"), "preset or path")(
      "steps", po::value(&rounds)->default_value(5), "measured steps of each variant")(
      "seq-len", po::value(&common.seq_len)->default_value(512), "T")(
      "micro-batch", po::value(&common.micro_batch)->default_value(4), "sequences at a time")(
      "global-batch", po::value(&common.global_batch)->default_value(4), "sequences a step")(
      "threads-per-rank", po::value(&common.threads_per_rank)->default_value(1), "OpenMP threads")(
      "variant", po::value(&variants), "");
  po::positional_options_description positions;
  positions.add("variant", -1);
  po::variables_map given;
  po::store(po::command_line_parser(argc, argv).options(options).positional(positions).run(), given);
  po::notify(given);
  if (given.contains("help")) {
    std::cout << options;
    return 0;
  }
  if (variants.empty()) variants = {"dtype=float32"};
  const ModelConfig model = load_model(model_name);
  omp_set_num_threads(common.threads_per_rank);

  std::map<DType, Product> products;
  std::vector<std::unique_ptr<Session>> sessions;
  for (const std::string& variant : variants) {
    const RunConfig config = apply(common, variant);
    Problems problems;
    check_run(model, config, problems);
    problems.throw_if_any();
    products.try_emplace(config.dtype, config.dtype);
    sessions.push_back(std::make_unique<Session>(variant, config, model));
  }
  fmt::print("{}, T={}, global batch {}, micro-batch {}, {} thread(s) a rank\n", model_name, common.seq_len,
             common.global_batch, common.micro_batch, common.threads_per_rank);
  for (int round = -1; round < rounds; ++round) {  // the first warms caches and memory up
    for (auto& [dtype, product] : products) product.measure();
    for (const auto& session : sessions) session->step(round >= 0);
  }
  for (auto& [dtype, product] : products) product.measure();
  report(sessions, products, model, rounds);
  return 0;
}

}  // namespace
}  // namespace cuboid

int main(int argc, char** argv) {
  try {
    return cuboid::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "bench_step: " << error.what() << "\n";
    return 2;
  }
}
