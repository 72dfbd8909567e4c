#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cuboid/core/log.h"
#include "cuboid/core/median.h"
#include "cuboid/core/svg.h"
#include "cuboid/core/text.h"
#include "cuboid/core/units.h"
#include "cuboid/formats/cluster_file.h"
#include "cuboid/formats/durable.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/plan/step_traffic.h"
#include "cuboid/train/measure.h"
#include "cuboid/train/step_runner.h"

#include "launch/bench.h"
#include "launch/job.h"

namespace cuboid::launch {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kFitSeconds = 0.1;  // of each measurement before the fit
constexpr int kFitPasses = 3;
constexpr double kLeastWeight = 1e-3;
constexpr int kMostInARow = 16;  // more are like these
constexpr std::int64_t kSmallBytes = 4096;
constexpr const char* kUsage = "cuboid bench map --model M --tp N --pp N --dp N --cp N [flags]";
constexpr const char* kSummary =
    "Runs the same training step, and its communication alone, under each order of the axes and under the best "
    "placement, in\nturn, and ranks them: measured beside predicted. Start it with mpirun to place processes of "
    "several "
    "hosts.";

struct Request {
  BenchRanks where;
  BenchRun bench;
  int rounds = 5;
  std::string cluster;
  std::string svg;
  bool json = false;
};

/// A way to put the grid's ranks on the job's: rank r of the grid runs as rank `seat[r]` of the job.
struct Mapping {
  std::string name;
  std::vector<int> seat;
  double predicted_comm = 0;
  std::vector<double> comm, step;  // seconds of each round

  double comm_seconds() const { return median(comm); }
  double step_seconds() const { return median(step); }
};

void add_flags(Flags& flags, Request& request) {
  add_run_flags_of_bench(flags, request.bench);
  add_ranks_flags(flags, request.where);
  flags.section("Measurement");
  flags.whole("rounds", request.rounds, "of every mapping, in turn, after one to warm up", 1, 10'000);
  flags.text(
      "cluster", "FILE.toml", request.cluster,
      "latencies and bandwidths to predict with (bench comm --save); without it they are measured and fitted first");
  flags.section("Output");
  flags.text("svg", "FILE", request.svg, "bars of measured and predicted times");
  flags.toggle("json", request.json, "one JSON document");
}

/// The communication of a step and nothing else, on the grid's communicators.
class CommunicationAlone {
 public:
  CommunicationAlone(const Groups& groups, const Device& device, const Traffic& traffic)
      : groups_(groups), device_(device), traffic_(traffic) {
    std::int64_t most = 1;
    for (const AxisTraffic& t : traffic) most = std::max(most, elements(t) + groups.axis(t.axis).size());
    in_ = device.zeros({most}, DType::float32, Category::communication);
    out_ = device.zeros({most}, DType::float32, Category::communication);
  }
  void run() {
    for (const AxisTraffic& t : traffic_) {
      const auto times = static_cast<int>(std::lround(t.count));
      for (int i = 0; i < times; ++i) once(t, i);
    }
  }

 private:
  static std::int64_t elements(const AxisTraffic& t) {
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(t.bytes / 4));
  }
  void once(const AxisTraffic& t, int turn) {
    Communicator& comm = groups_.axis(t.axis);
    const std::int64_t n = comm.size();
    const std::int64_t part = std::max<std::int64_t>(1, elements(t) / n);
    const Tensor whole_in = in_.narrow(0, part * n);
    const Tensor whole_out = out_.narrow(0, part * n);
    switch (t.operation) {
      case CommOperation::all_reduce:
        comm.all_reduce(in_.narrow(0, elements(t)), out_.narrow(0, elements(t)), ReduceOp::sum).wait();
        break;
      case CommOperation::reduce_scatter:
        comm.reduce_scatter(whole_in, out_.narrow(0, part), ReduceOp::sum).wait();
        break;
      case CommOperation::all_gather:
        comm.all_gather(in_.narrow(0, part), whole_out).wait();
        break;
      case CommOperation::all_to_all:
        comm.all_to_all(whole_in, whole_out).wait();
        break;
      case CommOperation::broadcast:
        comm.broadcast(in_.narrow(0, elements(t)), 0).wait();
        break;
      case CommOperation::send: {
        // Activations go to the next stage, gradients come back, in turn.
        const int step = turn % 2 == 0 ? 1 : -1;
        const int to = comm.rank() + step;
        const int from = comm.rank() - step;
        if (to >= 0 && to < comm.size()) comm.send(device_.empty({elements(t)}, DType::float32), to, 0).wait();
        if (from >= 0 && from < comm.size()) comm.recv(Shape({elements(t)}), DType::float32, from, 0).wait();
        break;
      }
    }
  }

  const Groups& groups_;
  const Device& device_;
  const Traffic& traffic_;
  Tensor in_, out_;
};

/// A rank's part in one mapping: its own numbering of the world, model, and communication.
struct Seat {
  std::unique_ptr<Communicator> world;
  RankContext context;
  std::unique_ptr<Groups> groups;
  std::unique_ptr<CommunicationAlone> communication;
  std::unique_ptr<StepRunner> runner;

  Seat(RankContext& self, const Mapping& mapping, const RunConfig& run, const ModelConfig& model,
       const PipelineLayout& layout, const Traffic& traffic)
      : context(self) {
    const auto rank = std::find(mapping.seat.begin(), mapping.seat.end(), self.rank) - mapping.seat.begin();
    world = self.world->split(0, static_cast<int>(rank), "world");
    context.rank = static_cast<int>(rank);
    context.world = world.get();
    groups = std::make_unique<Groups>(run.grid, *world);
    communication = std::make_unique<CommunicationAlone>(*groups, context.device, traffic);
    runner = std::make_unique<StepRunner>(context, run, model, layout);
  }
};

// Seconds from a barrier until the slowest rank is done.
double together(RankContext& self, const std::function<void()>& work) {
  self.world->barrier();
  const auto start = std::chrono::steady_clock::now();
  work();
  const Tensor time = self.device.empty({1}, DType::float64, Category::communication);
  time.data<double>()[0] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  all_reduce_in_place(*self.world, time, ReduceOp::max);
  return time.data<double>()[0];
}

/// What a step sends: bytes by axis, operation and size.
using BytesSent = std::map<std::tuple<Axis, CommOperation, std::int64_t>, double>;

BytesSent bytes_sent(const Traffic& traffic) {
  BytesSent sent;
  for (const AxisTraffic& t : traffic) {
    sent[{t.axis, t.operation, std::max<std::int64_t>(4, static_cast<std::int64_t>(t.bytes))}] += t.bytes * t.count;
  }
  return sent;
}

// The operations of this very step, in the sizes that most of its bytes have and in a small one, as many in a row as in
// the step: messages that follow each other fill the gaps that a single one leaves.
CommPlan plan_of_step(const Grid& grid, const BytesSent& sent) {
  CommPlan plan;
  plan.seconds = kFitSeconds;
  std::map<std::int64_t, double> bytes_in;  // by size
  for (const auto& [what, bytes] : sent) {
    const auto& [axis, operation, size] = what;
    bytes_in[size] += bytes;
    const double there = operation == CommOperation::send ? 2 : 1;  // a round is there and back
    plan.in_a_row[what] =
        std::clamp(static_cast<int>(std::lround(bytes / (static_cast<double>(size) * there))), 1, kMostInARow);
    const bool known = std::find(plan.operations.begin(), plan.operations.end(), operation) != plan.operations.end();
    if (!known) plan.operations.push_back(operation);
  }
  std::vector<std::pair<double, std::int64_t>> sizes;  // bytes of a step, size
  for (const auto& [size, bytes] : bytes_in) sizes.emplace_back(bytes, size);
  std::sort(sizes.rbegin(), sizes.rend());
  plan.sizes = {kSmallBytes};
  for (std::size_t i = 0; i < std::min<std::size_t>(sizes.size(), 2); ++i) {
    if (sizes[i].second != kSmallBytes) plan.sizes.push_back(sizes[i].second);
  }
  for (Axis axis : kAxes) {
    if (grid.degree(axis) > 1) plan.axes.push_back({axis});
  }
  return plan;
}

// Samples of several passes as one: the median of each.
std::vector<CommSample> middle_of(const std::vector<std::vector<CommSample>>& passes) {
  std::vector<CommSample> samples = passes.front();
  for (std::size_t i = 0; i < samples.size(); ++i) {
    std::vector<double> means;
    for (const auto& pass : passes) means.push_back(pass[i].times.mean);
    samples[i].times.mean = median(means);
  }
  return samples;
}

std::vector<LevelFit> measured_levels(HostedRanks& hosted, const Request& request, const Grid& grid,
                                      const Traffic& traffic) {
  const BytesSent sent = bytes_sent(traffic);
  const CommPlan plan = plan_of_step(grid, sent);
  // Under the first and the last axis order, so that axes are seen inside hosts and across them; in turn against drift.
  const Grid grids[] = {grid, Grid(grid.degrees(), "pp-dp-ep-cp-tp")};
  std::vector<std::vector<CommSample>> passes[std::size(grids)];
  run_on_ranks(grid.world(), request.where, 1, [&](RankContext& self) {
    const bool keeps = self.rank % ranks_per_process(grid.world(), request.where) == 0;  // one of each process
    for (int pass = 0; pass < kFitPasses; ++pass) {
      for (std::size_t g = 0; g < std::size(grids); ++g) {
        auto samples = measure_comm(Groups(grids[g], *self.world), self.device, plan);
        if (keeps) passes[g].push_back(std::move(samples));
        self.world->barrier();
      }
    }
  });
  double all = 0;
  for (const auto& [what, bytes] : sent) all += bytes;
  std::vector<GridSamples> measured;
  for (std::size_t g = 0; g < std::size(grids); ++g) {
    GridSamples& set = measured.emplace_back(GridSamples{grids[g], middle_of(passes[g])});
    // What the step does most counts most; what it hardly does must not decide, since relative errors of small messages
    // are large.
    for (CommSample& sample : set.samples) {
      const auto own = sent.find({sample.axes.front(), sample.operation, static_cast<std::int64_t>(sample.bytes)});
      sample.weight = std::max(kLeastWeight, own == sent.end() ? 0 : own->second / all);
    }
  }
  return fit_levels(hosted, measured);
}

std::vector<Mapping> mappings_of(const HostedRanks& hosted, const Grid& grid, const Traffic& traffic,
                                 std::string& choice) {
  std::vector<int> rank_of_device(hosted.device_of_rank.size());
  for (std::size_t r = 0; r < hosted.device_of_rank.size(); ++r)
    rank_of_device[static_cast<std::size_t>(hosted.device_of_rank[r])] = static_cast<int>(r);
  const PlacedRanks placed = place_ranks(hosted.topology, grid, traffic);
  std::vector<Mapping> all;
  const auto add = [&](const std::string& name, const std::vector<int>& device_of_rank, double seconds) {
    Mapping mapping{name, {}, seconds, {}, {}};
    for (int device : device_of_rank) mapping.seat.push_back(rank_of_device[static_cast<std::size_t>(device)]);
    all.push_back(std::move(mapping));
  };
  for (const Alternative& other : placed.alternatives) add(other.order, other.device_of_rank, other.seconds);
  choice = placed.order;
  if (choice.empty()) {
    choice = "placed";
    add(choice, placed.device_of_rank, placed.cost.seconds);
  }
  return all;
}

/// What the figures say together.
struct Verdict {
  double computing = 0;        ///< step less communication, median over the mappings
  bool choice_is_best = true;  ///< no mapping's step is more than 2 % faster than the choice's
  int disagreements = 0;       ///< pairs whose communication differs by over 10 % and that prediction orders otherwise
  double largest_error = 0;    ///< of predicted communication
  double worst_to_best = 1;    ///< step time of the slowest mapping by that of the fastest
};

Verdict judge(const std::vector<Mapping>& all, const std::string& choice) {
  Verdict verdict;
  std::vector<double> rest;
  double fastest = INFINITY;
  double slowest = 0;
  double chosen = 0;
  for (const Mapping& m : all) {
    rest.push_back(std::max(0.0, m.step_seconds() - m.comm_seconds()));
    fastest = std::min(fastest, m.step_seconds());
    slowest = std::max(slowest, m.step_seconds());
    if (m.name == choice) chosen = m.step_seconds();
    verdict.largest_error = std::max(verdict.largest_error, std::abs(m.predicted_comm / m.comm_seconds() - 1));
    for (const Mapping& n : all) {
      if (m.comm_seconds() * 1.1 < n.comm_seconds() && m.predicted_comm >= n.predicted_comm) ++verdict.disagreements;
    }
  }
  verdict.computing = median(rest);
  verdict.choice_is_best = chosen <= 1.02 * fastest;
  verdict.worst_to_best = slowest / fastest;
  return verdict;
}

std::string table(const std::vector<Mapping>& all, const std::string& choice, const Verdict& verdict) {
  std::string text = fmt::format("{:<20} {:>10} {:>10} {:>7} {:>10} {:>10} {:>7}\n", "order", "comm", "predicted",
                                 "error", "step", "predicted", "error");
  for (const Mapping& m : all) {
    const double step = verdict.computing + m.predicted_comm;
    text += fmt::format("{:<20} {:>10} {:>10} {:>+6.0f}% {:>10} {:>10} {:>+6.0f}%{}\n", m.name,
                        human_seconds(m.comm_seconds()), human_seconds(m.predicted_comm),
                        100 * (m.predicted_comm / m.comm_seconds() - 1), human_seconds(m.step_seconds()),
                        human_seconds(step), 100 * (step / m.step_seconds() - 1),
                        m.name == choice ? "  <- the placer's choice" : "");
  }
  return text + fmt::format(
                    "the slowest order takes {:.2f} times the step of the fastest; the choice is {}; of pairs of "
                    "orders that differ by over 10 %, {} predicted the other way round\n",
                    verdict.worst_to_best, verdict.choice_is_best ? "the best" : "not the best",
                    verdict.disagreements == 1 ? "1 is" : fmt::format("{} are", verdict.disagreements));
}

std::string json_of(const std::vector<Mapping>& all, const std::string& choice, const Verdict& verdict,
                    const Traffic& traffic, const std::vector<std::string>& hosts) {
  Json mappings = Json::array();
  for (const Mapping& m : all) {
    mappings.push_back({{"order", m.name},
                        {"placement", m.seat},
                        {"chosen", m.name == choice},
                        {"comm_seconds", m.comm_seconds()},
                        {"predicted_comm_seconds", m.predicted_comm},
                        {"step_seconds", m.step_seconds()},
                        {"predicted_step_seconds", verdict.computing + m.predicted_comm}});
  }
  return Json{{"hosts", hosts},
              {"traffic", to_text(traffic)},
              {"mappings", mappings},
              {"choice", choice},
              {"choice_is_best", verdict.choice_is_best},
              {"worst_to_best", verdict.worst_to_best},
              {"disagreements", verdict.disagreements},
              {"largest_comm_error", verdict.largest_error}}
             .dump(2) +
         "\n";
}

std::string bars(const std::vector<Mapping>& all, const std::string& choice, const Verdict& verdict) {
  constexpr double kLeft = 170;
  constexpr double kWidth = 520;
  constexpr double kRow = 46;
  double longest = 0;
  for (const Mapping& m : all) longest = std::max({longest, m.step_seconds(), verdict.computing + m.predicted_comm});
  std::string body;
  double y = 64;
  for (const Mapping& m : all) {
    const auto bar = [&](double top, double begin, double seconds, const char* color, const std::string& title) {
      body += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"16\" fill=\"{}\"><title>{}</title></rect>\n",
          kLeft + kWidth * begin / longest, top, kWidth * seconds / longest, color, title);
    };
    body += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">{}{}</text>\n", kLeft - 8, y + 21,
                        xml_escaped(m.name), m.name == choice ? " *" : "");
    const double comm = std::min(m.comm_seconds(), m.step_seconds());
    bar(y, 0, comm, "#3b6fb6", "communication alone, measured " + human_seconds(m.comm_seconds()));
    bar(y, comm, m.step_seconds() - comm, "#b9cbe6", "step, measured " + human_seconds(m.step_seconds()));
    bar(y + 18, 0, m.predicted_comm, "#e09f2d", "communication, predicted " + human_seconds(m.predicted_comm));
    bar(y + 18, m.predicted_comm, verdict.computing, "#f3dcb4", "step, predicted");
    body += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\">{}</text>\n", kLeft + kWidth + 8, y + 13,
                        human_seconds(m.step_seconds()));
    body += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\">{}</text>\n", kLeft + kWidth + 8, y + 31,
                        human_seconds(verdict.computing + m.predicted_comm));
    y += kRow;
  }
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"790\" height=\"{0:.0f}\" viewBox=\"0 0 790 {0:.0f}\" "
             "font-family=\"sans-serif\" font-size=\"11\">\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"10\" y=\"24\" font-size=\"15\">Step "
             "time by placement</text>\n"
             "<text x=\"10\" y=\"44\">blue: measured (dark: its communication alone); amber: predicted; *: the "
             "placer's choice</text>\n",
             y + 8) +
         body + "</svg>\n";
}

void measure(const Request& request, const RunConfig& run, const ModelConfig& model, const Traffic& traffic,
             std::vector<Mapping>& all) {
  const PipelineLayout layout = plan_pipeline(run, model);
  run_on_ranks(run.grid.world(), request.where, run.threads_per_rank, [&](RankContext& self) {
    std::vector<std::unique_ptr<Seat>> seats;
    for (const Mapping& mapping : all)
      seats.push_back(std::make_unique<Seat>(self, mapping, run, model, layout, traffic));
    for (int round = -1; round < request.rounds; ++round) {
      for (std::size_t m = 0; m < all.size(); ++m) {
        const double comm = together(self, [&] { seats[m]->communication->run(); });
        const double step = together(self, [&] { seats[m]->runner->step(round + 1); });
        if (round < 0 || self.rank != 0) continue;
        all[m].comm.push_back(comm);
        all[m].step.push_back(step);
      }
    }
    self.world->barrier();
  });
}

}  // namespace

int bench_map(const Arguments& arguments) {
  Flags flags(kUsage, kSummary);
  Request request;
  request.bench.run.model = "gpt2-nano";
  add_flags(flags, request);
  Problems problems;
  if (!flags.read(arguments, problems)) return 0;
  join_job(FabricKind::automatic);
  check_new_file("--svg", request.svg, problems);
  ModelConfig model;
  const RunConfig run = checked_run(request.bench, model, problems);
  problems.add_if(run.grid.world() < 2, "the grid has one rank: there is nothing to place");
  choose_gpus(request.where, run.grid.world(), problems);
  problems.throw_if_any();
  const auto hosts = hosts_of_ranks(run.grid.world(), request.where);
  HostedRanks hosted = topology_of_hosts(hosts, ranks_per_process(run.grid.world(), request.where));
  const Traffic traffic = step_traffic(run, model);

  std::vector<LevelFit> fits;
  if (request.cluster.empty()) {
    fits = measured_levels(hosted, request, run.grid, traffic);
  } else {
    take_levels(hosted, load_cluster(request.cluster));
  }
  std::string choice;
  auto all = mappings_of(hosted, run.grid, traffic, choice);
  measure(request, run, model, traffic, all);
  if (job() != nullptr && job()->process() != 0) return 0;
  const Verdict verdict = judge(all, choice);
  if (!request.svg.empty()) {
    write_durably(request.svg, bars(all, choice, verdict));
    log::info("wrote " + request.svg);
  }
  fmt::print("{}", request.json ? json_of(all, choice, verdict, traffic, hosts)
                                : fits_text(fits) + table(all, choice, verdict));
  return 0;
}

}  // namespace cuboid::launch
