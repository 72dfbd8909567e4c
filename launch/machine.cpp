#include "launch/machine.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <hwloc.h>
#include <unistd.h>

#include "cuboid/core/error.h"
#include "cuboid/formats/topology.h"

namespace cuboid::launch {
namespace {

// What data costs between cores: orders of magnitude of shared memory; `cuboid bench comm --save` measures.
constexpr Path kSharedCache = {PathKind::cache, 0, 10e9, 1e-6};
constexpr Path kOneNuma = {PathKind::node, 0, 8e9, 1e-6};
constexpr Path kBetweenNuma = {PathKind::sys, 0, 5e9, 2e-6};
constexpr double kAssumedCard = 0.125e9;  // 1 Gbit/s, where the driver does not say

class Hwloc {
 public:
  Hwloc() {
    hwloc_topology_init(&topology_);
    hwloc_topology_set_io_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (hwloc_topology_load(topology_) != 0) throw Error(ErrorKind::failed, "hwloc cannot read this machine");
  }
  ~Hwloc() { hwloc_topology_destroy(topology_); }
  Hwloc(const Hwloc&) = delete;
  Hwloc& operator=(const Hwloc&) = delete;

  hwloc_topology_t get() const { return topology_; }
  std::vector<hwloc_obj_t> all(hwloc_obj_type_t type) const {
    std::vector<hwloc_obj_t> found;
    for (hwloc_obj_t o = nullptr; (o = hwloc_get_next_obj_by_type(topology_, type, o)) != nullptr;) found.push_back(o);
    return found;
  }
  std::optional<int> numa_of(hwloc_const_bitmap_t nodes) const {
    const int first = nodes == nullptr ? -1 : hwloc_bitmap_first(nodes);
    return first < 0 || hwloc_bitmap_weight(nodes) > 1 ? std::nullopt : std::optional<int>(first);
  }

 private:
  hwloc_topology_t topology_ = nullptr;
};

std::string list_of(hwloc_const_bitmap_t set) {
  std::array<char, 1024> text{};
  hwloc_bitmap_list_snprintf(text.data(), text.size(), set);
  return text.data();
}

bool share_a_cache(hwloc_topology_t topology, hwloc_obj_t a, hwloc_obj_t b) {
  const hwloc_obj_t meet = hwloc_get_common_ancestor_obj(topology, a, b);
  return meet != nullptr && hwloc_obj_type_is_cache(meet->type) != 0;
}

// Bytes a second of an interface that is up; 0: it is none that leads to other hosts.
double speed_of(const std::string& interface) {
  const std::filesystem::path folder = "/sys/class/net/" + interface;
  std::string state;
  std::ifstream(folder / "operstate") >> state;
  if (interface == "lo" || state == "down") return 0;
  double megabits = 0;
  std::ifstream(folder / "speed") >> megabits;
  return megabits > 0 ? megabits * 1e6 / 8 : kAssumedCard;
}

void add_cards(const Hwloc& machine, NodeKind& kind, std::vector<std::string>& notes) {
  for (hwloc_obj_t device : machine.all(HWLOC_OBJ_OS_DEVICE)) {
    if (device->attr->osdev.type != HWLOC_OBJ_OSDEV_NETWORK) continue;
    const double speed = speed_of(device->name);
    const hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(machine.get(), device);
    if (speed > 0) kind.nics.push_back({device->name, machine.numa_of(near->nodeset), speed, speed, 0});
  }
  std::error_code ignored;
  std::vector<std::string> others;  // without a place on a bus: virtual machines and containers
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/net", ignored)) {
    const std::string name = entry.path().filename();
    const bool known =
        std::any_of(kind.nics.begin(), kind.nics.end(), [&](const auto& nic) { return nic.name == name; });
    if (!known && kind.nics.empty() && speed_of(name) > 0) others.push_back(name);
  }
  std::sort(others.begin(), others.end());
  for (const auto& name : others) kind.nics.push_back({name, std::nullopt, speed_of(name), speed_of(name), 0});
  if (kind.nics.empty()) notes.push_back(kind.name + ": no network card that is up");
  for (const auto& device : kind.devices) {
    for (const auto& nic : kind.nics) {
      kind.nic_paths.push_back(nic.numa && nic.numa != device.numa ? kBetweenNuma : kOneNuma);
    }
  }
}

}  // namespace

std::string output_of(const std::string& command) {
  std::string text;
  std::FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return "";
  std::array<char, 4096> block;
  for (std::size_t n; (n = std::fread(block.data(), 1, block.size(), pipe)) > 0;) text.append(block.data(), n);
  return pclose(pipe) == 0 ? text : "";
}

Topology cores_of_this_machine() {
  const Hwloc machine;
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  Topology topology;
  topology.name = host.data();
  NodeKind& kind = topology.kinds.emplace_back();
  kind.name = topology.name;
  topology.nodes.push_back({topology.name, 0});
  const auto cores = machine.all(HWLOC_OBJ_CORE);
  for (hwloc_obj_t core : cores) {
    const auto number = static_cast<int>(core->logical_index);
    kind.devices.push_back({fmt::format("core{}", number), TopologyDeviceKind::core, number,
                            machine.numa_of(core->nodeset), list_of(core->cpuset), ""});
    for (hwloc_obj_t other : cores) {
      const bool one_numa = hwloc_bitmap_isequal(core->nodeset, other->nodeset) != 0;
      kind.paths.push_back(core == other                               ? Path{}
                           : share_a_cache(machine.get(), core, other) ? kSharedCache
                           : one_numa                                  ? kOneNuma
                                                                       : kBetweenNuma);
    }
  }
  topology.notes.push_back(topology.name +
                           ": bandwidths between cores are assumed (`cuboid bench comm --save` measures)");
  add_cards(machine, kind, topology.notes);
  return topology;
}

Topology this_machine() {
  const std::string matrix = output_of("nvidia-smi topo -m");
  const std::string list = output_of("nvidia-smi -L");
  if (matrix.empty() || list.find("GPU 0:") == std::string::npos) {
    Topology cores = cores_of_this_machine();
    cores.notes.push_back(cores.name + ": no GPU driver answers, so the devices are cores");
    return cores;
  }
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  Topology topology = parse_nvidia_topology(matrix, host.data());
  add_gpu_list(topology, list, "nvidia-smi -L");
  return topology;
}

}  // namespace cuboid::launch
