// What a set of machines looks like to the ranks that run on it: devices, the paths between them with bandwidth and
// latency, network cards, nodes (also unlike ones) and the fabric that joins them. A value: readers of the formats that
// describe such machines are in formats/topology.h, the assignment of ranks to devices in plan/place.h.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "cuboid/value/cluster.h"

namespace cuboid {

/// The path between two devices of a node, or a device and a network card, in the words of `nvidia-smi topo -m`; from
/// near to far.
enum class PathKind {
  same,    ///< a device and itself
  nvlink,  ///< NV#: a bonded set of NVLinks, direct or through switches
  cache,   ///< cores that share a cache
  pix,     ///< at most one PCIe bridge
  pxb,     ///< several PCIe bridges, no host bridge
  phb,     ///< a PCIe host bridge
  node,    ///< between host bridges of a NUMA node; of cores: the memory of one NUMA node
  sys,     ///< between NUMA nodes
  host,    ///< no peer access: every byte is copied through the host's memory (MIG instances)
};
/// "nvlink", "pix", …
const char* name_of(PathKind kind);

struct Path {
  PathKind kind = PathKind::same;
  int links = 0;         ///< NVLinks; 0 for other kinds
  double bandwidth = 0;  ///< bytes a second in each direction
  double latency = 0;    ///< seconds of a message without bytes
  friend bool operator==(const Path&, const Path&) = default;
};

enum class TopologyDeviceKind { gpu, mig, core };
const char* name_of(TopologyDeviceKind kind);

struct TopologyDevice {
  std::string name;  ///< "GPU3", "core 1"
  TopologyDeviceKind kind = TopologyDeviceKind::gpu;
  int number = 0;           ///< as its driver or system counts: what CUDA_VISIBLE_DEVICES or a rank file names
  std::optional<int> numa;  ///< none: unknown
  std::string cpus;         ///< cores near it, "0-15,64-79"; empty: unknown
  std::string id;           ///< PCI address or UUID; empty: unknown
  friend bool operator==(const TopologyDevice&, const TopologyDevice&) = default;
};

struct TopologyNic {
  std::string name;
  std::optional<int> numa;
  double bandwidth = 0;  ///< bytes a second in each direction: the lower of the wire's and that of its PCIe link
  double wire_bandwidth = 0;
  double pcie_bandwidth = 0;  ///< 0: unknown
  friend bool operator==(const TopologyNic&, const TopologyNic&) = default;
};

/// One sort of node. Paths are kept as full matrices: devices × devices (symmetric) and devices × network cards.
struct NodeKind {
  std::string name;
  std::vector<TopologyDevice> devices;
  std::vector<TopologyNic> nics;
  std::vector<Path> paths;      // (D,D)
  std::vector<Path> nic_paths;  // (D,N)
  const Path& path(int a, int b) const {
    return paths[static_cast<std::size_t>(a) * devices.size() + static_cast<std::size_t>(b)];
  }
  const Path& nic_path(int device, int nic) const {
    return nic_paths[static_cast<std::size_t>(device) * nics.size() + static_cast<std::size_t>(nic)];
  }
  /// The network cards that a device uses: of the nearest kind of path, those with the largest bandwidth.
  std::vector<int> nics_of(int device) const;
  friend bool operator==(const NodeKind&, const NodeKind&) = default;
};

struct TopologyNode {
  std::string name;
  int kind = 0;  ///< index of its NodeKind
  friend bool operator==(const TopologyNode&, const TopologyNode&) = default;
};

/// What joins nodes, from the innermost switch outwards. Consecutive groups of `nodes` nodes share a switch.
struct FabricLevel {
  std::string name;
  int nodes = 0;         ///< of a group; 0: all
  double latency = 0;    ///< seconds of a message between nodes that meet at this level
  double bandwidth = 0;  ///< bytes a second that a group sends to others, and receives; 0: its cards are the only limit
  bool rail = false;     ///< joins cards of one number only; others go on to the next level
  friend bool operator==(const FabricLevel&, const FabricLevel&) = default;
};

struct Topology {
  std::string name;
  std::vector<NodeKind> kinds;
  std::vector<TopologyNode> nodes;
  std::vector<FabricLevel> fabric;
  std::vector<std::string> notes;  ///< what is missing, hidden or assumed, in sentences

  int devices() const;
  friend bool operator==(const Topology&, const Topology&) = default;
};

/// A device's place, of the devices of all nodes counted through.
struct DevicePlace {
  int node = 0;
  int local = 0;  ///< index in its node
};
std::vector<DevicePlace> places(const Topology& topology);

/// Devices that are alike in what they share: one level of the hierarchy, from the innermost outwards.
struct TopologyLevel {
  std::string name;                      ///< "nvlink domain", "pcie switch", "numa", "node", "rail", a fabric level
  std::vector<std::vector<int>> groups;  ///< devices (counted through), each group ascending
  double bandwidth = 0;  ///< bytes a second and direction of the slowest path that stays inside a group and leaves
                         ///< all groups of the levels inside it; 0: none does
  double latency = 0;    ///< of that path
};
/// Levels on which at least one group has several devices, and that differ from the level inside them.
std::vector<TopologyLevel> levels(const Topology& topology);

/// The path between devices of different nodes: cards at both ends and the fabric level at which they meet.
struct NetworkPath {
  int level = -1;        ///< index in fabric; -1: the topology says nothing of its network
  double bandwidth = 0;  ///< the slower of the two devices' cards (all that a device uses together); 0: unknown
  double latency = 0;
};
NetworkPath network_path(const Topology& topology, DevicePlace a, DevicePlace b);

/// Checks indices, matrix sizes and signs, links of unlike ends, fabric groups that do not nest. One reason a fault.
std::vector<std::string> faults_of(const Topology& topology);

/// What a process sees of a node's GPUs under CUDA_VISIBLE_DEVICES: numbers, UUIDs ("GPU-…", "MIG-…", their unique
/// beginnings). As CUDA documents it, an entry that names no device hides itself and all after it. Device i of the
/// result is what the process calls i; what is hidden is named in the notes.
/// @throws Error{request} for a device named twice
Topology visible_devices(const Topology& topology, const std::string& list);

/// A cluster's levels as machines: its first level is a node, whose devices have the level's bandwidth (as rated, times
/// its efficiency) to each other; the links of the second are a node's cards, shared by its devices; outer levels are
/// switches that join groups.
/// @param devices  how many, filling nodes; 0: two nodes, or the whole cluster where that is less
/// @throws Error{request} if the cluster has fewer, or for over 4096 devices or cards a node or 131072 nodes
Topology topology_of(const Cluster& cluster, int devices);

/// The same machines joined: every node of each, in order; a name that occurs again gets "-2", "-3" … Kinds that are
/// equal are shared. The fabric is the first's that has one.
Topology joined(const std::vector<Topology>& parts);

}  // namespace cuboid
