#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/plan/place.h"

#include "node_chains.h"

namespace cuboid {
namespace {

constexpr double kNever = INFINITY;

// Messages that follow each other in an operation: trees of n ranks, two of them in an all-reduce; a round a member.
double steps_of(CommOperation operation, int n) {
  const double tree = std::ceil(std::log2(n));
  switch (operation) {
    case CommOperation::all_reduce:
      return 2 * tree;
    case CommOperation::reduce_scatter:
    case CommOperation::all_gather:
    case CommOperation::broadcast:
      return tree;
    case CommOperation::all_to_all:
      return n - 1;
    case CommOperation::send:
      return 1;
  }
  return 1;
}

// What a group's shape on the machine costs a byte, and where.
struct Worst {
  double seconds_per_byte = 0;
  int a = -1, b = -1;    // devices, counted through
  int level = -1;        // of the fabric; -1: inside a node
  double bandwidth = 0;  // of one group
  double sharing = 1;
  void take(double seconds, int from, int to, int at_level, double rate, double shared) {
    if (!(seconds > seconds_per_byte)) return;
    *this = {seconds, from, to, at_level, rate, shared};
  }
};

}  // namespace

struct MappingModel::Prepared {
  struct AxisWork {
    Axis axis = Axis::tp;
    int n = 1;
    std::vector<int> members;  // groups one after the other
    double latencies = 0;      // steps a step
    double ring = 0;           // bytes on every path of a ring
    double exchange = 0;       // bytes of all_to_all buffers
    double sends = 0;          // bytes to the next
  };

  const Topology topology;
  const Grid grid;
  std::vector<DevicePlace> at;
  std::vector<AxisWork> work;
  std::vector<int> first_nic;                 // of a node
  std::vector<double> nic_bandwidth;          // of all nodes' cards
  std::vector<std::vector<int>> device_nics;  // by device
  NodeChains chains;
  // Scratch: loads in groups' bytes.
  std::vector<double> out, in;
  std::vector<std::vector<double>> uplinks;  // by level and switch
  std::vector<int> members, cards, locals;

  Prepared(const Topology& t, const Grid& g, const Traffic& traffic)
      : topology(t), grid(g), at(places(t)), chains(topology) {
    check();
    for (const TopologyNode& node : topology.nodes) {
      first_nic.push_back(static_cast<int>(nic_bandwidth.size()));
      for (const TopologyNic& nic : kind_of(node).nics) nic_bandwidth.push_back(nic.bandwidth);
    }
    for (const DevicePlace& place : at) {
      const auto node = static_cast<std::size_t>(place.node);
      auto& own = device_nics.emplace_back(kind_of(topology.nodes[node]).nics_of(place.local));
      for (int& nic : own) nic += first_nic[node];
    }
    for (Axis axis : kAxes) add_work(axis, traffic);
    out.resize(nic_bandwidth.size());
    in.resize(nic_bandwidth.size());
    for (const FabricLevel& level : topology.fabric) {
      const auto switches =
          level.nodes > 0 ? (topology.nodes.size() - 1) / static_cast<std::size_t>(level.nodes) + 1 : 1;
      uplinks.emplace_back(switches);
    }
  }

  const NodeKind& kind_of(const TopologyNode& node) const {
    return topology.kinds[static_cast<std::size_t>(node.kind)];
  }
  const NodeKind& kind_at(int device) const {
    return kind_of(topology.nodes[static_cast<std::size_t>(at[static_cast<std::size_t>(device)].node)]);
  }

  void check() const {
    Problems problems;
    if (topology.devices() < grid.world()) {
      problems.add(fmt::format("the grid has {} ranks, the topology {} {} devices", grid.world(), topology.name,
                               topology.devices()));
    }
    const bool network = topology.nodes.size() > 1;
    problems.add_if(network && topology.fabric.empty(),
                    fmt::format("{}: has {} nodes, but says nothing of the network between them", topology.name,
                                topology.nodes.size()));
    for (const NodeKind& kind : topology.kinds) {
      problems.add_if(network && kind.nics.empty(), kind.name + ": has no network card, but there are other nodes");
      for (const TopologyNic& nic : kind.nics) {
        problems.add_if(!(nic.bandwidth > 0), fmt::format("{}: the bandwidth of {} is unknown", kind.name, nic.name));
      }
      for (const Path& path : kind.paths) {
        if (path.kind == PathKind::same || path.bandwidth > 0) continue;
        problems.add(fmt::format("{}: a path's bandwidth is unknown", kind.name));
        break;
      }
    }
    problems.throw_if_any();
  }

  void add_work(Axis axis, const Traffic& traffic) {
    AxisWork item;
    item.axis = axis;
    item.n = grid.degree(axis);
    if (item.n < 2) return;
    for (const auto& group : grid.groups(axis)) item.members.insert(item.members.end(), group.begin(), group.end());
    for (const AxisTraffic& t : traffic) {
      if (t.axis != axis) continue;
      item.latencies += t.count * steps_of(t.operation, item.n);
      const double bytes = t.count * t.bytes;
      if (t.operation == CommOperation::send) {
        item.sends += bytes;
      } else if (t.operation == CommOperation::all_to_all) {
        item.exchange += bytes;
      } else {
        item.ring += bytes * bus_factor(t.operation, item.n);
      }
    }
    work.push_back(std::move(item));
  }

  // The members [begin, end) of `members` are of one node.
  Chain chain(std::size_t begin, std::size_t end, bool closed) {
    locals.clear();
    for (std::size_t i = begin; i < end; ++i) locals.push_back(at[static_cast<std::size_t>(members[i])].local);
    const auto node = static_cast<std::size_t>(at[static_cast<std::size_t>(members[begin])].node);
    return chains.find(topology.nodes[node].kind, locals, closed);
  }

  int rail_of(int device) const {
    const auto& own = device_nics[static_cast<std::size_t>(device)];
    return own.empty() ? -1
                       : own.front() - first_nic[static_cast<std::size_t>(at[static_cast<std::size_t>(device)].node)];
  }

  // The fabric level at which members of several nodes meet.
  int meeting_level() const {
    const auto node = [&](int device) { return at[static_cast<std::size_t>(device)].node; };
    const bool one_rail =
        std::all_of(members.begin(), members.end(), [&](int d) { return rail_of(d) == rail_of(members.front()); });
    for (std::size_t l = 0; l < topology.fabric.size(); ++l) {
      const FabricLevel& level = topology.fabric[l];
      if (level.nodes > 0 && node(members.front()) / level.nodes != node(members.back()) / level.nodes) continue;
      if (level.rail && !one_rail) continue;
      return static_cast<int>(l);
    }
    return static_cast<int>(topology.fabric.size()) - 1;
  }

  // Ends of the runs of members on one node; members are ascending.
  std::size_t node_end(std::size_t begin) const {
    const int node = at[static_cast<std::size_t>(members[begin])].node;
    std::size_t end = begin + 1;
    while (end < members.size() && at[static_cast<std::size_t>(members[end])].node == node) ++end;
    return end;
  }

  void collect_cards(std::size_t begin, std::size_t end) {
    cards.clear();
    for (std::size_t i = begin; i < end; ++i) {
      const auto& own = device_nics[static_cast<std::size_t>(members[i])];
      cards.insert(cards.end(), own.begin(), own.end());
    }
    if (end - begin < 2) return;
    std::sort(cards.begin(), cards.end());
    cards.erase(std::unique(cards.begin(), cards.end()), cards.end());
  }

  double cards_bandwidth() const {
    double sum = 0;
    for (int nic : cards) sum += nic_bandwidth[static_cast<std::size_t>(nic)];
    return sum;
  }

  // A group's share of a node's cards, by their bandwidths.
  void load_cards(std::vector<double>& loads, double amount) const {
    const double sum = cards_bandwidth();
    for (int nic : cards)
      loads[static_cast<std::size_t>(nic)] += amount * nic_bandwidth[static_cast<std::size_t>(nic)] / sum;
  }

  void clear_loads() {
    std::fill(out.begin(), out.end(), 0.0);
    std::fill(in.begin(), in.end(), 0.0);
    for (auto& level : uplinks) std::fill(level.begin(), level.end(), 0.0);
  }

  std::size_t switch_of(std::size_t level, int device) const {
    const int nodes = topology.fabric[level].nodes;
    return nodes > 0 ? static_cast<std::size_t>(at[static_cast<std::size_t>(device)].node / nodes) : 0;
  }

  double widest(const std::vector<double>& loads) const {
    double worst = 0;
    for (std::size_t n = 0; n < loads.size(); ++n) {
      if (loads[n] > 0) worst = std::max(worst, loads[n] / nic_bandwidth[n]);
    }
    return worst;
  }

  double widest_uplink() const {
    double worst = 0;
    for (std::size_t l = 0; l < uplinks.size(); ++l) {
      if (!(topology.fabric[l].bandwidth > 0)) continue;
      for (double load : uplinks[l]) worst = std::max(worst, load / topology.fabric[l].bandwidth);
    }
    return worst;
  }

  void take_group(const AxisWork& item, std::size_t g, std::span<const int> device_of_rank) {
    members.clear();
    for (int i = 0; i < item.n; ++i) {
      members.push_back(device_of_rank[static_cast<std::size_t>(
          item.members[g * static_cast<std::size_t>(item.n) + static_cast<std::size_t>(i)])]);
    }
  }

  struct AxisTimes {
    double latency = 0;
    Worst ring, exchange, send;
  };

  // Rings and exchanges: members in ascending order, node by node.
  void time_collectives(const AxisWork& item, std::span<const int> device_of_rank, AxisTimes& times) {
    clear_loads();
    const std::size_t groups = item.members.size() / static_cast<std::size_t>(item.n);
    // An exchange loads cards by k(n-k)/n instead of once: kept as a second set of loads in `in`.
    int crossing_from = -1;
    int crossing_to = -1;
    int crossing_level = -1;
    double crossing_rate = 0;
    for (std::size_t g = 0; g < groups; ++g) {
      take_group(item, g, device_of_rank);
      std::sort(members.begin(), members.end());
      const bool inside = node_end(0) == members.size();
      for (std::size_t begin = 0; begin < members.size();) {
        const std::size_t end = node_end(begin);
        const auto k = static_cast<double>(end - begin);
        if (end - begin > 1) {
          const Chain part = chain(begin, end, inside);
          const int first = members[begin] - at[static_cast<std::size_t>(members[begin])].local;
          times.ring.take(part.seconds_per_byte, first + part.a, first + part.b, -1, 1 / part.seconds_per_byte, 1);
          times.exchange.take(part.seconds_per_byte * (k - 1) / item.n, first + part.a, first + part.b, -1,
                              1 / part.seconds_per_byte, 1);
          times.latency = std::max(times.latency, part.latency);
        }
        if (!inside) {
          collect_cards(begin, end);
          load_cards(out, 1);
          load_cards(in, k * (item.n - k) / item.n);
          crossing_rate = cards_bandwidth();
        }
        begin = end;
      }
      if (inside) continue;
      const int level = meeting_level();
      times.latency = std::max(times.latency, topology.fabric[static_cast<std::size_t>(level)].latency);
      if (level >= crossing_level) {
        crossing_level = level;
        crossing_from = members.front();
        crossing_to = members[node_end(0)];
      }
      for (std::size_t l = 0; l < static_cast<std::size_t>(level); ++l) {
        std::size_t last = SIZE_MAX;
        for (int d : members) {
          if (switch_of(l, d) == last) continue;
          last = switch_of(l, d);
          uplinks[l][last] += 1;
        }
      }
    }
    if (crossing_level < 0) return;
    const auto shared = [&](double seconds) { return std::max(1.0, seconds * crossing_rate); };
    const double ring = std::max(widest(out), widest_uplink());
    times.ring.take(ring, crossing_from, crossing_to, crossing_level, 1 / ring, shared(ring));
    const double exchange = std::max(widest(in), widest_uplink());
    times.exchange.take(exchange, crossing_from, crossing_to, crossing_level, 1 / exchange,
                        shared(exchange * item.n / (item.n - 1)));
  }

  // Each member to the next.
  void time_sends(const AxisWork& item, std::span<const int> device_of_rank, AxisTimes& times) {
    clear_loads();
    const std::size_t groups = item.members.size() / static_cast<std::size_t>(item.n);
    int from = -1;
    int to = -1;
    int farthest = -1;
    double rate = 0;
    for (std::size_t g = 0; g < groups; ++g) {
      for (std::size_t i = 0; i + 1 < static_cast<std::size_t>(item.n); ++i) {
        const std::size_t place = g * static_cast<std::size_t>(item.n) + i;
        const int a = device_of_rank[static_cast<std::size_t>(item.members[place])];
        const int b = device_of_rank[static_cast<std::size_t>(item.members[place + 1])];
        const DevicePlace pa = at[static_cast<std::size_t>(a)];
        const DevicePlace pb = at[static_cast<std::size_t>(b)];
        if (pa.node == pb.node) {
          const Path& path = kind_at(a).path(pa.local, pb.local);
          times.send.take(1 / path.bandwidth, a, b, -1, path.bandwidth, 1);
          times.latency = std::max(times.latency, path.latency);
          continue;
        }
        members = {a};
        collect_cards(0, 1);
        load_cards(out, 1);
        rate = cards_bandwidth();
        members = {b};
        collect_cards(0, 1);
        load_cards(in, 1);
        members = {std::min(a, b), std::max(a, b)};
        const int level = meeting_level();
        times.latency = std::max(times.latency, topology.fabric[static_cast<std::size_t>(level)].latency);
        for (std::size_t l = 0; l < static_cast<std::size_t>(level); ++l) uplinks[l][switch_of(l, a)] += 1;
        if (level < farthest) continue;
        farthest = level;
        from = a;
        to = b;
      }
    }
    if (farthest < 0) return;
    const double seconds = std::max({widest(out), widest(in), widest_uplink()});
    times.send.take(seconds, from, to, farthest, 1 / seconds, std::max(1.0, seconds * rate));
  }

  AxisTimes times_of(const AxisWork& item, std::span<const int> device_of_rank) {
    AxisTimes times;
    if (item.ring > 0 || item.exchange > 0) time_collectives(item, device_of_rank, times);
    if (item.sends > 0) time_sends(item, device_of_rank, times);
    return times;
  }

  static double seconds_of(const AxisWork& item, const AxisTimes& times) {
    double seconds = item.latencies * times.latency;
    if (item.ring > 0) seconds += item.ring * times.ring.seconds_per_byte;
    if (item.exchange > 0) seconds += item.exchange * times.exchange.seconds_per_byte;
    if (item.sends > 0) seconds += item.sends * times.send.seconds_per_byte;
    return seconds;
  }

  SlowestLink link_of(const AxisWork& item, const AxisTimes& times) const {
    const double ring = item.ring * times.ring.seconds_per_byte;
    const double exchange = item.exchange * times.exchange.seconds_per_byte;
    const double send = item.sends * times.send.seconds_per_byte;
    const Worst& worst = send >= ring && send >= exchange ? times.send : ring >= exchange ? times.ring : times.exchange;
    SlowestLink link{worst.a, worst.b, "", worst.bandwidth, 0, worst.sharing};
    if (worst.a < 0) return link;
    if (worst.level >= 0) {
      const FabricLevel& level = topology.fabric[static_cast<std::size_t>(worst.level)];
      link.path = level.name;
      link.latency = level.latency;
      return link;
    }
    const Path& path =
        kind_at(worst.a).path(at[static_cast<std::size_t>(worst.a)].local, at[static_cast<std::size_t>(worst.b)].local);
    link.path = name_of(path.kind);
    link.latency = path.latency;
    return link;
  }

  double bound_with(int g, const std::vector<double>& least, const std::vector<double>& crossing) const;
};

MappingModel::MappingModel(const Topology& topology, const Grid& grid, const Traffic& traffic)
    : prepared_(std::make_unique<Prepared>(topology, grid, traffic)) {}

MappingModel::~MappingModel() = default;

double MappingModel::seconds(std::span<const int> device_of_rank) {
  double sum = 0;
  for (const auto& item : prepared_->work) sum += Prepared::seconds_of(item, prepared_->times_of(item, device_of_rank));
  return sum;
}

MappingCost MappingModel::cost(std::span<const int> device_of_rank) {
  MappingCost cost;
  for (const auto& item : prepared_->work) {
    const auto times = prepared_->times_of(item, device_of_rank);
    cost.axes.push_back({item.axis, Prepared::seconds_of(item, times), prepared_->link_of(item, times)});
    cost.seconds += cost.axes.back().seconds;
  }
  return cost;
}

// Least time of a node that holds g ranks. Its ranks lie in k groups of each axis, at most g/n of them whole; every
// other one crosses the node's cards.
double MappingModel::Prepared::bound_with(int g, const std::vector<double>& least,
                                          const std::vector<double>& crossing) const {
  const std::size_t axes = work.size();
  const auto lowest = [&](std::size_t a) { return (g + work[a].n - 1) / work[a].n; };
  const auto price = [&](std::size_t a, double k) {
    return std::max(least[a], crossing[a] * std::max(0.0, k - g / work[a].n));
  };
  const double needed = std::pow(g, static_cast<double>(axes) - 1);
  double best = kNever;
  std::vector<int> k(axes);
  const std::function<void(std::size_t, double, double)> choose = [&](std::size_t a, double product, double sum) {
    if (sum >= best) return;
    if (a + 1 == axes) {
      const double last = std::max<double>(lowest(a), std::ceil(needed / product - 1e-9));
      if (last <= g) best = std::min(best, sum + price(a, last));
      return;
    }
    for (int ka = lowest(a); ka <= g; ++ka) choose(a + 1, product * ka, sum + price(a, ka));
  };
  choose(0, 1, 0);
  return best;
}

double MappingModel::lower_bound() const {
  const Prepared& p = *prepared_;
  double fastest = 0;
  double lowest_latency = kNever;
  double node_cards = 0;
  std::size_t largest = 0;
  for (const NodeKind& kind : p.topology.kinds) {
    double sum = 0;
    for (const TopologyNic& nic : kind.nics) sum += nic.bandwidth;
    node_cards = std::max(node_cards, sum);
    fastest = std::max(fastest, sum);
    largest = std::max(largest, kind.devices.size());
    for (const Path& path : kind.paths) {
      if (path.kind == PathKind::same) continue;
      fastest = std::max(fastest, path.bandwidth);
      lowest_latency = std::min(lowest_latency, path.latency);
    }
  }
  for (const FabricLevel& level : p.topology.fabric) {
    if (p.topology.nodes.size() > 1) lowest_latency = std::min(lowest_latency, level.latency);
  }
  std::vector<double> least, crossing;
  double latency = 0;
  for (const auto& item : p.work) {
    latency += item.latencies * lowest_latency;
    least.push_back((item.ring + item.sends + item.exchange / item.n) / fastest);
    crossing.push_back(
        node_cards > 0 ? (item.ring + item.sends / 2 + item.exchange * (item.n - 1) / item.n) / node_cards : kNever);
  }
  const double alone = latency + std::accumulate(least.begin(), least.end(), 0.0);
  if (p.topology.nodes.size() < 2 || p.work.empty()) return alone;
  const int world = p.grid.world();
  const auto nodes = static_cast<int>(p.topology.nodes.size());
  const int fewest = (world + nodes - 1) / nodes;
  // Beyond this the choices of k are too many.
  if (std::pow(static_cast<double>(largest), static_cast<double>(p.work.size()) - 1) > 1e5) return alone;
  double best = kNever;
  for (int g = fewest; g <= std::min<int>(static_cast<int>(largest), world); ++g) {
    best = std::min(best, p.bound_with(g, least, crossing));
  }
  return std::max(alone, latency + best);
}

}  // namespace cuboid
