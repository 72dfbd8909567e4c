#include "cuboid/value/topology.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/core/text.h"

namespace cuboid {
namespace {

constexpr std::array<const char*, 9> kPathNames = {"same", "nvlink", "cache", "pix", "pxb",
                                                   "phb",  "node",   "sys",   "host"};
constexpr std::array<const char*, 3> kDeviceNames = {"gpu", "mig", "core"};

// Keeps these devices of a node's kind, in this order.
NodeKind selected(const NodeKind& kind, const std::vector<int>& devices) {
  NodeKind out;
  out.name = kind.name;
  out.nics = kind.nics;
  for (int a : devices) {
    out.devices.push_back(kind.devices[static_cast<std::size_t>(a)]);
    for (int b : devices) out.paths.push_back(kind.path(a, b));
    for (std::size_t n = 0; n < kind.nics.size(); ++n) out.nic_paths.push_back(kind.nic_path(a, static_cast<int>(n)));
  }
  return out;
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> items(1);
  for (char c : text) {
    if (c == ',') {
      items.emplace_back();
    } else if (c != ' ') {
      items.back() += c;
    }
  }
  return items;
}

// The device that an entry of CUDA_VISIBLE_DEVICES names; none: no device, or no single one.
std::optional<int> named_device(const NodeKind& kind, const std::string& entry) {
  const bool by_id = entry.starts_with("GPU-") || entry.starts_with("MIG-");
  int number = -1;
  const auto [end, fault] = std::from_chars(entry.data(), entry.data() + entry.size(), number);
  if (!by_id && (fault != std::errc() || end != entry.data() + entry.size() || entry.empty())) return {};
  std::optional<int> found;
  for (std::size_t d = 0; d < kind.devices.size(); ++d) {
    const TopologyDevice& device = kind.devices[d];
    const bool hit =
        by_id ? device.id.starts_with(entry) : device.number == number && device.kind == TopologyDeviceKind::gpu;
    if (!hit) continue;
    if (found) return {};
    found = static_cast<int>(d);
  }
  return found;
}

// Connected components of a node's devices under a relation, in ascending order of their first.
std::vector<std::vector<int>> components(int size, const std::function<bool(int, int)>& related) {
  std::vector<int> root(static_cast<std::size_t>(size));
  std::iota(root.begin(), root.end(), 0);
  for (int a = 0; a < size; ++a) {
    for (int b = 0; b < a; ++b) {
      const int ra = root[static_cast<std::size_t>(a)];
      const int rb = root[static_cast<std::size_t>(b)];
      if (ra == rb || !related(a, b)) continue;
      std::replace(root.begin(), root.end(), std::max(ra, rb), std::min(ra, rb));
    }
  }
  std::vector<std::vector<int>> groups(static_cast<std::size_t>(size));
  for (int d = 0; d < size; ++d) groups[static_cast<std::size_t>(root[static_cast<std::size_t>(d)])].push_back(d);
  std::erase_if(groups, [](const auto& group) { return group.empty(); });
  return groups;
}

struct InnerLevel {
  const char* name;
  bool (*related)(const NodeKind&, int, int);
};
constexpr std::array<InnerLevel, 5> kInnerLevels = {{
    {"cache", [](const NodeKind& k, int a, int b) { return k.path(a, b).kind == PathKind::cache; }},
    {"nvlink domain", [](const NodeKind& k, int a, int b) { return k.path(a, b).kind == PathKind::nvlink; }},
    {"pcie switch", [](const NodeKind& k, int a,
                       int b) { return k.path(a, b).kind == PathKind::pix || k.path(a, b).kind == PathKind::pxb; }},
    {"numa",
     [](const NodeKind& k, int a, int b) {
       const auto& na = k.devices[static_cast<std::size_t>(a)].numa;
       return na.has_value() && na == k.devices[static_cast<std::size_t>(b)].numa;
     }},
    {"node", [](const NodeKind&, int, int) { return true; }},
}};

// The card number by which a device is on a rail: its first card's; -1: it has none.
int rail_of(const NodeKind& kind, int device) {
  const auto nics = kind.nics_of(device);
  return nics.empty() ? -1 : nics.front();
}

double card_bandwidth(const NodeKind& kind, int device) {
  double sum = 0;
  for (int nic : kind.nics_of(device)) sum += kind.nics[static_cast<std::size_t>(nic)].bandwidth;
  return sum;
}

// Slowest path inside the groups between devices that no inner group joins.
void price(const Topology& topology, const std::vector<DevicePlace>& at, const TopologyLevel* inner,
           TopologyLevel& level) {
  std::vector<int> inside(at.size(), -1);
  if (inner != nullptr) {
    for (std::size_t g = 0; g < inner->groups.size(); ++g) {
      for (int d : inner->groups[g]) inside[static_cast<std::size_t>(d)] = static_cast<int>(g);
    }
  }
  double slowest = INFINITY;
  std::set<std::pair<int, int>> seen;  // (kind, first device) of groups inside a node: those of like nodes are alike
  for (const auto& group : level.groups) {
    const DevicePlace first = at[static_cast<std::size_t>(group.front())];
    const DevicePlace last = at[static_cast<std::size_t>(group.back())];
    const bool within = first.node == last.node;
    const int kind = topology.nodes[static_cast<std::size_t>(first.node)].kind;
    if (within && !seen.insert({kind, first.local}).second) continue;
    for (std::size_t i = 0; i < group.size(); ++i) {
      // Across nodes every device stands for its like: the first of the group against the others.
      if (!within && i > 0) break;
      for (std::size_t j = i + 1; j < group.size(); ++j) {
        const auto a = static_cast<std::size_t>(group[i]);
        const auto b = static_cast<std::size_t>(group[j]);
        if (inside[a] >= 0 && inside[a] == inside[b]) continue;
        double bandwidth = 0;
        double latency = 0;
        if (within) {
          const Path& path = topology.kinds[static_cast<std::size_t>(kind)].path(at[a].local, at[b].local);
          bandwidth = path.bandwidth;
          latency = path.latency;
        } else {
          const NetworkPath path = network_path(topology, at[a], at[b]);
          bandwidth = path.bandwidth;
          latency = path.latency;
        }
        if (bandwidth >= slowest) continue;
        slowest = bandwidth;
        level.bandwidth = bandwidth;
        level.latency = latency;
      }
    }
  }
}

}  // namespace

const char* name_of(PathKind kind) {
  return kPathNames[static_cast<std::size_t>(kind)];
}

const char* name_of(TopologyDeviceKind kind) {
  return kDeviceNames[static_cast<std::size_t>(kind)];
}

std::vector<int> NodeKind::nics_of(int device) const {
  std::vector<int> best;
  for (std::size_t n = 0; n < nics.size(); ++n) {
    const auto nic = static_cast<int>(n);
    const auto better = [&](int other) {
      const PathKind mine = nic_path(device, nic).kind;
      const PathKind theirs = nic_path(device, other).kind;
      if (mine != theirs) return mine < theirs ? 1 : -1;
      const double difference = nics[n].bandwidth - nics[static_cast<std::size_t>(other)].bandwidth;
      return difference > 0 ? 1 : difference < 0 ? -1 : 0;
    };
    const int than = best.empty() ? 1 : better(best.front());
    if (than > 0) best.clear();
    if (than >= 0) best.push_back(nic);
  }
  return best;
}

int Topology::devices() const {
  int sum = 0;
  for (const auto& node : nodes) sum += static_cast<int>(kinds[static_cast<std::size_t>(node.kind)].devices.size());
  return sum;
}

std::vector<DevicePlace> places(const Topology& topology) {
  std::vector<DevicePlace> all;
  for (std::size_t n = 0; n < topology.nodes.size(); ++n) {
    const auto& kind = topology.kinds[static_cast<std::size_t>(topology.nodes[n].kind)];
    for (std::size_t d = 0; d < kind.devices.size(); ++d) all.push_back({static_cast<int>(n), static_cast<int>(d)});
  }
  return all;
}

NetworkPath network_path(const Topology& topology, DevicePlace a, DevicePlace b) {
  const auto kind_of = [&](DevicePlace p) -> const NodeKind& {
    return topology.kinds[static_cast<std::size_t>(topology.nodes[static_cast<std::size_t>(p.node)].kind)];
  };
  NetworkPath path;
  path.bandwidth = std::min(card_bandwidth(kind_of(a), a.local), card_bandwidth(kind_of(b), b.local));
  for (std::size_t f = 0; f < topology.fabric.size(); ++f) {
    const FabricLevel& level = topology.fabric[f];
    if (level.nodes > 0 && a.node / level.nodes != b.node / level.nodes) continue;
    if (level.rail && rail_of(kind_of(a), a.local) != rail_of(kind_of(b), b.local)) continue;
    path.level = static_cast<int>(f);
    path.latency = level.latency;
    break;
  }
  return path;
}

std::vector<TopologyLevel> levels(const Topology& topology) {
  std::vector<TopologyLevel> all;
  const auto at = places(topology);
  std::vector<int> first(topology.nodes.size() + 1, 0);
  for (std::size_t n = 0; n < topology.nodes.size(); ++n) {
    first[n + 1] =
        first[n] + static_cast<int>(topology.kinds[static_cast<std::size_t>(topology.nodes[n].kind)].devices.size());
  }
  const auto add = [&](TopologyLevel level) {
    const bool joins =
        std::any_of(level.groups.begin(), level.groups.end(), [](const auto& g) { return g.size() > 1; });
    if (!joins || (!all.empty() && all.back().groups == level.groups)) return;
    price(topology, at, all.empty() ? nullptr : &all.back(), level);
    all.push_back(std::move(level));
  };
  std::vector<TopologyLevel> inside;
  for (const InnerLevel& inner : kInnerLevels) {
    TopologyLevel& level = inside.emplace_back(TopologyLevel{inner.name, {}, 0, 0});
    std::vector<std::vector<std::vector<int>>> of_kind;
    for (const NodeKind& kind : topology.kinds) {
      of_kind.push_back(
          components(static_cast<int>(kind.devices.size()), [&](int a, int b) { return inner.related(kind, a, b); }));
    }
    for (std::size_t n = 0; n < topology.nodes.size(); ++n) {
      for (auto group : of_kind[static_cast<std::size_t>(topology.nodes[n].kind)]) {
        for (int& d : group) d += first[n];
        level.groups.push_back(std::move(group));
      }
    }
  }
  // NVLink may join less than a NUMA node, or more.
  std::stable_sort(inside.begin(), inside.end(),
                   [](const auto& a, const auto& b) { return a.groups.size() > b.groups.size(); });
  for (TopologyLevel& level : inside) add(std::move(level));
  if (topology.nodes.size() < 2) return all;
  for (const FabricLevel& fabric : topology.fabric) {
    TopologyLevel level{fabric.name, {}, 0, 0};
    const int group_nodes = fabric.nodes > 0 ? fabric.nodes : static_cast<int>(topology.nodes.size());
    std::map<std::pair<int, int>, std::vector<int>> groups;  // by switch and rail
    for (std::size_t d = 0; d < at.size(); ++d) {
      const auto& kind =
          topology.kinds[static_cast<std::size_t>(topology.nodes[static_cast<std::size_t>(at[d].node)].kind)];
      groups[{at[d].node / group_nodes, fabric.rail ? rail_of(kind, at[d].local) : 0}].push_back(static_cast<int>(d));
    }
    for (auto& [key, group] : groups) level.groups.push_back(std::move(group));
    add(std::move(level));
  }
  return all;
}

namespace {

void check_path(const Path& path, const std::string& where, std::vector<std::string>& faults) {
  const auto wrong = [](double x) { return !(x >= 0) || std::isinf(x); };
  if (wrong(path.bandwidth))
    faults.push_back(fmt::format("{}: bandwidth {} is not a positive number", where, path.bandwidth));
  if (wrong(path.latency))
    faults.push_back(fmt::format("{}: latency {} is not a positive number", where, path.latency));
  if (path.links < 0) faults.push_back(fmt::format("{}: {} links", where, path.links));
}

void check_kind(const NodeKind& kind, std::vector<std::string>& faults) {
  const std::size_t devices = kind.devices.size();
  if (devices == 0) faults.push_back(kind.name + ": has no devices");
  if (kind.paths.size() != devices * devices || kind.nic_paths.size() != devices * kind.nics.size()) {
    faults.push_back(fmt::format("{}: {} paths between {} devices and {} paths to {} cards", kind.name,
                                 kind.paths.size(), devices, kind.nic_paths.size(), kind.nics.size()));
    return;
  }
  std::set<std::string> names;
  for (const auto& d : kind.devices) {
    if (!names.insert(d.name).second) faults.push_back(fmt::format("{}: two devices {}", kind.name, d.name));
  }
  for (const auto& n : kind.nics) {
    if (!names.insert(n.name).second) faults.push_back(fmt::format("{}: two cards {}", kind.name, n.name));
    for (double x : {n.bandwidth, n.wire_bandwidth, n.pcie_bandwidth}) {
      if (!(x >= 0) || std::isinf(x))
        faults.push_back(fmt::format("{}: {}: bandwidth {} is not a positive number", kind.name, n.name, x));
    }
  }
  for (std::size_t a = 0; a < devices; ++a) {
    for (std::size_t b = 0; b <= a; ++b) {
      const Path& path = kind.paths[a * devices + b];
      const std::string where = fmt::format("{}: {} to {}", kind.name, kind.devices[b].name, kind.devices[a].name);
      check_path(path, where, faults);
      if (path != kind.paths[b * devices + a]) faults.push_back(where + ": the two directions differ");
      if ((a == b) != (path.kind == PathKind::same))
        faults.push_back(where + ": a path is missing, or one leads nowhere");
    }
    for (std::size_t n = 0; n < kind.nics.size(); ++n) {
      check_path(kind.nic_paths[a * kind.nics.size() + n],
                 fmt::format("{}: {} to {}", kind.name, kind.devices[a].name, kind.nics[n].name), faults);
    }
  }
}

}  // namespace

std::vector<std::string> faults_of(const Topology& topology) {
  std::vector<std::string> faults;
  for (const NodeKind& kind : topology.kinds) check_kind(kind, faults);
  if (topology.nodes.empty()) faults.emplace_back("there are no nodes");
  std::set<std::string> names;
  for (const auto& node : topology.nodes) {
    if (node.kind < 0 || static_cast<std::size_t>(node.kind) >= topology.kinds.size()) {
      faults.push_back(fmt::format("node {}: kind {} is not one of {}", node.name, node.kind, topology.kinds.size()));
    }
    if (!names.insert(node.name).second) faults.push_back("two nodes " + node.name);
  }
  int inner = 1;
  for (const FabricLevel& level : topology.fabric) {
    const std::string where = "fabric level " + level.name;
    check_path({PathKind::sys, 0, level.bandwidth, level.latency}, where, faults);
    if (level.nodes < 0) faults.push_back(fmt::format("{}: groups of {} nodes", where, level.nodes));
    if (level.nodes == 0) {
      if (&level != &topology.fabric.back() && !level.rail)
        faults.push_back(where + ": joins all nodes, but is not the last");
      continue;
    }
    if (level.nodes % inner != 0 || level.nodes < inner) {
      faults.push_back(
          fmt::format("{}: groups of {} nodes are not made of the {} inside them", where, level.nodes, inner));
    }
    inner = std::max(1, level.nodes);
  }
  return faults;
}

Topology visible_devices(const Topology& topology, const std::string& list) {
  CUBOID_CHECK(topology.nodes.size() == 1, "CUDA_VISIBLE_DEVICES concerns one node");
  const std::string variable = "CUDA_VISIBLE_DEVICES=" + list;
  Topology out = topology;
  NodeKind& kind = out.kinds[static_cast<std::size_t>(out.nodes.front().kind)];
  const bool has_ids = std::any_of(kind.devices.begin(), kind.devices.end(),
                                   [](const auto& d) { return d.id.starts_with("GPU-") || d.id.starts_with("MIG-"); });
  std::vector<int> shown;
  const auto entries = split_at_commas(list);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::string& entry = entries[i];
    if (!has_ids && (entry.starts_with("GPU-") || entry.starts_with("MIG-"))) {
      throw Error(ErrorKind::request, fmt::format("{}: {} says no UUIDs; give the output of `nvidia-smi -L` too "
                                                  "(--gpu-list)",
                                                  variable, topology.name));
    }
    const auto device = named_device(kind, entry);
    if (!device) {
      const std::vector<std::string> rest(entries.begin() + static_cast<std::ptrdiff_t>(i), entries.end());
      if (!list.empty()) {
        out.notes.push_back(fmt::format("{}: '{}' names no single GPU, so it and all after it ({}) are hidden",
                                        variable, entry, join(rest)));
      }
      break;
    }
    if (std::find(shown.begin(), shown.end(), *device) != shown.end()) {
      throw Error(ErrorKind::request,
                  fmt::format("{}: {} is named twice", variable, kind.devices[static_cast<std::size_t>(*device)].name));
    }
    shown.push_back(*device);
  }
  std::vector<std::string> hidden;
  for (std::size_t d = 0; d < kind.devices.size(); ++d) {
    if (std::find(shown.begin(), shown.end(), static_cast<int>(d)) == shown.end())
      hidden.push_back(kind.devices[d].name);
  }
  if (shown.empty()) {
    throw Error(ErrorKind::request,
                fmt::format("{} hides every GPU of {} ({})", variable, topology.name, join(hidden)));
  }
  if (!hidden.empty()) out.notes.push_back(fmt::format("{} hides {}", variable, join(hidden)));
  kind = selected(kind, shown);
  return out;
}

namespace {

// The paths of a node are a matrix, and every node has a name: what a file of a few lines may ask for has an end.
void refuse_sizes_without_end(const Cluster& cluster, int devices) {
  constexpr int kMostDevices = 4096;  // of a node
  constexpr int kMostNodes = 1 << 17;
  const ClusterLevel& inner = cluster.levels.front();
  if (inner.size > kMostDevices) {
    throw Error(ErrorKind::request,
                fmt::format("the cluster {}: its first level, {}, joins {} devices; a node has at most {}",
                            cluster.name, inner.name, inner.size, kMostDevices));
  }
  if (cluster.levels.size() > 1 && cluster.levels[1].links > kMostDevices) {
    throw Error(ErrorKind::request, fmt::format("the cluster {}: {} links of a node; it has at most {} network cards",
                                                cluster.name, cluster.levels[1].links, kMostDevices));
  }
  if (devices > std::int64_t{kMostNodes} * inner.size) {
    throw Error(ErrorKind::request, fmt::format("{} devices of the cluster {}: {} a node, of at most {} nodes", devices,
                                                cluster.name, inner.size, kMostNodes));
  }
}

}  // namespace

Topology topology_of(const Cluster& cluster, int devices) {
  CUBOID_CHECK(!cluster.levels.empty(), "a cluster has levels");
  const ClusterLevel& inner = cluster.levels.front();
  if (devices > cluster.devices()) {
    throw Error(ErrorKind::request,
                fmt::format("{} devices: the cluster {} has {}", devices, cluster.name, cluster.devices()));
  }
  if (devices == 0) devices = static_cast<int>(std::min<std::int64_t>(2LL * inner.size, cluster.devices()));
  refuse_sizes_without_end(cluster, devices);
  Topology out;
  out.name = cluster.name;
  const bool cores = cluster.levels.front().name == "memory";
  const auto make_kind = [&](int count) {
    NodeKind kind;
    kind.name = count == inner.size ? cluster.name : fmt::format("{}, {} of {}", cluster.name, count, inner.size);
    for (int d = 0; d < count; ++d) {
      kind.devices.push_back({cores ? fmt::format("core {}", d) : fmt::format("GPU{}", d),
                              cores ? TopologyDeviceKind::core : TopologyDeviceKind::gpu, d, std::nullopt, "", ""});
    }
    const Path path = {cores ? PathKind::node : PathKind::nvlink, 0,
                       inner.links * inner.link_bandwidth * inner.efficiency, inner.latency};
    for (int a = 0; a < count; ++a) {
      for (int b = 0; b < count; ++b) kind.paths.push_back(a == b ? Path{} : path);
    }
    if (cluster.levels.size() < 2) return kind;
    const ClusterLevel& outer = cluster.levels[1];
    // Cards are near some devices: card k to devices k·d/n … where they divide, else all cards to all devices.
    const bool apart = outer.links > 1 && (inner.size % outer.links == 0);
    for (int n = 0; n < outer.links; ++n) {
      const double bandwidth = outer.link_bandwidth * outer.efficiency;
      kind.nics.push_back({fmt::format("nic{}", n), std::nullopt, bandwidth, bandwidth, 0});
    }
    for (int a = 0; a < count; ++a) {
      for (int n = 0; n < outer.links; ++n) {
        const bool near = !apart || a / (inner.size / outer.links) == n;
        kind.nic_paths.push_back({near ? PathKind::pxb : PathKind::sys, 0, outer.link_bandwidth, 0});
      }
    }
    return kind;
  };
  out.kinds.push_back(make_kind(std::min(devices, inner.size)));
  for (int left = devices; left > 0; left -= inner.size) {
    const int count = std::min(left, inner.size);
    if (count != static_cast<int>(out.kinds.back().devices.size())) out.kinds.push_back(make_kind(count));
    out.nodes.push_back({fmt::format("node{}", out.nodes.size() + 1), static_cast<int>(out.kinds.size()) - 1});
  }
  for (std::size_t l = 1; l < cluster.levels.size(); ++l) {
    const ClusterLevel& level = cluster.levels[l];
    FabricLevel fabric{level.name, level.size / inner.size, level.latency, 0, false};
    if (l + 1 < cluster.levels.size()) {
      const ClusterLevel& next = cluster.levels[l + 1];
      fabric.bandwidth = next.links * next.link_bandwidth * next.efficiency;
    } else {
      fabric.nodes = 0;
    }
    out.fabric.push_back(fabric);
  }
  return out;
}

Topology joined(const std::vector<Topology>& parts) {
  CUBOID_CHECK(!parts.empty(), "topologies to join");
  Topology all;
  std::vector<std::string> names;
  std::map<std::string, int> uses;
  for (const Topology& part : parts) {
    names.push_back(part.name);
    std::vector<int> kind_of;
    for (const NodeKind& kind : part.kinds) {
      const auto known = std::find(all.kinds.begin(), all.kinds.end(), kind);
      kind_of.push_back(static_cast<int>(known - all.kinds.begin()));
      if (known == all.kinds.end()) all.kinds.push_back(kind);
    }
    for (const TopologyNode& node : part.nodes) {
      const int use = ++uses[node.name];
      all.nodes.push_back(
          {use == 1 ? node.name : fmt::format("{}-{}", node.name, use), kind_of[static_cast<std::size_t>(node.kind)]});
    }
    for (const auto& note : part.notes) {
      if (std::find(all.notes.begin(), all.notes.end(), note) == all.notes.end()) all.notes.push_back(note);
    }
    if (all.fabric.empty()) all.fabric = part.fabric;
  }
  all.name = parts.size() == 1 ? names.front() : join(names, " + ");
  return all;
}

}  // namespace cuboid
