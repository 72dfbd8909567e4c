// Which rank on which device: the assignment that makes a step's communication shortest.
//
// The model of time. Along an axis all groups communicate at once; axes follow each other. An operation takes its
// latency (that of the farthest path in the group, times the steps of its algorithm) and the time of its slowest part:
//  - a group's ring runs through its members node by node, within a node in the order whose slowest path is fastest;
//    each path carries the operation's bytes times its bus factor (traffic.h), a path between nodes uses the cards of
//    the group's members on the node evenly;
//  - cards and switches carry what all groups of the axis put on them;
//  - all_to_all sends bytes/n to each other member on the path to it; send goes to the next member only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuboid/value/grid.h"
#include "cuboid/value/topology.h"
#include "cuboid/value/traffic.h"

namespace cuboid {

/// Where an axis's groups are slowest.
struct SlowestLink {
  int from = -1, to = -1;  ///< devices, counted through; -1: a group is one device
  std::string path;        ///< "nvlink", "pxb", or the fabric's level
  double bandwidth = 0;    ///< bytes a second for one group: a card's share where groups share it
  double latency = 0;
  double sharing = 1;  ///< groups on the same card or switch
};

struct AxisCost {
  Axis axis = Axis::tp;
  double seconds = 0;  ///< of a step
  SlowestLink slowest;
};

struct MappingCost {
  double seconds = 0;          ///< of a step, all axes
  std::vector<AxisCost> axes;  ///< of degree over 1, in the order of kAxes
};

/// Times of assignments on one topology: prepared once, asked often. Not thread safe.
class MappingModel {
 public:
  /// @throws Error{request} if the topology has fewer devices than the grid ranks, or several nodes and no network, or
  ///         traffic along an axis of which a needed bandwidth is unknown
  MappingModel(const Topology& topology, const Grid& grid, const Traffic& traffic);
  ~MappingModel();
  MappingModel(const MappingModel&) = delete;
  MappingModel& operator=(const MappingModel&) = delete;

  /// @param device_of_rank  a different device for every rank
  double seconds(std::span<const int> device_of_rank);
  MappingCost cost(std::span<const int> device_of_rank);
  /// No assignment is faster. From the Loomis-Whitney inequality (1949): a node that holds g points of a grid of d axes
  /// meets so many groups of each axis that the product of these numbers is at least g^(d-1).
  double lower_bound() const;

 private:
  struct Prepared;
  std::unique_ptr<Prepared> prepared_;
};

struct PlaceOptions {
  /// Every assignment is tried where there are at most so many; 0: never.
  std::int64_t exhaustive_up_to = 50'000;
  /// Effort of the search otherwise: assignments times ranks that are timed.
  std::int64_t effort = 3'000'000;
};

struct Alternative {
  std::string order;  ///< axis order, ranks on devices one after the other
  std::vector<int> device_of_rank;
  double seconds = 0;
};

struct PlacedRanks {
  std::vector<int> device_of_rank;
  MappingCost cost;
  std::string order;   ///< the axis order with which ranks one after the other do the same; empty: none does
  bool exact = false;  ///< every assignment was tried
  double lower_bound = 0;
  std::vector<Alternative>
      alternatives;  ///< every order of the axes of degree over 1, best first; ranks are the grid's
};

/// Tries all assignments, or: boxes of each axis's ranks that fill a node, in every order of the axes over nodes and
/// with devices sorted by how near they are; groups packed into nodes; then exchanges of two ranks (on many devices: of
/// two places in all nodes alike) as long as they help.
PlacedRanks place_ranks(const Topology& topology, const Grid& grid, const Traffic& traffic,
                        const PlaceOptions& options = {});

}  // namespace cuboid
