// What the runs of a search have in common beside prices: where grids lie, schedules and their shapes. Private to plan.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "cuboid/parallel/pipeline/critical_path.h"
#include "cuboid/plan/cost.h"
#include "cuboid/value/model_config.h"
#include "cuboid/value/run_config.h"

#include "pipeline_shape.h"
#include "stages.h"

namespace cuboid::plan {

/// Where a grid's groups lie on the cluster, each with a number that groups which lie alike share.
struct Placed {
  bool known = false;
  Grid grid = {};
  TracedGroups traced = {};
  int traced_number = 0;
  CopyPlacements data = {};
  int data_number = 0;
  GroupPlacement stages = {};  ///< of a pipeline
};

/// Keeps what it is asked for.
class SharedShapes {
 public:
  /// FLOPs of training a token.
  double flops(const ModelConfig& model, int seq_len);
  /// Of the grid that was asked for last: a search asks for one many times in a row.
  const Placed& place(const Cluster& cluster, const Grid& grid);
  /// The run's schedule; null for one that is no name. Holds until the next call.
  const Schedule* schedule(const RunConfig& run);
  /// @pre the schedule is a name
  const ScheduleShape& shape(const RunConfig& run);
  /// Critical paths of the run's schedule: to add to, and to read.
  std::vector<CriticalPath>& paths(const RunConfig& run) { return paths_[key(run)]; }
  const std::vector<CriticalPath>& paths_so_far(const RunConfig& run) const;

 private:
  using Key = std::tuple<std::string, int, int, int>;  // name, ranks, micro-batches, virtual stages
  static Key key(const RunConfig& run);

  std::map<int, double> flops_;  // by sequence length
  Placed placed_;
  std::vector<std::vector<int>> places_;  // that have a number: it is their index
  std::map<Key, Schedule> schedules_;
  std::size_t actions_ = 0;  // of all of them
  std::map<Key, std::vector<CriticalPath>> paths_;
  std::map<std::tuple<std::string, int, int>, ScheduleShape> shapes_;  // by name, ranks and virtual stages
  std::vector<std::vector<bool>> boundaries_;                          // that have a number
};

}  // namespace cuboid::plan
