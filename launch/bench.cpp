// cuboid bench: what this machine, or the hosts of a job, can do, measured with the code that trains.
#include "launch/bench.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include <fmt/format.h>
#include <unistd.h>

#include "cuboid/core/log.h"
#include "cuboid/core/text.h"
#include "cuboid/core/units.h"
#include "cuboid/formats/cluster_file.h"
#include "cuboid/formats/durable.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/train/check.h"

#include "launch/job.h"

namespace cuboid::launch {
namespace {

struct Kind {
  const char* name;
  const char* summary;
  int (*run)(const Arguments&);
};
constexpr Kind kKinds[] = {
    {"comm", "collectives along every axis of a grid, and messages between all pairs of ranks", bench_comm},
    {"gemm", "matrix products by shape", bench_gemm},
    {"step", "training steps, beside the rate of a matrix product", bench_step},
    {"map", "the same training step under each axis order and placement, measured beside predicted", bench_map},
};

}  // namespace

void add_ranks_flags(Flags& flags, BenchRanks& where) {
  flags.section("Ranks");
  flags.whole("ranks-per-process", where.ranks_per_process, "under mpirun or srun: ranks that are threads of a process",
              1, kMostRanksPerProcess);
  flags.real("deadline", where.deadline, "longest wait for another rank, in seconds", "SECONDS");
}

const char* word_of(Axis axis) {
  switch (axis) {
    case Axis::tp:
      return "tensor";
    case Axis::cp:
      return "context";
    case Axis::ep:
      return "expert";
    case Axis::dp:
      return "data";
    case Axis::pp:
      break;
  }
  return "pipeline";
}

void choose_gpus(BenchRanks& where, int world, Problems& problems) {
  if (job() == nullptr && world > kMostRanksPerProcess) {
    problems.add(fmt::format("the grid has {} ranks; one process runs at most {}", world, kMostRanksPerProcess));
    return;
  }
  collect(problems, [&] { where.gpus = choose_gpus(where.device, world, job(), where.ranks_per_process); });
}

void check_threads(DeviceChoice device, int threads_per_rank, Problems& problems) {
  problems.add_if(device == DeviceChoice::cuda && threads_per_rank > 1,
                  fmt::format("--threads-per-rank {}: with --device cuda a rank computes on its GPU; leave it at 1",
                              threads_per_rank));
}

int ranks_per_process(int world, const BenchRanks& where) {
  return job() == nullptr ? world : where.ranks_per_process;
}

std::vector<std::string> hosts_of_ranks(int world, const BenchRanks& where) {
  std::vector<std::string> hosts;
  if (Processes* all = job()) {
    const int present = all->processes() * where.ranks_per_process;
    if (present != world) {
      throw Error(ErrorKind::request,
                  fmt::format("the grid has {} ranks, but {} processes with --ranks-per-process {} are {}", world,
                              all->processes(), where.ranks_per_process, present));
    }
    for (const auto& host : all->hosts())
      hosts.insert(hosts.end(), static_cast<std::size_t>(where.ranks_per_process), host);
    return hosts;
  }
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return {static_cast<std::size_t>(world), name};
}

void run_on_ranks(int world, const BenchRanks& where, int threads_per_rank,
                  const std::function<void(RankContext&)>& body) {
  const RankOptions options{.deadline = where.deadline, .threads_per_rank = threads_per_rank, .gpus = where.gpus};
  if (Processes* all = job()) {
    all->run(world, where.ranks_per_process, body, options);
  } else {
    run_ranks(world, body, options);
  }
}

void add_run_flags_of_bench(Flags& flags, BenchRun& bench) {
  RunConfig& run = bench.run;
  flags.section("Training step");
  flags.text("model", "M", run.model, "preset name, config.json, or a folder with one");
  for (Axis axis : {Axis::tp, Axis::pp, Axis::dp, Axis::cp}) {
    flags.whole(name_of(axis), bench.degrees[axis], fmt::format("{} parallel degree", word_of(axis)), 1);
  }
  flags.text("schedule", "S", run.schedule, "pipeline schedule");
  flags.whole("zero", run.zero, "ZeRO stage over the ranks with copies", 0, 3);
  flags.toggle("sequence-parallel", run.sequence_parallel, "norms split along the sequence over the tp ranks");
  flags.whole("seq-len", run.seq_len, "tokens of a sequence", 1);
  flags.whole("micro-batch", run.micro_batch, "sequences a rank computes at a time", 1);
  flags.whole("global-batch", run.global_batch, "sequences a step", 1);
  flags.choice<DType>("dtype", run.dtype, {{"float32", DType::float32}, {"bfloat16", DType::bfloat16}},
                      "computed with");
  flags.choice<Recompute>("recompute", run.recompute,
                          {{"none", Recompute::none}, {"selective", Recompute::selective}, {"full", Recompute::full}},
                          "activations computed again in backward, as in train");
  flags.whole("threads-per-rank", run.threads_per_rank, "threads of a rank's matrix products", 1, 1024);
}

RunConfig checked_run(const BenchRun& bench, ModelConfig& model, Problems& problems) {
  RunConfig run = bench.run;
  run.data.paths = {"random tokens"};
  collect(problems, [&] { run.grid = Grid(bench.degrees, bench.order); });
  collect(problems, [&] {
    model = load_model(run.model);
    check_run(model, run, problems);
  });
  return run;
}

Cluster cluster_to_complete(const std::string& path, const std::vector<int>& gpus) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return load_cluster(path);
  if (gpus.empty()) return load_cluster("cpu-local");
  const GpuReport report = find_gpus();
  const Gpu& gpu = report.gpus.at(static_cast<std::size_t>(gpus.front()));
  const auto rated = rating_of(gpu);
  if (rated) return load_cluster(rated->cluster);
  throw Error(
      ErrorKind::request,
      fmt::format("--save {}: no cluster preset has the {}: name a file that has, with its [device]", path, gpu.name));
}

void save_levels(const std::string& path, Cluster cluster, const Topology& topology,
                 const std::vector<LevelFit>& fits) {
  if (topology.kinds.size() > 1) {
    throw Error(ErrorKind::request,
                fmt::format("--save {}: a cluster's hosts are alike, and these have unlike numbers of ranks", path));
  }
  const int threads = cluster.levels.front().size;
  cluster.name = topology.name;
  cluster.levels.clear();
  const auto ranks_a_host = static_cast<int>(topology.kinds.front().devices.size());
  const auto add = [&](const std::string& name, int size) {
    const auto fit = std::find_if(fits.begin(), fits.end(), [&](const LevelFit& f) { return f.level == name; });
    if (fit == fits.end()) {
      throw Error(ErrorKind::request,
                  fmt::format("--save {}: no axis of this grid measured the level {}; choose one in which some "
                              "groups stay inside a host and others do not (see --order)",
                              path, name));
    }
    ClusterLevel level;
    level.name = name == "host" ? "memory" : name;
    level.size = size;
    level.link_bandwidth = fit->bandwidth;
    level.latency = fit->latency;
    cluster.levels.push_back(level);
  };
  if (ranks_a_host > 1 || topology.nodes.size() == 1) {
    // Threads of a process are as many as a run asks for.
    add("host", job() == nullptr ? std::max(ranks_a_host, threads) : ranks_a_host);
  } else {
    // A rank a host: nothing crosses memory.
    ClusterLevel alone;
    alone.name = "memory";
    alone.size = 1;
    alone.link_bandwidth = fits.front().bandwidth;
    cluster.levels.push_back(alone);
  }
  if (topology.nodes.size() > 1) add("network", topology.devices());
  write_durably(path, write_cluster_file(cluster));
  log::info("wrote " + path);
}

std::string fits_text(const std::vector<LevelFit>& fits) {
  std::string text;
  for (const LevelFit& fit : fits) {
    text += fmt::format(
        "level {:<8} latency {}, bandwidth {:.4g} GB/s  ({} samples, R² of log times {:.3f}, largest error {:.0f} %)\n",
        fit.level, human_seconds(fit.latency), fit.bandwidth * 1e-9, fit.samples, fit.r_squared,
        100 * fit.largest_error);
    for (const auto& [bytes, error] : fit.error_by_size) {
      text += fmt::format("  {:>12} B predicted {:+.0f} % from measured\n", bytes, 100 * error);
    }
  }
  return text;
}

int bench_command(const Arguments& arguments) {
  const std::string usage = "Usage: cuboid bench comm|gemm|step|map [flags]\n\n";
  std::string help = usage;
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) {
    help += fmt::format("  {:<6} {}\n", kind.name, kind.summary);
    names.emplace_back(kind.name);
  }
  if (!arguments.empty() && (arguments.front() == "--help" || arguments.front() == "-h")) {
    fmt::print("{}\n`cuboid bench KIND --help` lists its flags.\n", help);
    return 0;
  }
  if (arguments.empty()) throw Error(ErrorKind::request, "bench: name what to measure: " + join(names));
  const auto kind =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return arguments.front() == k.name; });
  if (kind == std::end(kKinds)) {
    throw Error(ErrorKind::request, fmt::format("bench {}: did you mean {}? There are {}", arguments.front(),
                                                nearest(arguments.front(), names), join(names)));
  }
  return kind->run({arguments.begin() + 1, arguments.end()});
}

}  // namespace cuboid::launch
