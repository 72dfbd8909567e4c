#include "cuboid/parallel/groups.h"

#include <algorithm>
#include <set>

namespace cuboid {
namespace {

// Rank inside a channel: the sender is 0.
constexpr int kSender = 0;
constexpr int kReceiver = 1;

}  // namespace

Groups::Groups(const Grid& grid, Communicator& world) : grid_(grid), at_(grid.coordinate(world.rank())), world_(world) {
  CUBOID_CHECK(world.size() == grid.world(),
               std::to_string(world.size()) + " ranks for a grid of " + std::to_string(grid.world()));
  for (Axis axis : kAxes) {
    axes_[static_cast<std::size_t>(axis)] = world.split(grid.group_index(axis, world.rank()), at_[axis], name_of(axis));
  }
  data_ = together({Axis::dp, Axis::ep}, grid.data_rank(at_));
  const bool cut = grid.degree(Axis::cp) > 1;
  copies_ = cut ? together({Axis::dp, Axis::ep, Axis::cp}, grid.copy_rank(at_)) : data_;
  expert_copies_ = cut ? together({Axis::dp, Axis::cp}, grid.expert_copy_rank(at_)) : &axis(Axis::dp);
}

Communicator* Groups::together(const std::vector<Axis>& axes, int member) {
  std::string name;
  Coordinate first = at_;
  for (const Axis a : axes) {
    if (grid_.degree(a) > 1) name += (name.empty() ? "" : "-") + std::string(name_of(a));
    first[a] = 0;
  }
  if (name.empty() || name == name_of(Axis::dp)) return &axis(Axis::dp);
  several_.push_back(world_.split(grid_.rank(first), member, name + " copies"));
  return several_.back().get();
}

StageChannels::StageChannels(Communicator& pipeline, const std::vector<int>& rank_of_stage) : rank_(pipeline.rank()) {
  std::set<std::pair<int, int>> pairs;
  for (std::size_t s = 0; s + 1 < rank_of_stage.size(); ++s) {
    const int a = rank_of_stage[s];
    const int b = rank_of_stage[s + 1];
    if (a == b) continue;
    pairs.insert({a, b});
    pairs.insert({b, a});
  }
  for (const auto& [from, to] : pairs) {
    const bool member = rank_ == from || rank_ == to;
    auto made = pipeline.split(member ? 0 : -1, rank_ == from ? kSender : kReceiver,
                               "pp " + std::to_string(from) + " to " + std::to_string(to));
    if (made) channels_[{from, to}] = std::move(made);
  }
  const int first = rank_of_stage.front();
  const int last = rank_of_stage.back();
  if (first != last) {
    const bool member = rank_ == first || rank_ == last;
    embedding_ = pipeline.split(member ? 0 : -1, rank_ == first ? 0 : 1, "embedding");
  }
}

Communicator& StageChannels::channel(int from, int to) const {
  const auto found = channels_.find({from, to});
  CUBOID_CHECK(found != channels_.end(),
               "no channel between pipeline ranks " + std::to_string(from) + " and " + std::to_string(to));
  return *found->second;
}

Work StageChannels::send(Tensor tensor, int to, int tag) {
  return channel(rank_, to).send(std::move(tensor), kReceiver, tag);
}

Incoming StageChannels::recv(Shape shape, DType dtype, int from, int tag) {
  return channel(from, rank_).recv(std::move(shape), dtype, kSender, tag);
}

}  // namespace cuboid
