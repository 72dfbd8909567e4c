// The grid's communicators, made once from its arithmetic. Nothing else turns ranks into communicators.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cuboid/comm/communicator.h"
#include "cuboid/value/grid.h"

namespace cuboid {

class Groups {
 public:
  /// Collective over `world`, whose size must be grid.world().
  Groups(const Grid& grid, Communicator& world);

  const Grid& grid() const { return grid_; }
  const Coordinate& at() const { return at_; }
  Communicator& world() const { return world_; }
  /// The group of this rank along an axis, members in ascending coordinate.
  Communicator& axis(Axis axis) const { return *axes_[static_cast<std::size_t>(axis)]; }
  /// The ranks of this one's dp and ep axes together, by Grid::data_rank: they train on different samples.
  Communicator& data() const { return *data_; }
  /// Those with the same dense parameters (dp, ep and cp), by Grid::copy_rank, and those with the same experts (dp and
  /// cp), by Grid::expert_copy_rank. Never the group in which layers exchange activations, even where its ranks are the
  /// same: reductions run beside those messages.
  Communicator& copies() const { return *copies_; }
  Communicator& expert_copies() const { return *expert_copies_; }

 private:
  // Of several axes. Collective over the world.
  Communicator* together(const std::vector<Axis>& axes, int member);

  Grid grid_;
  Coordinate at_;
  Communicator& world_;
  std::array<std::unique_ptr<Communicator>, kAxisCount> axes_;
  std::vector<std::unique_ptr<Communicator>> several_;
  Communicator* data_;
  Communicator* copies_;
  Communicator* expert_copies_;
};

/// Two-rank communicators between pipeline ranks that exchange stage boundaries, one for each direction, and the pair
/// that holds the two ends of a tied embedding.
class StageChannels {
 public:
  /// Collective over the pipeline group. rank_of_stage: pipeline rank of every stage.
  StageChannels(Communicator& pipeline, const std::vector<int>& rank_of_stage);

  /// Sends a tensor to / receives one from another pipeline rank.
  Work send(Tensor tensor, int to, int tag);
  Incoming recv(Shape shape, DType dtype, int from, int tag);
  /// First and last stage's ranks; null on ranks that are neither, and where one rank holds both.
  Communicator* embedding() const { return embedding_.get(); }

 private:
  Communicator& channel(int from, int to) const;
  int rank_;
  std::map<std::pair<int, int>, std::unique_ptr<Communicator>> channels_;  // (from, to) in pipeline ranks
  std::unique_ptr<Communicator> embedding_;
};

}  // namespace cuboid
