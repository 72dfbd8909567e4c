// The messages of a collective over ranks that several axes make together. Private to plan.
#pragma once

#include <initializer_list>
#include <vector>

#include "cuboid/comm/meta.h"
#include "cuboid/value/grid.h"

namespace cuboid::plan {

struct AxisMessage {
  Axis axis;
  Collective operation;
  double bytes;  ///< as in TracedCommunication
};

/// A collective of `bytes` over the axes together, as one that goes axis by axis: a reduction is scattered over the
/// first and goes on with the parts. Ranks then send what they send in a ring over all of them.
/// @pre operation is all_reduce, reduce_scatter or all_gather
std::vector<AxisMessage> messages_over(const Grid& grid, std::initializer_list<Axis> axes, Collective operation,
                                       double bytes);

/// The axes over which gradients of dense parameters are reduced, and of experts'.
inline constexpr std::initializer_list<Axis> kDenseCopies = {Axis::cp, Axis::ep, Axis::dp};
inline constexpr std::initializer_list<Axis> kExpertCopies = {Axis::cp, Axis::dp};

}  // namespace cuboid::plan
