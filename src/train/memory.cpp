#include "cuboid/train/memory.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "cuboid/core/units.h"
#include "cuboid/models/registry.h"
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
  const int here = fabric.job == nullptr ? run.grid.world() : fabric.ranks_per_process;
  const int first = fabric.job == nullptr ? 0 : fabric.job->process() * here;
  std::int64_t needed = 0;
  for (int rank = first; rank < std::min(first + here, run.grid.world()); ++rank) {
    needed += ranks[static_cast<std::size_t>(rank)].total;
  }
  const auto limit = limit_of_process(fabric);
  if (needed <= limit->bytes()) return;
  problems.add(fmt::format("--model {}: the {} ranks here need {} {}; they share {}\n{}", run.model,
                           std::min(here, run.grid.world() - first), text_of(needed), kOnTop, limit->source(),
                           memory_table_of_ranks(ranks)));
}

std::shared_ptr<MemoryLimit> limit_of_rank(const RunConfig& run, const std::shared_ptr<MemoryLimit>& shared) {
  if (run.memory_limit == 0) return shared;
  return std::make_shared<MemoryLimit>(run.memory_limit, "--memory-limit " + text_of(run.memory_limit));
}

std::shared_ptr<MemoryLimit> limit_of_process(const Fabric& fabric) {
  const MachineMemory memory = machine_memory();
  const int processes = processes_here(fabric);
  const std::int64_t bytes = memory.available / 10 * 9 / processes;
  std::string source =
      fmt::format("{} of this machine's memory ({} available", text_of(bytes), text_of(memory.available));
  if (memory.cgroup > 0) source += fmt::format(" within the control group's {}", text_of(memory.cgroup));
  if (processes > 1) source += fmt::format(", {} processes", processes);
  return std::make_shared<MemoryLimit>(bytes, source + ")");
}

}  // namespace cuboid
