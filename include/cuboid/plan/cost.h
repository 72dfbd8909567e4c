// What a traced kernel, a message and a pass over a block take on a cluster. Each function states its formula; the
// parameters are the cluster's (value/cluster.h). Not here: how passes, messages and the optimizer make a step
// (predict.h).
#pragma once

#include <initializer_list>
#include <vector>

#include "cuboid/plan/trace.h"
#include "cuboid/value/cluster.h"
#include "cuboid/value/grid.h"

namespace cuboid {

/// Seconds of one kernel, its launch included: the longer of computing and of moving its bytes, plus launch-seconds.
///
/// A matrix product is cut into tiles of the output; a wave computes a tile on each processor. Of three tile sizes (the
/// stack's; half as wide; a quarter of the area) in both orientations the fastest counts, for
///   waves · 2·rows·columns·(k + matmul-fill) · processors / (peak · matmul-efficiency · tile's share),
/// waves = ceil(tiles / processors): quantisation is why a product a little larger than a whole wave is slow.
/// Dimensions that are no multiple of 8 elements (16 bytes) are slower by misaligned-slowdown: tensor cores need
/// aligned rows.
///
/// Flash attention computes causal-work of the square at its own fraction of peak. Without it, scores and context are
/// two batches of products over the full square, and the scores cross memory score-traffic times.
double kernel_seconds(const Cluster& cluster, const TracedKernel& kernel);

/// How a group of ranks lies on the cluster: at each level, its largest number of ranks in one group of that level. The
/// placement is rank r on device r; all groups of the same axes are alike and active at once.
struct GroupPlacement {
  int ranks = 1;
  std::vector<int> inside;  ///< of each level, from the inside out
};

/// The group that spans these axes. @pre the grid fits the cluster
GroupPlacement place_group(const Cluster& cluster, const Grid& grid, std::initializer_list<Axis> axes);

/// Bytes/s that each rank of the group can send in a ring: the least over the levels that the group crosses of
///   links · link-bandwidth · efficiency · (ranks of the group in a member) / (devices of a member),
/// since the groups of all other devices of the member use its links at the same time, and by 1 / (1 + half-bandwidth-
/// bytes / message) for messages that are short.
/// @param message  bytes of one message of the algorithm: a rank's share of the buffer
double ring_bandwidth(const Cluster& cluster, const GroupPlacement& group, double message);

/// Seconds of a collective; bytes as TracedCommunication counts them, 0 for a single rank. With n ranks and b the
/// ring's bandwidth: all-reduce 2·(n-1)/n·bytes/b, reduce-scatter, all-gather and all-to-all (n-1)/n·bytes/b, broadcast
/// bytes/b (the bus bandwidth convention of nccl-tests). Latencies: reduce-scatter and all-gather are rings of n-1
/// hops, of which those that cross a level take its latency; the others also come as trees, so of the m members at a
/// level the shorter of m-1 and 3·log2 m hops counts, twice for all-reduce. Where a level reduces in its switch,
/// all-reduce takes bytes / (in-network-factor · b · 4/7) if that is less (NVLS: 4/7 = n/(2·(n-1)) at n = 8).
/// All-to-all sends what leaves a member over the member's links at that level.
double collective_seconds(const Cluster& cluster, const GroupPlacement& group, TracedCommunication::Operation operation,
                          double bytes);

/// Seconds from a pipeline stage to the next, the slowest of them: latency and bytes over the device's share of links.
/// @param stages  the pipeline group
double transfer_seconds(const Cluster& cluster, const GroupPlacement& stages, double bytes);

/// Seconds of a pass over a block on one rank.
struct PassCost {
  double compute = 0;            ///< all kernels
  double communication = 0;      ///< exposed tensor, context and expert parallel messages
  double attention_forward = 0;  ///< of compute: forward attention, which selective recompute may repeat
  int kernels = 0;
  double total() const { return compute + communication; }
  PassCost& operator+=(const PassCost& other);
};

/// Groups of the axes whose messages a trace holds.
struct TracedGroups {
  GroupPlacement tp, cp, ep;
};
TracedGroups place_traced_groups(const Cluster& cluster, const Grid& grid);

/// Sums over the pass; of tensor-parallel messages tp-overlap is hidden. Issuing the kernels takes the host
/// kernels · host-seconds; where that is longer than all else it is what the pass takes.
PassCost pass_cost(const Cluster& cluster, const TracedGroups& groups, const TracedPass& pass);

}  // namespace cuboid
