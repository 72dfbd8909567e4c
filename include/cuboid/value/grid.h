// The process grid: how many ranks each axis has, and which rank sits where. A value computed by arithmetic; it knows
// no communicator (groups.h makes those from it) and no device.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "cuboid/core/error.h"

namespace cuboid {

/// The grid's axes: tensor, context, expert, data and pipeline parallelism.
enum class Axis : int { tp, cp, ep, dp, pp };
inline constexpr int kAxisCount = 5;
inline constexpr std::array<Axis, kAxisCount> kAxes = {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp};
const char* name_of(Axis axis);

/// One number an axis: degrees, or a rank's coordinate.
struct AxisValues {
  std::array<int, kAxisCount> values{};
  int& operator[](Axis axis) { return values[static_cast<std::size_t>(axis)]; }
  int operator[](Axis axis) const { return values[static_cast<std::size_t>(axis)]; }
  friend bool operator==(const AxisValues&, const AxisValues&) = default;
};
using Coordinate = AxisValues;

/// Degrees and axis order. The first axis of the order is the fastest: with tp-cp-ep-dp-pp, neighbouring ranks differ
/// in their tp coordinate, and a tp group is a run of consecutive ranks.
class Grid {
 public:
  static constexpr std::string_view kDefaultOrder = "tp-cp-ep-dp-pp";

  /// One rank.
  Grid() : Grid({{1, 1, 1, 1, 1}}, kDefaultOrder) {}
  /// @throws Error{request} naming a degree below 1, a product over 2^31-1, or an order that is not a permutation of
  /// the
  ///         axes ("tp-dp-pp" is accepted: axes left out must have degree 1 and come last).
  Grid(const AxisValues& degrees, std::string_view order);

  int degree(Axis axis) const { return degrees_[axis]; }
  const AxisValues& degrees() const { return degrees_; }
  /// The full order, "tp-cp-ep-dp-pp".
  std::string order() const;
  /// Number of ranks: the product of the degrees.
  int world() const { return world_; }

  /// Ranks that train on different samples: dp × ep. Expert ranks share out the experts and the batch alike.
  int data_degree() const { return degrees_[Axis::dp] * degrees_[Axis::ep]; }
  /// Which of them: the ep coordinate counts first.
  int data_rank(const Coordinate& at) const { return at[Axis::dp] * degrees_[Axis::ep] + at[Axis::ep]; }

  /// Ranks that hold the same dense parameters: those, and the context ranks that share out their samples' positions.
  int copies() const { return data_degree() * degrees_[Axis::cp]; }
  /// Which of them: the cp coordinate counts first.
  int copy_rank(const Coordinate& at) const { return data_rank(at) * degrees_[Axis::cp] + at[Axis::cp]; }
  /// Ranks that hold the same experts: dp × cp.
  int expert_copies() const { return degrees_[Axis::dp] * degrees_[Axis::cp]; }
  int expert_copy_rank(const Coordinate& at) const { return at[Axis::dp] * degrees_[Axis::cp] + at[Axis::cp]; }

  Coordinate coordinate(int rank) const;
  int rank(const Coordinate& coordinate) const;
  /// Ranks that differ from `rank` in this axis only, in ascending coordinate; contains `rank`.
  std::vector<int> group(Axis axis, int rank) const;
  /// All groups of an axis: a partition of the world.
  std::vector<std::vector<int>> groups(Axis axis) const;
  /// Number of the group (0 … world/degree-1) that `rank` belongs to, in the order of groups().
  int group_index(Axis axis, int rank) const;

  friend bool operator==(const Grid&, const Grid&) = default;

 private:
  AxisValues degrees_;
  std::array<Axis, kAxisCount> order_{};
  AxisValues strides_;
  int world_ = 1;
};

}  // namespace cuboid
