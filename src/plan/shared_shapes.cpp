#include "shared_shapes.h"

#include <algorithm>

#include "cuboid/models/registry.h"
#include "cuboid/parallel/pipeline/generators.h"
#include "cuboid/parallel/pipeline/select.h"

namespace cuboid::plan {
namespace {

// Schedules are dropped when they have more: 64 MiB.
constexpr std::size_t kMostActions = 1 << 22;

std::vector<int> lie(std::initializer_list<const GroupPlacement*> groups) {
  std::vector<int> numbers;
  for (const GroupPlacement* group : groups) {
    numbers.push_back(group->ranks);
    numbers.insert(numbers.end(), group->inside.begin(), group->inside.end());
  }
  return numbers;
}

template <typename T>
int number(std::vector<T>& known, T value) {
  const auto found = std::find(known.begin(), known.end(), value);
  const auto index = static_cast<int>(found - known.begin());
  if (found == known.end()) known.push_back(std::move(value));
  return index;
}

}  // namespace

double SharedShapes::flops(const ModelConfig& model, int seq_len) {
  const auto [found, is_new] = flops_.try_emplace(seq_len);
  if (is_new) found->second = flops_per_token(model, seq_len).training();
  return found->second;
}

const Placed& SharedShapes::place(const Cluster& cluster, const Grid& grid) {
  if (!placed_.known || !(placed_.grid == grid)) {
    placed_ = {.known = true,
               .grid = grid,
               .traced = place_traced_groups(cluster, grid),
               .traced_number = 0,
               .data = place_copies(cluster, grid),
               .data_number = 0,
               .stages = place_group(cluster, grid, {Axis::pp})};
    placed_.traced_number = number(places_, lie({&placed_.traced.tp, &placed_.traced.cp, &placed_.traced.ep}));
    placed_.data_number = number(places_, lie({&placed_.data.dense, &placed_.data.expert}));
  }
  return placed_;
}

SharedShapes::Key SharedShapes::key(const RunConfig& run) {
  return {run.schedule, run.grid.degree(Axis::pp), run.micro_batches(), run.virtual_stages};
}

const Schedule* SharedShapes::schedule(const RunConfig& run) {
  const auto& names = schedule_names();
  if (run.max_activations > 0 || std::find(names.begin(), names.end(), run.schedule) == names.end()) return nullptr;
  if (actions_ > kMostActions) {
    schedules_.clear();
    actions_ = 0;
  }
  if (const auto found = schedules_.find(key(run)); found != schedules_.end()) return &found->second;
  const Schedule& made = schedules_.emplace(key(run), schedule_of(run)).first->second;
  for (const auto& row : made.rows) actions_ += row.size();
  return &made;
}

const ScheduleShape& SharedShapes::shape(const RunConfig& run) {
  const int ranks = run.grid.degree(Axis::pp);
  const int virtual_stages = run.virtual_stages > 0 ? run.virtual_stages : default_virtual_stages(run.schedule);
  const auto [found, is_new] = shapes_.try_emplace({run.schedule, ranks, virtual_stages});
  if (is_new) {
    found->second = ScheduleShape(run.schedule, ranks, virtual_stages);
    found->second.boundaries = number(boundaries_, found->second.map.remote());
  }
  return found->second;
}

const std::vector<CriticalPath>& SharedShapes::paths_so_far(const RunConfig& run) const {
  static const std::vector<CriticalPath> none;
  if (paths_.empty()) return none;
  const auto found = paths_.find(key(run));
  return found == paths_.end() ? none : found->second;
}

}  // namespace cuboid::plan
