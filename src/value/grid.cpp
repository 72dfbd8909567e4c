#include "cuboid/value/grid.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

namespace cuboid {
namespace {

constexpr std::array<const char*, kAxisCount> kNames = {"tp", "cp", "ep", "dp", "pp"};

// Axes in the order of the text; what is wrong with it goes to problems.
std::vector<Axis> parse_order(std::string_view text, Problems& problems) {
  std::vector<Axis> axes;
  std::string_view rest = text;
  while (true) {
    const auto dash = rest.find('-');
    const auto word = rest.substr(0, dash);
    const auto name = std::find(kNames.begin(), kNames.end(), word);
    if (name == kNames.end()) {
      problems.add(fmt::format("--order {}: '{}' is not an axis; the axes are tp, cp, ep, dp, pp", text, word));
    } else {
      const auto axis = static_cast<Axis>(name - kNames.begin());
      if (std::find(axes.begin(), axes.end(), axis) != axes.end()) {
        problems.add(fmt::format("--order {}: axis {} is named twice", text, word));
      } else {
        axes.push_back(axis);
      }
    }
    if (dash == std::string_view::npos) return axes;
    rest.remove_prefix(dash + 1);
  }
}

}  // namespace

const char* name_of(Axis axis) {
  return kNames[static_cast<std::size_t>(axis)];
}

Grid::Grid(const AxisValues& degrees, std::string_view order) : degrees_(degrees) {
  Problems problems;
  std::int64_t world = 1;
  for (Axis axis : kAxes) {
    const int degree = degrees[axis];
    if (degree < 1) {
      problems.add(fmt::format("--{} {}: a degree is at least 1", name_of(axis), degree));
      continue;
    }
    world = std::min(world * degree, std::int64_t{1} << 31);  // enough to be too large, and cannot overflow
  }
  if (world > std::numeric_limits<int>::max()) problems.add("the product of the degrees exceeds 2147483647 ranks");
  std::vector<Axis> axes = parse_order(order, problems);
  for (Axis axis : kAxes) {
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) continue;
    if (degrees[axis] > 1) {
      problems.add(fmt::format("--order {}: axis {} is missing but --{} is {}", order, name_of(axis), name_of(axis),
                               degrees[axis]));
    }
    axes.push_back(axis);
  }
  problems.throw_if_any();
  std::copy(axes.begin(), axes.end(), order_.begin());
  for (Axis axis : order_) {
    strides_[axis] = world_;
    world_ *= degrees_[axis];
  }
}

std::string Grid::order() const {
  std::string text;
  for (Axis axis : order_) text += (text.empty() ? "" : "-") + std::string(name_of(axis));
  return text;
}

Coordinate Grid::coordinate(int rank) const {
  CUBOID_CHECK(rank >= 0 && rank < world_, fmt::format("rank {} of {}", rank, world_));
  Coordinate c;
  for (Axis axis : kAxes) c[axis] = rank / strides_[axis] % degrees_[axis];
  return c;
}

int Grid::rank(const Coordinate& coordinate) const {
  int rank = 0;
  for (Axis axis : kAxes) {
    CUBOID_CHECK(coordinate[axis] >= 0 && coordinate[axis] < degrees_[axis],
                 fmt::format("{} coordinate {} of {}", name_of(axis), coordinate[axis], degrees_[axis]));
    rank += coordinate[axis] * strides_[axis];
  }
  return rank;
}

std::vector<int> Grid::group(Axis axis, int rank) const {
  const int first = rank - coordinate(rank)[axis] * strides_[axis];
  std::vector<int> members(static_cast<std::size_t>(degrees_[axis]));
  for (int i = 0; i < degrees_[axis]; ++i) members[static_cast<std::size_t>(i)] = first + i * strides_[axis];
  return members;
}

std::vector<std::vector<int>> Grid::groups(Axis axis) const {
  std::vector<std::vector<int>> all;
  for (int rank = 0; rank < world_; ++rank) {
    if (coordinate(rank)[axis] == 0) all.push_back(group(axis, rank));
  }
  return all;
}

int Grid::group_index(Axis axis, int rank) const {
  // Groups are numbered by their first member; a first member's number is its rank with this axis's digit cut out.
  const int stride = strides_[axis];
  return rank / (stride * degrees_[axis]) * stride + rank % stride;
}

}  // namespace cuboid
