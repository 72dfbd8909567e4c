#include "cuboid/train/memory.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "cuboid/core/units.h"
#include "cuboid/models/registry.h"
#include "cuboid/runtime/gpus.h"
#include "cuboid/runtime/machine_memory.h"
#include "cuboid/runtime/memory_table.h"

#include "model_stage.h"

namespace cuboid {
namespace {

std::string text_of(std::int64_t bytes) {
  return human_bytes(static_cast<std::uint64_t>(bytes));
}

MemoryUse kept_by(const RunConfig& run, const std::vector<BucketLayout>& buckets) {
  const std::int64_t value_bytes = static_cast<std::int64_t>(size_of(run.dtype));
  constexpr std::int64_t kFloat = sizeof(float);
  const std::int64_t moments = run.optimizer.kind == OptimizerKind::adamw ? 2 : 0;
  const std::int64_t masters = run.dtype == DType::bfloat16 ? 1 : 0;
  MemoryUse use;
  for (const BucketLayout& bucket : buckets) {
    const BucketShare kept = kept_share(bucket, run.zero);
    use.bytes[static_cast<std::size_t>(Category::parameters)] += value_bytes * kept.values;
    use.bytes[static_cast<std::size_t>(Category::gradients)] += kFloat * kept.gradients;
    use.bytes[static_cast<std::size_t>(Category::optimizer)] += kFloat * (masters + moments) * kept.masters;
  }
  use.total = std::accumulate(use.bytes.begin(), use.bytes.end(), std::int64_t{0});
  return use;
}

int processes_here(const Fabric& fabric) {
  if (fabric.job == nullptr) return 1;
  const auto& hosts = fabric.job->hosts();
  const std::string& own = hosts[static_cast<std::size_t>(fabric.job->process())];
  return static_cast<int>(std::count(hosts.begin(), hosts.end(), own));
}

std::shared_ptr<MemoryLimit> limit_of_machine(const Fabric& fabric) {
  const MachineMemory memory = machine_memory();
  const int processes = processes_here(fabric);
  const std::int64_t bytes = memory.available / 10 * 9 / processes;
  std::string source =
      fmt::format("{} of this machine's memory ({} available", text_of(bytes), text_of(memory.available));
  if (memory.cgroup > 0) source += fmt::format(" within the control group's {}", text_of(memory.cgroup));
  if (processes > 1) source += fmt::format(", {} processes", processes);
  return std::make_shared<MemoryLimit>(bytes, source + ")");
}

std::shared_ptr<MemoryLimit> limit_of_gpu(const Gpu& gpu) {
  const std::int64_t bytes = gpu.memory_bytes / 10 * 9;
  return std::make_shared<MemoryLimit>(bytes, fmt::format("{} of the {} of GPU {} ({})", text_of(bytes),
                                                          text_of(gpu.memory_bytes), gpu.ordinal, gpu.name));
}

// Ranks of this process by the limit that they share, in the order of their first ranks.
std::vector<std::pair<std::shared_ptr<MemoryLimit>, std::vector<int>>> by_limit(
    const std::vector<std::shared_ptr<MemoryLimit>>& limits) {
  std::vector<std::pair<std::shared_ptr<MemoryLimit>, std::vector<int>>> groups;
  for (std::size_t rank = 0; rank < limits.size(); ++rank) {
    auto found = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == limits[rank]; });
    if (found == groups.end()) found = groups.insert(groups.end(), {limits[rank], {}});
    found->second.push_back(static_cast<int>(rank));
  }
  return groups;
}

constexpr const char* kOnTop = "for parameters, gradients and optimizer state alone; activations come on top";

}  // namespace

std::vector<MemoryUse> kept_memory(const RunConfig& run, const ModelConfig& model, const PipelineLayout& layout) {
  const ParameterTable table = parameters_of(model);
  const int tp = run.grid.degree(Axis::tp);
  const int pp = run.grid.degree(Axis::pp);
  std::vector<MemoryUse> of_stage_and_shard;
  for (int stage = 0; stage < pp; ++stage) {
    const std::vector<StageBlocks> blocks = blocks_of_rank(layout, stage);
    for (int shard = 0; shard < tp; ++shard) {
      // Replicas, and ranks with as many other experts, need the same.
      Coordinate at;
      at[Axis::tp] = shard;
      at[Axis::pp] = stage;
      const ParameterCut cut = parameter_cut(run.grid, at, run.zero);
      of_stage_and_shard.push_back(kept_by(run, lay_out_buckets(table, blocks, cut, run.bucket_bytes)));
    }
  }
  std::vector<MemoryUse> ranks;
  for (int rank = 0; rank < run.grid.world(); ++rank) {
    const AxisValues at = run.grid.coordinate(rank);
    ranks.push_back(of_stage_and_shard[static_cast<std::size_t>(at[Axis::pp] * tp + at[Axis::tp])]);
  }
  return ranks;
}

void check_memory(const RunConfig& run, const ModelConfig& model, const PipelineLayout& layout, const Fabric& fabric,
                  Problems& problems) {
  const std::vector<MemoryUse> ranks = kept_memory(run, model, layout);
  if (run.memory_limit > 0) {
    const auto worst = std::max_element(ranks.begin(), ranks.end(),
                                        [](const MemoryUse& a, const MemoryUse& b) { return a.total < b.total; });
    if (worst->total <= run.memory_limit) return;
    problems.add(fmt::format("--memory-limit {}: rank {} needs {} {}\n{}", text_of(run.memory_limit),
                             worst - ranks.begin(), text_of(worst->total), kOnTop, memory_table_of_ranks(ranks)));
    return;
  }
  const int most = fabric.job == nullptr ? run.grid.world() : fabric.ranks_per_process;
  const int first = fabric.job == nullptr ? 0 : fabric.job->process() * most;
  const int here = std::clamp(run.grid.world() - first, 0, most);
  const auto limits = limits_of_process(fabric, here);
  for (const auto& [limit, of_ranks] : by_limit(limits)) {
    std::int64_t needed = 0;
    for (const int rank : of_ranks) needed += ranks[static_cast<std::size_t>(first + rank)].total;
    if (needed <= limit->bytes()) continue;
    problems.add(fmt::format("--model {}: the {} ranks here need {} {}; they share {}\n{}", run.model, of_ranks.size(),
                             text_of(needed), kOnTop, limit->source(), memory_table_of_ranks(ranks)));
    return;
  }
}

std::shared_ptr<MemoryLimit> limit_of_rank(const RunConfig& run, const std::shared_ptr<MemoryLimit>& shared) {
  if (run.memory_limit == 0) return shared;
  return std::make_shared<MemoryLimit>(run.memory_limit, "--memory-limit " + text_of(run.memory_limit));
}

std::vector<std::shared_ptr<MemoryLimit>> limits_of_process(const Fabric& fabric, int ranks) {
  if (fabric.gpus.empty()) return {static_cast<std::size_t>(ranks), limit_of_machine(fabric)};
  std::vector<std::shared_ptr<MemoryLimit>> limits;
  std::map<int, std::shared_ptr<MemoryLimit>> of_gpu;
  const GpuReport report = find_gpus();
  for (int rank = 0; rank < ranks; ++rank) {
    const int ordinal = fabric.gpus.at(static_cast<std::size_t>(rank));
    auto& limit = of_gpu[ordinal];
    if (!limit) limit = limit_of_gpu(report.gpus.at(static_cast<std::size_t>(ordinal)));
    limits.push_back(limit);
  }
  return limits;
}

}  // namespace cuboid
