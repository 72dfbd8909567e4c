// The measurements of `cuboid bench`, and what they have in common: ranks over threads or the processes of a job.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cuboid/comm/ranks.h"
#include "cuboid/plan/measure_comm.h"
#include "cuboid/value/cluster.h"
#include "cuboid/value/model_config.h"
#include "cuboid/value/run_config.h"

#include "launch/commands.h"
#include "launch/flags.h"
#include "launch/gpus.h"
#include "launch/outputs.h"

namespace cuboid::launch {

int bench_comm(const Arguments& arguments);
int bench_gemm(const Arguments& arguments);
int bench_step(const Arguments& arguments);
int bench_map(const Arguments& arguments);

/// Where ranks run, from the flags and the launcher.
struct BenchRanks {
  int ranks_per_process = 1;
  double deadline = 600;
  DeviceChoice device = DeviceChoice::automatic;
  std::vector<int> gpus = {};  ///< of this process's ranks; empty: they compute on the CPU
};
void add_ranks_flags(Flags& flags, BenchRanks& where);

/// "tensor", of tensor parallelism.
const char* word_of(Axis axis);

/// Sets where.gpus by where.device. A request that cannot be met goes to problems.
void choose_gpus(BenchRanks& where, int world, Problems& problems);

/// As train: ranks on GPUs have no use for threads.
void check_threads(DeviceChoice device, int threads_per_rank, Problems& problems);

/// Ranks that are threads of one process.
int ranks_per_process(int world, const BenchRanks& where);
/// Host of every rank of a world of this size. @throws Error{request} if a job's processes are not as many as needed
std::vector<std::string> hosts_of_ranks(int world, const BenchRanks& where);
/// Runs a body on every rank, as threads here or over the job.
void run_on_ranks(int world, const BenchRanks& where, int threads_per_rank,
                  const std::function<void(RankContext&)>& body);

/// The training step that is measured: model, grid and what else decides its work.
struct BenchRun {
  RunConfig run;
  AxisValues degrees{{1, 1, 1, 1, 1}};
  std::string order{Grid::kDefaultOrder};
};
void add_run_flags_of_bench(Flags& flags, BenchRun& bench);
/// The run with its grid, and its model. Every fault goes to problems.
RunConfig checked_run(const BenchRun& bench, ModelConfig& model, Problems& problems);

/// The cluster that --save completes: the file that is there already, else the preset of the first GPU used, or
/// cpu-local without any. @throws Error{request} for a GPU that no preset has
Cluster cluster_to_complete(const std::string& path, const std::vector<int>& gpus);
/// Levels fitted, as a cluster file for plan and simulate: devices and software of `cluster`, with these levels.
/// @throws Error{request} where hosts have unlike numbers of ranks
void save_levels(const std::string& path, Cluster cluster, const Topology& topology, const std::vector<LevelFit>& fits);

/// Per-level figures with their goodness, as lines of text.
std::string fits_text(const std::vector<LevelFit>& fits);

}  // namespace cuboid::launch
