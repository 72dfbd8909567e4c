// The stages of a pipeline as layers, ranks and prices make them, and what a named schedule holds of their activations.
// Private to plan.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cuboid/plan/trace.h"
#include "cuboid/value/schedule.h"

#include "stages.h"

namespace cuboid::plan {

/// Whether I and W are apart.
bool splits_backward(const Schedule& schedule);

/// Which rank has which stages.
struct StageMap {
  std::vector<int> rank_of_stage;
  std::vector<std::vector<int>> stages_of_rank;  ///< ascending

  StageMap() = default;
  explicit StageMap(std::vector<int> ranks);
  /// Of each stage: whether its input comes from another rank.
  std::vector<bool> remote() const;
};

/// Layers of each of so many stages, the slowest of which is as fast as possible.
std::vector<int> balanced_layers(const ModelPrice& price, const ModelTrace& trace, int stages, bool split_backward);

/// The stages of a pipeline, of which few differ.
struct Stages {
  struct Neighbours {
    bool before = false, after = false;  // on another rank
    friend bool operator==(const Neighbours&, const Neighbours&) = default;
  };
  std::vector<int> layers;  ///< of each stage
  std::vector<int> kind;    ///< of each stage: an index into the next two
  std::vector<BlockPrice> prices;
  std::vector<Neighbours> neighbours;
  std::vector<int> ends;  ///< first and last of every row of ranks whose stages are of the same kinds

  Stages() = default;
  Stages(const ModelPrice& price, const ModelTrace& trace, std::vector<int> layers_of_stages, const StageMap& map);

  int count() const { return static_cast<int>(kind.size()); }
  const BlockPrice& operator[](int stage) const {
    return prices[static_cast<std::size_t>(kind[static_cast<std::size_t>(stage)])];
  }
};

/// Micro-batches of one stage that a rank holds at one time.
struct Held {
  int whole = 0;        ///< between F and B or I
  int for_weights = 0;  ///< between I and W
};

/// The two times in a row when it holds most of the one and most of the other.
struct MostHeld {
  Held of_whole, of_weights;
};

/// What a named schedule has whatever its number of micro-batches.
struct ScheduleShape {
  std::string name;
  StageMap map;
  int boundaries = 0;  ///< a number that shapes share whose stages have the same neighbours on other ranks
  bool split = false;  ///< I and W apart
  int virtual_stages = 1;
  /// What each rank holds at its peak in a run of so many micro-batches; most first.
  std::vector<std::pair<int, std::vector<MostHeld>>> held_in;

  ScheduleShape() = default;
  /// All but boundaries. @throws as make_schedule
  ScheduleShape(const std::string& schedule, int ranks, int virtual_stages);

  int ranks() const { return static_cast<int>(map.stages_of_rank.size()); }
  /// What a rank holds at its peak, at least: with more micro-batches it is no less.
  MostHeld held(int rank, int micro_batches) const;
};

}  // namespace cuboid::plan
