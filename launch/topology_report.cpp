#include "launch/topology_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cuboid/core/text.h"
#include "cuboid/core/units.h"

namespace cuboid::launch {
namespace {

using Json = nlohmann::ordered_json;

// Nodes and ranks that the text shows one by one; the JSON has all.
constexpr std::size_t kShownNodes = 4;
constexpr std::size_t kShownRanks = 64;
constexpr std::size_t kShownDevices = 32;  // of the matrix of paths

const NodeKind& kind_of(const Topology& topology, std::size_t node) {
  return topology.kinds[static_cast<std::size_t>(topology.nodes[node].kind)];
}

std::string rate(double bytes_per_second) {
  return bytes_per_second > 0 ? fmt::format("{:.4g} GB/s", bytes_per_second * 1e-9) : "unknown";
}

std::string cell(const Path& path) {
  if (path.kind == PathKind::same) return ".";
  return path.kind == PathKind::nvlink && path.links > 0 ? fmt::format("NV{}", path.links) : name_of(path.kind);
}

std::string kind_text(const NodeKind& kind) {
  std::string text;
  for (std::size_t d = 0; d < kind.devices.size() && d < kShownDevices; ++d) {
    const TopologyDevice& device = kind.devices[d];
    text +=
        fmt::format("  {:<10} {}", device.name, device.numa ? fmt::format("numa {}", *device.numa) : "numa unknown");
    if (!device.cpus.empty()) text += "  cpus " + device.cpus;
    std::vector<std::string> cards;
    for (int n : kind.nics_of(static_cast<int>(d))) cards.push_back(kind.nics[static_cast<std::size_t>(n)].name);
    if (!cards.empty()) {
      const int first = kind.nics_of(static_cast<int>(d)).front();
      text += fmt::format("  cards {} ({})", join(cards), name_of(kind.nic_path(static_cast<int>(d), first).kind));
    }
    text += "\n";
  }
  for (const TopologyNic& nic : kind.nics) {
    text += fmt::format("  {:<10} {}", nic.name, rate(nic.bandwidth));
    if (nic.pcie_bandwidth > 0 && nic.pcie_bandwidth < nic.wire_bandwidth) {
      text += fmt::format(" (PCIe; its wire could carry {})", rate(nic.wire_bandwidth));
    }
    text += "\n";
  }
  const std::size_t shown = std::min(kind.devices.size(), kShownDevices);
  if (shown < kind.devices.size())
    text += fmt::format("  … and {} more devices (--json has all)\n", kind.devices.size() - shown);
  if (shown < 2) return text;
  text += fmt::format("  {:<10}", "paths");
  for (std::size_t b = 0; b < shown; ++b) text += fmt::format(" {:>6}", kind.devices[b].name);
  for (std::size_t a = 0; a < shown; ++a) {
    text += fmt::format("\n  {:<10}", kind.devices[a].name);
    for (std::size_t b = 0; b < shown; ++b) {
      text += fmt::format(" {:>6}", cell(kind.path(static_cast<int>(a), static_cast<int>(b))));
    }
  }
  return text + "\n";
}

std::string coordinate_text(const Grid& grid, int rank) {
  const Coordinate at = grid.coordinate(rank);
  std::vector<std::string> parts;
  for (Axis axis : kAxes) {
    if (grid.degree(axis) > 1) parts.push_back(fmt::format("{} {}", name_of(axis), at[axis]));
  }
  return parts.empty() ? "the only rank" : join(parts);
}

std::string device_text(const Topology& topology, const std::vector<DevicePlace>& at, int device) {
  const DevicePlace place = at[static_cast<std::size_t>(device)];
  const auto node = static_cast<std::size_t>(place.node);
  const std::string& name = kind_of(topology, node).devices[static_cast<std::size_t>(place.local)].name;
  return topology.nodes.size() > 1 ? topology.nodes[node].name + ":" + name : name;
}

std::string placement_text(const Topology& topology, const PlacedGrid& placed) {
  const auto at = places(topology);
  const PlacedRanks& ranks = placed.ranks;
  std::string text = "\nplacement\n";
  for (std::size_t r = 0; r < ranks.device_of_rank.size() && r < kShownRanks; ++r) {
    text += fmt::format("  rank {:<4} {:<24} {}\n", r, coordinate_text(placed.grid, static_cast<int>(r)),
                        device_text(topology, at, ranks.device_of_rank[r]));
  }
  if (ranks.device_of_rank.size() > kShownRanks) {
    text +=
        fmt::format("  … and {} more ranks (--json and --emit have all)\n", ranks.device_of_rank.size() - kShownRanks);
  }
  text += ranks.order.empty() ? "  no axis order does the same: it takes a rank file (--emit rankfile)\n"
                              : fmt::format("  the same as ranks one after the other with --order {}\n", ranks.order);
  text +=
      fmt::format("\ncommunication of a step: {} ({}; no placement is under {})\n", human_seconds(ranks.cost.seconds),
                  ranks.exact ? "every placement was tried" : "best found by search", human_seconds(ranks.lower_bound));
  for (const AxisCost& axis : ranks.cost.axes) {
    text += fmt::format("  {:<3} {:>9}", name_of(axis.axis), human_seconds(axis.seconds));
    if (axis.slowest.from >= 0) {
      text += fmt::format("   slowest: {} to {} over {}, {} a group", device_text(topology, at, axis.slowest.from),
                          device_text(topology, at, axis.slowest.to), axis.slowest.path, rate(axis.slowest.bandwidth));
      if (axis.slowest.sharing > 1.005) text += fmt::format(" ({:.3g} groups share it)", axis.slowest.sharing);
    }
    text += "\n";
  }
  text += "alternatives, ranks one after the other\n";
  for (const Alternative& other : ranks.alternatives) {
    text += fmt::format("  {:<18} {:>9}   {:.2f} x\n", other.order, human_seconds(other.seconds),
                        other.seconds / ranks.cost.seconds);
  }
  return text;
}

Json path_json(const Path& path) {
  return {{"kind", name_of(path.kind)},
          {"count", path.links},
          {"bandwidth_bytes_per_second", path.bandwidth},
          {"latency_seconds", path.latency}};
}

void add_node(const Topology& topology, std::size_t node, int first, Json& devices, Json& links) {
  const NodeKind& kind = kind_of(topology, node);
  for (std::size_t d = 0; d < kind.devices.size(); ++d) {
    const TopologyDevice& device = kind.devices[d];
    Json cards = Json::array();
    for (int n : kind.nics_of(static_cast<int>(d))) cards.push_back(kind.nics[static_cast<std::size_t>(n)].name);
    devices.push_back({{"index", first + static_cast<int>(d)},
                       {"name", device.name},
                       {"kind", name_of(device.kind)},
                       {"number", device.number},
                       {"node", topology.nodes[node].name},
                       {"numa", device.numa ? Json(*device.numa) : Json(nullptr)},
                       {"cpus", device.cpus.empty() ? Json(nullptr) : Json(device.cpus)},
                       {"id", device.id.empty() ? Json(nullptr) : Json(device.id)},
                       {"nics", cards}});
    for (std::size_t other = d + 1; other < kind.devices.size(); ++other) {
      Json link = {{"node", topology.nodes[node].name}, {"from", device.name}, {"to", kind.devices[other].name}};
      link.update(path_json(kind.path(static_cast<int>(d), static_cast<int>(other))));
      links.push_back(link);
    }
    for (std::size_t n = 0; n < kind.nics.size(); ++n) {
      Json link = {{"node", topology.nodes[node].name}, {"from", device.name}, {"to", kind.nics[n].name}};
      link.update(path_json(kind.nic_path(static_cast<int>(d), static_cast<int>(n))));
      links.push_back(link);
    }
  }
  for (const TopologyNic& nic : kind.nics) {
    links.push_back({{"node", topology.nodes[node].name},
                     {"from", nic.name},
                     {"to", "network"},
                     {"kind", "wire"},
                     {"numa", nic.numa ? Json(*nic.numa) : Json(nullptr)},
                     {"bandwidth_bytes_per_second", nic.bandwidth},
                     {"wire_bytes_per_second", nic.wire_bandwidth},
                     {"pcie_bytes_per_second", nic.pcie_bandwidth > 0 ? Json(nic.pcie_bandwidth) : Json(nullptr)}});
  }
}

void add_placement(const PlacedGrid& placed, Json& document) {
  const PlacedRanks& ranks = placed.ranks;
  document["placement"] = ranks.device_of_rank;
  Json axes = Json::object();
  for (const AxisCost& axis : ranks.cost.axes) {
    Json slowest = nullptr;
    if (axis.slowest.from >= 0) {
      slowest = {{"from", axis.slowest.from},
                 {"to", axis.slowest.to},
                 {"kind", axis.slowest.path},
                 {"bandwidth_bytes_per_second", axis.slowest.bandwidth},
                 {"latency_seconds", axis.slowest.latency},
                 {"sharing", axis.slowest.sharing}};
    }
    axes[name_of(axis.axis)] = {
        {"degree", placed.grid.degree(axis.axis)}, {"seconds", axis.seconds}, {"slowest_link", slowest}};
  }
  document["axes"] = axes;
  document["traffic"] = to_text(placed.traffic);
  document["cost_seconds"] = ranks.cost.seconds;
  document["lower_bound_seconds"] = ranks.lower_bound;
  document["exact"] = ranks.exact;
  document["order"] = ranks.order.empty() ? Json(nullptr) : Json(ranks.order);
  Json alternatives = Json::array();
  for (const Alternative& other : ranks.alternatives) {
    alternatives.push_back(
        {{"order", other.order}, {"placement", other.device_of_rank}, {"cost_seconds", other.seconds}});
  }
  document["alternatives"] = alternatives;
}

}  // namespace

std::string topology_text(const Topology& topology, const std::optional<PlacedGrid>& placed) {
  std::string text =
      fmt::format("{}: {}, {}\n", topology.name, counted(static_cast<long long>(topology.nodes.size()), "node"),
                  counted(topology.devices(), "device"));
  for (std::size_t k = 0; k < topology.kinds.size(); ++k) {
    std::vector<std::string> names;
    std::size_t count = 0;
    for (const auto& node : topology.nodes) {
      if (static_cast<std::size_t>(node.kind) != k) continue;
      if (names.size() < kShownNodes) names.push_back(node.name);
      ++count;
    }
    text += fmt::format("{}{}\n{}", join(names),
                        count > names.size() ? fmt::format(" and {} more like them", count - names.size()) : "",
                        kind_text(topology.kinds[k]));
  }
  text += "levels\n";
  for (const TopologyLevel& level : levels(topology)) {
    std::size_t largest = 0;
    for (const auto& group : level.groups) largest = std::max(largest, group.size());
    text += fmt::format("  {:<14} {} of up to {} devices", level.name,
                        counted(static_cast<long long>(level.groups.size()), "group"), largest);
    if (level.bandwidth > 0) text += fmt::format(", {}, {}", rate(level.bandwidth), human_seconds(level.latency));
    text += "\n";
  }
  if (placed) text += placement_text(topology, *placed);
  for (const auto& note : topology.notes) text += "note: " + note + "\n";
  return text;
}

std::string topology_json(const Topology& topology, const std::optional<PlacedGrid>& placed) {
  Json document = {{"name", topology.name}};
  Json devices = Json::array();
  Json links = Json::array();
  int first = 0;
  for (std::size_t n = 0; n < topology.nodes.size(); ++n) {
    add_node(topology, n, first, devices, links);
    first += static_cast<int>(kind_of(topology, n).devices.size());
  }
  document["devices"] = devices;
  document["links"] = links;
  Json all = Json::array();
  for (const TopologyLevel& level : levels(topology)) {
    all.push_back({{"name", level.name},
                   {"groups", level.groups},
                   {"bandwidth_bytes_per_second", level.bandwidth > 0 ? Json(level.bandwidth) : Json(nullptr)},
                   {"latency_seconds", level.latency}});
  }
  document["levels"] = all;
  document["notes"] = topology.notes;
  if (placed) add_placement(*placed, document);
  return document.dump(2) + "\n";
}

}  // namespace cuboid::launch
