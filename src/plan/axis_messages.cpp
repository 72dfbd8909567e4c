#include "axis_messages.h"

#include <algorithm>

namespace cuboid::plan {

std::vector<AxisMessage> messages_over(const Grid& grid, std::initializer_list<Axis> axes, Collective operation,
                                       double bytes) {
  std::vector<Axis> used;
  std::copy_if(axes.begin(), axes.end(), std::back_inserter(used), [&](Axis axis) { return grid.degree(axis) > 1; });
  std::vector<AxisMessage> messages;
  double part = bytes;
  for (std::size_t i = 0; i < used.size(); ++i) {
    const bool last = i + 1 == used.size();
    if (operation == Collective::all_reduce && !last) {
      messages.push_back({used[i], Collective::reduce_scatter, part});
      messages.push_back({used[i], Collective::all_gather, part});
    } else {
      messages.push_back({used[i], operation, part});
    }
    part /= grid.degree(used[i]);
  }
  return messages;
}

}  // namespace cuboid::plan
