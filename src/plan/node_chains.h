// Rings and open chains through devices of one node, in the order in which their slowest path is fastest.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "cuboid/value/topology.h"

namespace cuboid {

/// The slowest path of such a ring or chain.
struct Chain {
  double seconds_per_byte = 0;
  double latency = 0;
  int a = -1, b = -1;  ///< devices of the node at its ends
};

/// Finds them, and remembers what it found.
class NodeChains {
 public:
  /// `topology` must outlive it.
  explicit NodeChains(const Topology& topology);

  /// @param kind    index of the node's kind
  /// @param locals  at least two devices of the node
  /// @param closed  a ring
  /// Exact for 10 devices and fewer; with more, from a few starts always on to the nearest.
  Chain find(int kind, std::span<const int> locals, bool closed);

 private:
  const Topology& topology_;
  std::vector<bool> uniform_;  // by kind: all paths are equal
  std::unordered_map<std::uint64_t, Chain> known_;
};

}  // namespace cuboid
