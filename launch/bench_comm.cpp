#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cuboid/core/log.h"
#include "cuboid/core/svg.h"
#include "cuboid/core/text.h"
#include "cuboid/core/units.h"
#include "cuboid/formats/durable.h"

#include "launch/bench.h"
#include "launch/job.h"

namespace cuboid::launch {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kUsage = "cuboid bench comm [--tp N --pp N --dp N --cp N] [flags]";
constexpr const char* kSummary =
    "Times collectives along every axis of a grid on the communicators that training uses, on all groups of an axis at "
    "once,\nand checks every result. algbw is bytes by time, busbw that times 2(n-1)/n for all_reduce and (n-1)/n for "
    "reduce_scatter,\nall_gather and all_to_all, as nccl-tests defines them; in decimal GB/s.";
constexpr const char* kOperations = "all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, send";
constexpr std::int64_t kLeastBytes = 4;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;
constexpr int kMostPairs = 32;  // ranks, of which all pairs are measured unless asked for

struct Request {
  BenchRanks where;
  AxisValues degrees{{1, 1, 1, 1, 1}};
  std::string order{Grid::kDefaultOrder};
  std::int64_t least = 4 << 10;
  std::int64_t most = 4 << 20;
  int factor = 4;
  double seconds = 0.1;
  std::vector<CommOperation> operations;
  std::vector<std::vector<Axis>> together;
  bool pairs = true;
  std::string svg;
  std::string save;
  bool json = false;
};

bool pairs_are_measured(const Request& request, int ranks) {
  return request.pairs && ranks <= kMostPairs;
}

Axis axis_named(const std::string& word) {
  const auto axis = std::find_if(kAxes.begin(), kAxes.end(), [&](Axis a) { return word == name_of(a); });
  if (axis == kAxes.end()) throw Error(ErrorKind::request, fmt::format("'{}' is not tp, cp, ep, dp or pp", word));
  return *axis;
}

void add_flags(Flags& flags, Request& request) {
  flags.section("Grid (no degree given: all ranks of a job, else all GPUs, at least 2, along tp)");
  for (Axis axis : kAxes)
    flags.whole(name_of(axis), request.degrees[axis], fmt::format("{} parallel degree", word_of(axis)), 1);
  flags.text("order", "AXES", request.order, "axes from the fastest-varying on");
  flags.section("Measurement");
  flags.add(
      "ops", "OP...", "all", kOperations,
      [&request](const Flags::Values& v) {
        for (const auto& word : v) {
          const auto operation = comm_operation(word);
          if (!operation) throw Error(ErrorKind::request, fmt::format("'{}' is not one of {}", word, kOperations));
          request.operations.push_back(*operation);
        }
      },
      true);
  flags.add(
      "together", "AXIS+AXIS...", "", "axes whose operations run at the same time, such as tp+dp",
      [&request](const Flags::Values& v) {
        for (const auto& words : v) {
          auto& axes = request.together.emplace_back();
          std::istringstream parts(words);
          for (std::string part; std::getline(parts, part, '+');) axes.push_back(axis_named(part));
        }
      },
      true);
  flags.bytes("min-bytes", request.least, "smallest size");
  flags.bytes("max-bytes", request.most, "largest size");
  flags.whole("factor", request.factor, "from a size to the next", 2, 1 << 20);
  flags.real("seconds", request.seconds, "of each measurement, at least 5 rounds", "SECONDS");
  flags.toggle("pairs", request.pairs,
               fmt::format("also messages between all pairs of ranks, where they are at most {}", kMostPairs));
  flags.section("Output");
  flags.text("svg", "FILE", request.svg, "heat map of the pairs");
  flags.text("save", "FILE.toml", request.save,
             "cluster file with the fitted latency and bandwidth of each level, for plan, simulate and topo");
  flags.toggle("json", request.json, "one JSON document");
}

struct Results {
  std::vector<CommSample> samples;
  std::vector<PairSample> pairs;
};

CommPlan plan_of(const Request& request, const Grid& grid) {
  CommPlan plan;
  for (Axis axis : kAxes) {
    if (grid.degree(axis) > 1) plan.axes.push_back({axis});
  }
  plan.axes.insert(plan.axes.end(), request.together.begin(), request.together.end());
  plan.operations = request.operations;
  if (plan.operations.empty()) {
    for (int o = 0; o < kCommOperations; ++o) plan.operations.push_back(static_cast<CommOperation>(o));
  }
  for (std::int64_t size = request.least; size <= request.most; size *= request.factor) plan.sizes.push_back(size);
  plan.seconds = request.seconds;
  return plan;
}

std::string axes_text(const std::vector<Axis>& axes) {
  std::vector<std::string> names;
  for (Axis axis : axes) names.emplace_back(name_of(axis));
  return join(names, "+");
}

std::string table(const Results& results) {
  std::string text = fmt::format("{:<8} {:<15} {:>3} {:>12} {:>10} {:>10} {:>10} {:>10} {:>7}\n", "axis", "operation",
                                 "n", "bytes", "p50", "p99", "algbw GB/s", "busbw GB/s", "rounds");
  for (const CommSample& s : results.samples) {
    text += fmt::format("{:<8} {:<15} {:>3} {:>12} {:>10} {:>10} {:>10.4f} {:>10.4f} {:>7}\n", axes_text(s.axes),
                        name_of(s.operation), s.ranks, s.bytes, human_seconds(s.times.p50), human_seconds(s.times.p99),
                        s.algbw() * 1e-9, s.busbw() * 1e-9, s.times.rounds);
  }
  if (results.pairs.empty()) return text;
  const int world = results.pairs.back().to + 1;
  text += "\npairs: GB/s above the diagonal, microseconds of a message below\n      ";
  for (int b = 0; b < world; ++b) text += fmt::format(" {:>8}", b);
  for (int a = 0; a < world; ++a) {
    text += fmt::format("\n{:>6}", a);
    for (int b = 0; b < world; ++b) {
      const auto pair = std::find_if(results.pairs.begin(), results.pairs.end(), [&](const PairSample& p) {
        return p.from == std::min(a, b) && p.to == std::max(a, b);
      });
      text += a == b ? fmt::format(" {:>8}", ".")
                     : fmt::format(" {:>8.3g}", a < b ? pair->bandwidth * 1e-9 : pair->latency * 1e6);
    }
  }
  return text + "\n";
}

std::string json_of(const Results& results, const std::vector<LevelFit>& fits, const std::vector<std::string>& hosts,
                    const Grid& grid) {
  Json document = {{"world", grid.world()}, {"order", grid.order()}, {"hosts", hosts}};
  Json degrees = Json::object();
  for (Axis axis : kAxes) degrees[name_of(axis)] = grid.degree(axis);
  document["grid"] = degrees;
  Json samples = Json::array();
  for (const CommSample& s : results.samples) {
    samples.push_back({{"axis", axes_text(s.axes)},
                       {"operation", name_of(s.operation)},
                       {"ranks", s.ranks},
                       {"bytes", std::llround(s.bytes)},
                       {"seconds", s.times.p50},
                       {"p99_seconds", s.times.p99},
                       {"mean_seconds", s.times.mean},
                       {"rounds", s.times.rounds},
                       {"algbw_bytes_per_second", s.algbw()},
                       {"busbw_bytes_per_second", s.busbw()}});
  }
  document["results"] = samples;
  Json pairs = Json::array();
  for (const PairSample& p : results.pairs) {
    pairs.push_back(
        {{"from", p.from}, {"to", p.to}, {"latency_seconds", p.latency}, {"bandwidth_bytes_per_second", p.bandwidth}});
  }
  document["pairs"] = pairs;
  Json levels = Json::array();
  for (const LevelFit& fit : fits) {
    Json by_size = Json::array();
    for (const auto& [bytes, error] : fit.error_by_size)
      by_size.push_back({{"bytes", std::llround(bytes)}, {"mean_relative_error", error}});
    levels.push_back({{"name", fit.level},
                      {"latency_seconds", fit.latency},
                      {"bandwidth_bytes_per_second", fit.bandwidth},
                      {"samples", fit.samples},
                      {"r_squared", fit.r_squared},
                      {"largest_relative_error", fit.largest_error},
                      {"by_size", by_size}});
  }
  document["levels"] = levels;
  return document.dump(2) + "\n";
}

// Pairs as a heat map: darker is faster, on a logarithmic scale; the number is GB/s.
std::string heat_map(const std::vector<PairSample>& pairs, const std::vector<std::string>& hosts) {
  const auto world = static_cast<int>(hosts.size());
  constexpr double kCell = 46;
  constexpr double kLeft = 120;
  constexpr double kTop = 70;
  double least = INFINITY;
  double most = 0;
  for (const auto& p : pairs) {
    least = std::min(least, p.bandwidth);
    most = std::max(most, p.bandwidth);
  }
  least = std::min(least, most / 4);  // small differences stay small
  std::string body;
  for (const auto& p : pairs) {
    const double share = most > least ? std::log(p.bandwidth / least) / std::log(most / least) : 1;
    const auto mix = [&](int from, int to) { return static_cast<int>(std::lround(from + (to - from) * share)); };
    for (const auto& [row, column] : {std::pair{p.from, p.to}, {p.to, p.from}}) {
      body += fmt::format(
          "<rect x=\"{0:.0f}\" y=\"{1:.0f}\" width=\"{2:.0f}\" height=\"{2:.0f}\" "
          "fill=\"#{3:02x}{4:02x}{5:02x}\"><title>{6} to {7}: {8:.4g} GB/s, {9:.3g} us</title></rect>\n"
          "<text x=\"{10:.0f}\" y=\"{11:.0f}\" text-anchor=\"middle\" fill=\"{12}\">{8:.3g}</text>\n",
          kLeft + column * kCell, kTop + row * kCell, kCell - 2, mix(238, 31), mix(243, 90), mix(250, 158), row, column,
          p.bandwidth * 1e-9, p.latency * 1e6, kLeft + (column + 0.5) * kCell - 1, kTop + (row + 0.5) * kCell + 4,
          share > 0.5 ? "#fff" : "#222");
    }
  }
  for (int r = 0; r < world; ++r) {
    const std::string name = fmt::format("{} {}", hosts[static_cast<std::size_t>(r)].substr(0, 12), r);
    body += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\">{}</text>\n", kLeft - 8,
                        kTop + (r + 0.5) * kCell + 4, xml_escaped(name));
    body += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text>\n", kLeft + (r + 0.5) * kCell,
                        kTop - 8, r);
  }
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
             "{1:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"10\" y=\"24\" font-size=\"15\">Messages "
             "between pairs of ranks, GB/s one way</text>\n",
             std::max(kLeft + world * kCell + 12, 420.0), kTop + world * kCell + 12) +
         body + "</svg>\n";
}

// Whether the axes that are measured show every level that the cluster file needs.
void check_save(const Request& request, const Grid& grid, const std::vector<std::string>& hosts, Problems& problems) {
  if (request.save.empty()) return;
  bool inside = false;
  bool across = false;
  bool several = false;
  for (Axis axis : kAxes) {
    if (grid.degree(axis) < 2) continue;
    bool crosses = false;
    for (const auto& group : grid.groups(axis)) {
      for (int rank : group)
        crosses |= hosts[static_cast<std::size_t>(rank)] != hosts[static_cast<std::size_t>(group.front())];
    }
    (crosses ? across : inside) = true;
  }
  for (const auto& host : hosts) several |= host != hosts.front();
  const bool shares = std::adjacent_find(hosts.begin(), hosts.end()) != hosts.end();
  problems.add_if(
      shares && !inside,
      fmt::format("--save {}: no axis stays inside a host, so nothing is learned of its memory; give another "
                  "grid or --order",
                  request.save));
  problems.add_if(
      several && !across,
      fmt::format("--save {}: no axis crosses hosts, so nothing is learned of the network; give another grid "
                  "or --order",
                  request.save));
}

Grid grid_of(const Flags& flags, Request& request) {
  const bool given =
      std::any_of(kAxes.begin(), kAxes.end(), [&](Axis a) { return flags.value_of(name_of(a)).has_value(); });
  if (!given) {
    const auto gpus = request.where.device == DeviceChoice::cuda ? static_cast<int>(find_gpus().gpus.size()) : 0;
    request.degrees[Axis::tp] =
        job() == nullptr ? std::max(gpus, 2) : job()->processes() * request.where.ranks_per_process;
  }
  return {request.degrees, request.order};
}

}  // namespace

int bench_comm(const Arguments& arguments) {
  Flags flags(kUsage, kSummary);
  Request request;
  add_flags(flags, request);
  add_ranks_flags(flags, request.where);
  add_device_flag(flags, request.where.device);
  Problems problems;
  if (!flags.read(arguments, problems)) return 0;
  join_job(FabricKind::automatic);
  problems.add_if(request.most < request.least,
                  fmt::format("--max-bytes {}: less than --min-bytes {}", request.most, request.least));
  problems.add_if(request.least < kLeastBytes || request.most > kMostBytes,
                  fmt::format("--min-bytes {} --max-bytes {}: sizes are from {} bytes to {}", request.least,
                              request.most, kLeastBytes, human_bytes(static_cast<std::uint64_t>(kMostBytes))));
  problems.add_if(!(request.seconds > 0), fmt::format("--seconds {}: must be over 0", request.seconds));
  check_new_file("--svg", request.svg, problems);
  check_new_file("--save", request.save, problems);
  problems.throw_if_any();
  const Grid grid = grid_of(flags, request);
  problems.add_if(grid.world() < 2, "the grid has one rank: nothing is sent");
  problems.add_if(!request.svg.empty() && !pairs_are_measured(request, grid.world()),
                  fmt::format("--svg {}: draws the pairs of ranks, which are measured of at most {} ranks and not with "
                              "--pairs=false",
                              request.svg, kMostPairs));
  for (const auto& axes : request.together) {
    for (Axis axis : axes) {
      problems.add_if(grid.degree(axis) < 2,
                      fmt::format("--together {}: the grid has one rank along {}", axes_text(axes), name_of(axis)));
    }
  }
  problems.throw_if_any();
  choose_gpus(request.where, grid.world(), problems);
  problems.throw_if_any();
  const auto hosts = hosts_of_ranks(grid.world(), request.where);
  check_save(request, grid, hosts, problems);
  const bool shared =
      std::set<int>(request.where.gpus.begin(), request.where.gpus.end()).size() == 1 && request.where.gpus.size() > 1;
  problems.add_if(shared && !request.save.empty(),
                  fmt::format("--save {}: the ranks share one GPU, so nothing is learned of links", request.save));
  problems.throw_if_any();
  const Cluster cluster = request.save.empty() ? Cluster() : cluster_to_complete(request.save, request.where.gpus);

  const CommPlan plan = plan_of(request, grid);
  Results results;
  run_on_ranks(grid.world(), request.where, 1, [&](RankContext& self) {
    const Groups groups(grid, *self.world);
    Results mine;
    mine.samples = measure_comm(groups, self.device, plan);
    if (pairs_are_measured(request, self.size)) {
      mine.pairs = measure_pairs(*self.world, self.device, 1 << 20, request.seconds / 5);
    }
    if (self.rank == 0) results = std::move(mine);
  });
  if (job() != nullptr && job()->process() != 0) return 0;
  HostedRanks hosted = topology_of_hosts(hosts, ranks_per_process(grid.world(), request.where));
  const auto fits = fit_levels(hosted, {{grid, results.samples}});
  if (!request.svg.empty()) {
    write_durably(request.svg, heat_map(results.pairs, hosts));
    log::info("wrote " + request.svg);
  }
  if (!request.save.empty()) save_levels(request.save, cluster, hosted.topology, fits);
  fmt::print("{}", request.json ? json_of(results, fits, hosts, grid) : table(results) + fits_text(fits));
  return 0;
}

}  // namespace cuboid::launch
