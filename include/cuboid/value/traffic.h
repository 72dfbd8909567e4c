// What ranks send each other: the kinds of communication, how nccl-tests counts their bytes, and the traffic of a
// training step along each axis of a grid.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuboid/value/grid.h"

namespace cuboid {

enum class CommOperation {
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  broadcast,
  send,  ///< to the next member, and from the one before
};
inline constexpr int kCommOperations = 6;
const char* name_of(CommOperation operation);
std::optional<CommOperation> comm_operation(const std::string& name);

/// busbw ÷ algbw in a group of n, as nccl-tests defines them (doc/PERFORMANCE.md): algbw is bytes ÷ time; 2(n-1)/n of
/// all_reduce, (n-1)/n of reduce_scatter, all_gather and all_to_all, 1 of broadcast and send. Bytes are those of the
/// whole buffer: the unsplit side of reduce_scatter and all_gather.
double bus_factor(CommOperation operation, int n);

/// Communication of a step along an axis: every group of the axis does `count` operations of `bytes` each, all groups
/// at the same time. A send is one stage boundary's message in one direction.
struct AxisTraffic {
  Axis axis = Axis::tp;
  CommOperation operation = CommOperation::all_reduce;
  double bytes = 0;
  double count = 1;
  friend bool operator==(const AxisTraffic&, const AxisTraffic&) = default;
};
using Traffic = std::vector<AxisTraffic>;

/// "tp=all_reduce:8388608:48,dp=all_reduce:1.2e9,pp=send:4e6:16": axis, operation, bytes, and how often (once).
/// @throws Error{request} with every fault
Traffic parse_traffic(const std::string& text);
std::string to_text(const Traffic& traffic);

}  // namespace cuboid
