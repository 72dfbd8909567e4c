#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/core/text.h"

#include "launch/topology_report.h"

namespace cuboid::launch {
namespace {

// "0-3,8" as numbers; such lists come from drivers.
std::vector<int> cores_in(const std::string& list) {
  std::vector<int> cores;
  std::size_t at = 0;
  const auto number = [&] {
    int value = 0;
    while (at < list.size() && list[at] >= '0' && list[at] <= '9' && value < 1 << 20)
      value = 10 * value + (list[at++] - '0');
    return value;
  };
  while (at < list.size()) {
    const int first = number();
    int last = first;
    if (at < list.size() && list[at] == '-') {
      ++at;
      last = number();
    }
    for (int c = first; c <= last && cores.size() < 4096; ++c) cores.push_back(c);
    if (at < list.size() && list[at] != ',') return {};
    ++at;
  }
  return cores;
}

const NodeKind& kind_of(const Topology& topology, int node) {
  return topology.kinds[static_cast<std::size_t>(topology.nodes[static_cast<std::size_t>(node)].kind)];
}

// Nodes in the order of ranks; true if each node's ranks follow each other.
bool in_blocks(const std::vector<int>& nodes) {
  std::set<int> left;
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    if (nodes[i] == nodes[i - 1]) continue;
    left.insert(nodes[i - 1]);
    if (left.contains(nodes[i])) return false;
  }
  return true;
}

std::vector<int> nodes_of(const Topology& topology, const std::vector<int>& device_of_rank) {
  const auto at = places(topology);
  std::vector<int> nodes;
  for (int device : device_of_rank) nodes.push_back(at[static_cast<std::size_t>(device)].node);
  return nodes;
}

}  // namespace

std::string placed_rank_file(const Topology& topology, const std::vector<int>& device_of_rank) {
  const auto at = places(topology);
  // Ranks whose devices are near the same cores share them out.
  std::map<std::pair<int, std::string>, std::vector<std::size_t>> near;
  for (std::size_t r = 0; r < device_of_rank.size(); ++r) {
    const DevicePlace place = at[static_cast<std::size_t>(device_of_rank[r])];
    const auto& device = kind_of(topology, place.node).devices[static_cast<std::size_t>(place.local)];
    near[{place.node, device.cpus}].push_back(r);
  }
  std::string text;
  for (std::size_t r = 0; r < device_of_rank.size(); ++r) {
    const DevicePlace place = at[static_cast<std::size_t>(device_of_rank[r])];
    const auto& device = kind_of(topology, place.node).devices[static_cast<std::size_t>(place.local)];
    std::string slot = "*";
    if (device.kind == TopologyDeviceKind::core) {
      slot = std::to_string(device.number);
    } else if (const auto cores = cores_in(device.cpus); !cores.empty()) {
      const auto& sharers = near[{place.node, device.cpus}];
      const auto mine = static_cast<std::size_t>(std::find(sharers.begin(), sharers.end(), r) - sharers.begin());
      const std::size_t each = std::max<std::size_t>(1, cores.size() / sharers.size());
      std::vector<std::string> own;
      for (std::size_t c = 0; c < each; ++c) own.push_back(std::to_string(cores[(mine * each + c) % cores.size()]));
      slot = join(own, ",");
    }
    text += fmt::format("rank {}={} slot={}\n", r, topology.nodes[static_cast<std::size_t>(place.node)].name, slot);
  }
  return text;
}

std::string placed_host_file(const Topology& topology, const std::vector<int>& device_of_rank) {
  const auto nodes = nodes_of(topology, device_of_rank);
  if (!in_blocks(nodes)) {
    throw Error(ErrorKind::request,
                "--emit hostfile: this placement goes back to a node it has left, which a host file cannot say; use "
                "--emit rankfile");
  }
  std::string text;
  for (std::size_t r = 0; r < nodes.size();) {
    const auto count = static_cast<std::size_t>(std::count(nodes.begin(), nodes.end(), nodes[r]));
    text += fmt::format("{} slots={}\n", topology.nodes[static_cast<std::size_t>(nodes[r])].name, count);
    r += count;
  }
  return text;
}

std::string placed_slurm(const Topology& topology, const std::vector<int>& device_of_rank) {
  const auto nodes = nodes_of(topology, device_of_rank);
  std::vector<int> used;
  std::set<std::size_t> counts;
  for (int n : nodes) {
    if (std::find(used.begin(), used.end(), n) == used.end()) used.push_back(n);
  }
  std::vector<std::string> names;
  for (int n : used) {
    names.push_back(topology.nodes[static_cast<std::size_t>(n)].name);
    counts.insert(static_cast<std::size_t>(std::count(nodes.begin(), nodes.end(), n)));
  }
  const bool even = counts.size() == 1;
  // Runs of one length that go round the nodes are Slurm's plane distribution; of length 1, cyclic.
  std::size_t run = 1;
  while (run < nodes.size() && nodes[run] == nodes[0]) ++run;
  bool plane = even;
  for (std::size_t r = 0; r < nodes.size() && plane; ++r) plane = nodes[r] == used[r / run % used.size()];
  std::string text = fmt::format("#SBATCH --nodes={}\n#SBATCH --nodelist={}\n#SBATCH --ntasks={}\n", used.size(),
                                 join(names, ","), nodes.size());
  if (even) text += fmt::format("#SBATCH --ntasks-per-node={}\n", *counts.begin());
  if (even && in_blocks(nodes)) return text + "#SBATCH --distribution=block\n";
  if (plane)
    return text +
           (run == 1 ? "#SBATCH --distribution=cyclic\n" : fmt::format("#SBATCH --distribution=plane={}\n", run));
  text +=
      "#SBATCH --distribution=arbitrary\n\nSLURM_HOSTFILE=$(mktemp)\nexport SLURM_HOSTFILE\ncat >\"$SLURM_HOSTFILE\" "
      "<<'END'\n";
  for (int n : nodes) text += topology.nodes[static_cast<std::size_t>(n)].name + "\n";
  return text + "END\n";
}

std::string placed_cuda_devices(const Topology& topology, const std::vector<int>& device_of_rank) {
  const auto at = places(topology);
  std::map<int, std::vector<std::string>> of_node;
  for (int device : device_of_rank) {
    const DevicePlace place = at[static_cast<std::size_t>(device)];
    const auto& d = kind_of(topology, place.node).devices[static_cast<std::size_t>(place.local)];
    if (d.kind == TopologyDeviceKind::core) {
      throw Error(ErrorKind::request, fmt::format("--emit cuda: {} is a core, not a GPU; use --emit rankfile", d.name));
    }
    of_node[place.node].push_back(d.kind == TopologyDeviceKind::mig ? d.id : std::to_string(d.number));
  }
  std::string text;
  for (const auto& [node, devices] : of_node) {
    text += fmt::format("{} CUDA_VISIBLE_DEVICES={}\n", topology.nodes[static_cast<std::size_t>(node)].name,
                        join(devices, ","));
  }
  return text;
}

}  // namespace cuboid::launch
