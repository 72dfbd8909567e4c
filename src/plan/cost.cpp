#include "cuboid/plan/cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cuboid/core/error.h"

namespace cuboid {
namespace {

using Operation = TracedCommunication::Operation;

double whole_parts(double size, double part) {
  return std::ceil(size / part);
}

struct Product {
  double batch, m, n, k;
};

// Seconds of the tiles of a product, without launch and memory.
double tiled_seconds(const Cluster& cluster, const Product& product, DType dtype) {
  // A smaller tile fills the processors better and reuses its operands less.
  struct Tile {
    double rows, columns, share;
  };
  const SoftwareStack& stack = cluster.stack;
  const double rows = stack.matmul_tile_rows;
  const double columns = stack.matmul_tile_columns;
  const Tile tiles[] = {{rows, columns, 1}, {rows, columns / 2, 0.93}, {rows / 2, columns / 2, 0.8}};
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : tiles) {
    const double upright = whole_parts(product.m, tile.rows) * whole_parts(product.n, tile.columns);
    const double turned = whole_parts(product.m, tile.columns) * whole_parts(product.n, tile.rows);
    const double waves = whole_parts(product.batch * std::min(upright, turned), cluster.device.processors);
    best = std::min(best, waves * tile.rows * tile.columns / tile.share);
  }
  const double flops = 2 * best * (product.k + stack.matmul_fill) * cluster.device.processors;
  const auto misaligned = [](double size) { return std::fmod(size, 8) != 0; };
  const bool slow = misaligned(product.m) || misaligned(product.n) || misaligned(product.k);
  return flops / (cluster.device.flops(dtype) * stack.matmul_efficiency) * (slow ? stack.misaligned_slowdown : 1);
}

double memory_seconds(const Cluster& cluster, double bytes) {
  return bytes / (cluster.device.memory_bandwidth * cluster.stack.memory_efficiency);
}

double matmul_seconds(const Cluster& cluster, const Product& product, DType dtype) {
  const double elements = product.batch * (product.m * product.k + product.k * product.n + product.m * product.n);
  return std::max(tiled_seconds(cluster, product, dtype),
                  memory_seconds(cluster, elements * static_cast<double>(size_of(dtype)))) +
         cluster.stack.launch_seconds;
}

double flash_seconds(const Cluster& cluster, const TracedKernel& kernel) {
  const SoftwareStack& stack = cluster.stack;
  // The trace counts the causal half, within a window less.
  const double work = kernel.flops * (kernel.window > 0 ? 1 : 2 * stack.causal_work);
  const double efficiency = kernel.gradient ? stack.attention_backward_efficiency : stack.attention_efficiency;
  return work / (cluster.device.flops(kernel.dtype) * efficiency) + stack.launch_seconds;
}

double score_seconds(const Cluster& cluster, const TracedKernel& kernel) {
  const SoftwareStack& stack = cluster.stack;
  const auto queries = static_cast<double>(kernel.queries);
  const auto keys = static_cast<double>(kernel.seq_len);
  const auto head = static_cast<double>(kernel.head_dim);
  const auto batch = static_cast<double>(kernel.batch * kernel.heads);
  const double products = matmul_seconds(cluster, {batch, queries, keys, head}, kernel.dtype) +
                          matmul_seconds(cluster, {batch, queries, head, keys}, kernel.dtype);
  const double scores = memory_seconds(
      cluster, stack.score_traffic * batch * queries * keys * static_cast<double>(size_of(kernel.dtype)));
  // Backward: twice the products; the scores' gradient is read besides what forward moved.
  return (kernel.gradient ? 2 * products + 1.3 * scores : products + scores) + 3 * stack.launch_seconds;
}

double row_seconds(const Cluster& cluster, const TracedKernel& kernel) {
  return memory_seconds(cluster, cluster.stack.row_traffic * (kernel.bytes_read + kernel.bytes_written)) +
         cluster.stack.launch_seconds;
}

// Groups of the level below, or devices at the first level, that the group has ranks in.
double members(const GroupPlacement& group, std::size_t level) {
  const int below = level == 0 ? 1 : group.inside[level - 1];
  return static_cast<double>(group.inside[level]) / below;
}

// Bytes/s of a rank over a level's links, which all devices of a member use at once.
double level_bandwidth(const Cluster& cluster, const GroupPlacement& group, std::size_t level) {
  const ClusterLevel& at = cluster.levels[level];
  const double ranks = level == 0 ? 1 : group.inside[level - 1];
  const double devices = level == 0 ? 1 : cluster.levels[level - 1].size;
  return at.links * at.link_bandwidth * at.efficiency * ranks / devices;
}

// Hops of a tree, or of a ring if that has fewer, through every level that the group crosses.
double tree_latency(const Cluster& cluster, const GroupPlacement& group) {
  double sum = 0;
  for (std::size_t level = 0; level < cluster.levels.size(); ++level) {
    const double count = members(group, level);
    if (count > 1) sum += std::min(count - 1, 3 * std::log2(count)) * cluster.levels[level].latency;
  }
  return sum;
}

// The n - 1 hops of a ring that visits the members of each level one after the other.
double ring_latency(const Cluster& cluster, const GroupPlacement& group) {
  double sum = 0;
  for (std::size_t level = 0; level < cluster.levels.size(); ++level) {
    const double below = level == 0 ? 1 : group.inside[level - 1];
    const double hops = group.ranks / below - static_cast<double>(group.ranks) / group.inside[level];
    sum += hops * cluster.levels[level].latency;
  }
  return sum;
}

// The innermost level whose groups hold all ranks.
std::size_t outermost_level(const GroupPlacement& group) {
  std::size_t level = 0;
  while (level + 1 < group.inside.size() && group.inside[level] < group.ranks) ++level;
  return level;
}

double all_reduce_seconds(const Cluster& cluster, const GroupPlacement& group, double bytes, double bandwidth) {
  const double n = group.ranks;
  const double ring = 2 * (n - 1) / n * bytes / bandwidth;
  const std::size_t level = outermost_level(group);
  const double factor = cluster.levels[level].in_network_factor;
  if (factor == 1 || members(group, level) != n) return ring;
  return std::min(ring, bytes / (factor * bandwidth * 4 / 7));
}

double all_to_all_seconds(const Cluster& cluster, const GroupPlacement& group, double bytes) {
  const double n = group.ranks;
  double slowest = 0;
  for (std::size_t level = 0; level <= outermost_level(group); ++level) {
    const double inner = level == 0 ? 1 : group.inside[level - 1];
    // Of a rank alone: its share of the member's links, without the help of the group's other ranks.
    const double share = level_bandwidth(cluster, group, level) / inner;
    const double message = bytes / n;
    const double ramp = 1 + cluster.levels[level].half_bandwidth_bytes / message;
    slowest = std::max(slowest, bytes * (n - inner) / n / share * ramp);
  }
  return slowest;
}

double exposed_seconds(const Cluster& cluster, const TracedGroups& groups, const TracedCommunication& message) {
  const auto seconds = [&](const GroupPlacement& group, double overlap) {
    return (1 - overlap) * collective_seconds(cluster, group, message.operation, message.bytes);
  };
  if (message.axis == Axis::tp) return seconds(groups.tp, cluster.stack.tp_overlap);
  return message.axis == Axis::cp ? seconds(groups.cp, cluster.stack.cp_overlap) : seconds(groups.ep, 0);
}

}  // namespace

double kernel_seconds(const Cluster& cluster, const TracedKernel& kernel) {
  switch (kernel.kind) {
    case TracedKernel::Kind::matmul:
      return matmul_seconds(cluster,
                            {static_cast<double>(kernel.batch), static_cast<double>(kernel.m),
                             static_cast<double>(kernel.n), static_cast<double>(kernel.k)},
                            kernel.dtype);
    case TracedKernel::Kind::attention:
      return cluster.stack.flash_attention ? flash_seconds(cluster, kernel) : score_seconds(cluster, kernel);
    case TracedKernel::Kind::other:
      return row_seconds(cluster, kernel);
  }
  return 0;
}

GroupPlacement place_group(const Cluster& cluster, const Grid& grid, std::initializer_list<Axis> axes) {
  CUBOID_CHECK(grid.world() <= cluster.devices(), "the grid fits the cluster");
  GroupPlacement group;
  std::vector<int> ranks = {0};
  for (const Axis axis : axes) {
    const int degree = grid.degree(axis);
    Coordinate one;
    one[axis] = degree > 1 ? 1 : 0;
    const int stride = grid.rank(one);
    const std::size_t present = ranks.size();
    for (int i = 1; i < degree; ++i) {
      for (std::size_t k = 0; k < present; ++k) ranks.push_back(ranks[k] + i * stride);
    }
    group.ranks *= degree;
  }
  for (const ClusterLevel& level : cluster.levels) {
    group.inside.push_back(
        static_cast<int>(std::count_if(ranks.begin(), ranks.end(), [&](int rank) { return rank < level.size; })));
  }
  return group;
}

double ring_bandwidth(const Cluster& cluster, const GroupPlacement& group, double message) {
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t level = 0; level <= outermost_level(group); ++level) {
    if (members(group, level) <= 1) continue;
    const double ramp = 1 + cluster.levels[level].half_bandwidth_bytes / message;
    least = std::min(least, level_bandwidth(cluster, group, level) / ramp);
  }
  return least;
}

double collective_seconds(const Cluster& cluster, const GroupPlacement& group, Operation operation, double bytes) {
  if (group.ranks <= 1 || bytes <= 0) return 0;
  const double n = group.ranks;
  const double bandwidth = ring_bandwidth(cluster, group, bytes / n);
  switch (operation) {
    case Operation::all_reduce:
      return all_reduce_seconds(cluster, group, bytes, bandwidth) + 2 * tree_latency(cluster, group);
    case Operation::reduce_scatter:
    case Operation::all_gather:
      return (n - 1) / n * bytes / bandwidth + ring_latency(cluster, group);
    case Operation::all_to_all:
      return all_to_all_seconds(cluster, group, bytes) + tree_latency(cluster, group);
    case Operation::broadcast:
      return bytes / bandwidth + tree_latency(cluster, group);
  }
  return 0;
}

double transfer_seconds(const Cluster& cluster, const GroupPlacement& stages, double bytes) {
  if (stages.ranks <= 1) return 0;
  // Neighbours differ by one stride; the outermost level that any pair of them crosses is the slowest.
  const std::size_t level = outermost_level(stages);
  const ClusterLevel& at = cluster.levels[level];
  const double devices = level == 0 ? 1 : cluster.levels[level - 1].size;
  return at.latency + (bytes + at.half_bandwidth_bytes) / (at.links * at.link_bandwidth * at.efficiency / devices);
}

PassCost& PassCost::operator+=(const PassCost& other) {
  compute += other.compute;
  communication += other.communication;
  attention_forward += other.attention_forward;
  kernels += other.kernels;
  return *this;
}

TracedGroups place_traced_groups(const Cluster& cluster, const Grid& grid) {
  return {place_group(cluster, grid, {Axis::tp}), place_group(cluster, grid, {Axis::cp}),
          place_group(cluster, grid, {Axis::ep})};
}

PassCost pass_cost(const Cluster& cluster, const TracedGroups& groups, const TracedPass& pass) {
  PassCost cost;
  for (const TracedEvent& event : pass.events) {
    if (const auto* kernel = std::get_if<TracedKernel>(&event)) {
      const double seconds = kernel_seconds(cluster, *kernel);
      cost.compute += seconds;
      if (kernel->kind == TracedKernel::Kind::attention && !kernel->gradient) cost.attention_forward += seconds;
      ++cost.kernels;
      continue;
    }
    const auto& message = std::get<TracedCommunication>(event);
    cost.communication += exposed_seconds(cluster, groups, message);
  }
  cost.compute = std::max(cost.compute, cost.kernels * cluster.stack.host_seconds - cost.communication);
  return cost;
}

}  // namespace cuboid
