#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <pugixml.hpp>

#include "cuboid/core/error.h"
#include "cuboid/core/text.h"
#include "cuboid/formats/topology.h"

#include "topology_units.h"

namespace cuboid {
namespace {

constexpr std::size_t kMostText = 64 << 20;
constexpr std::size_t kMostAttribute = 1024;
constexpr int kMostDepth = 64;
constexpr int kMostDevices = 4096;
constexpr std::size_t kMostFaults = 20;

struct Bridge {
  int parent = -1;       // index of the bridge above; -1: the CPU's root
  double bandwidth = 0;  // of its link upwards; 0: unknown
};
struct Gpu {
  TopologyDevice device;
  int host = 0, cpu = 0, bridge = -1, sm = 0;
  double link = 0;                     // bandwidth of its own PCIe link
  std::map<std::string, int> nvlinks;  // count by target
  int to_switch = 0;
  std::size_t line = 0;
};
struct Card {
  TopologyNic nic;
  int host = 0, cpu = 0, bridge = -1, number = 0;
};
struct Cpu {
  int host = 0;
  std::string vendor;
};

// "00000000,0000ffff" (words of 32 bits, highest first) as "0-15".
std::optional<std::string> cores_of(const std::string& mask) {
  std::vector<std::uint32_t> words;
  for (std::size_t begin = 0; begin <= mask.size();) {
    const std::size_t end = std::min(mask.find(',', begin), mask.size());
    std::uint32_t word = 0;
    const auto [stop, fault] = std::from_chars(mask.data() + begin, mask.data() + end, word, 16);
    if (fault != std::errc() || stop != mask.data() + end) return {};
    words.insert(words.begin(), word);
    begin = end + 1;
  }
  std::string text;
  const auto set = [&](std::size_t bit) {
    return bit / 32 < words.size() && ((words[bit / 32] >> (bit % 32)) & 1U) != 0;
  };
  for (std::size_t bit = 0; bit < 32 * words.size(); ++bit) {
    if (!set(bit)) continue;
    std::size_t last = bit;
    while (set(last + 1)) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", bit);
    if (last > bit) text += fmt::format("-{}", last);
    bit = last;
  }
  return text;
}

/// Walks the document once and keeps what is in it; every fault with its line.
class Reader {
 public:
  Reader(std::string_view text, std::string source) : text_(text), source_(std::move(source)) {
    if (text.size() > kMostText) {
      throw Error(ErrorKind::request, source_ + ": larger than 64 MiB");
    }
    if (text.find("<!DOCTYPE") != std::string_view::npos || text.find("<!ENTITY") != std::string_view::npos) {
      throw Error(ErrorKind::request, source_ + ": has a document type or entities, which NCCL does not write");
    }
    const auto result = document_.load_buffer(text.data(), text.size(), pugi::parse_default, pugi::encoding_utf8);
    if (!result) {
      throw Error(ErrorKind::request,
                  fmt::format("{}: line {}: not valid XML: {}", source_, line_at(result.offset), result.description()));
    }
    const pugi::xml_node system = document_.child("system");
    if (!system || document_.document_element() != system || system.next_sibling()) {
      throw Error(ErrorKind::request, source_ + ": the one outermost element is not <system>: not a topology of NCCL");
    }
    const std::string version = attribute(system, "version");
    if (version != "1") fault(system, fmt::format("system version '{}': only version 1 is known", version));
    for (const pugi::xml_node child : system.children()) {
      if (std::strcmp(child.name(), "cpu") == 0) {
        read_cpu(child);
      } else {
        ignored_.insert(child.name());
      }
    }
    check_links();
    if (problems_.empty() && gpus.empty()) problems_.add(source_ + ": has no GPUs");
    problems_.throw_if_any();
  }

  std::vector<Cpu> cpus;
  std::vector<Bridge> bridges;
  std::vector<Gpu> gpus;
  std::vector<Card> cards;
  std::vector<std::string> hosts;
  const std::set<std::string>& ignored() const { return ignored_; }

 private:
  std::size_t line_at(std::ptrdiff_t offset) const {
    const auto end = std::min(static_cast<std::size_t>(std::max<std::ptrdiff_t>(offset, 0)), text_.size());
    return 1 +
           static_cast<std::size_t>(std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
  }
  void fault(pugi::xml_node node, const std::string& why) {
    if (problems_.reasons().size() < kMostFaults) {
      problems_.add(fmt::format("{}: line {}: {}", source_, line_at(node.offset_debug()), why));
    }
  }
  std::string attribute(pugi::xml_node node, const char* name, bool needed = true) {
    const pugi::xml_attribute found = node.attribute(name);
    if (!found) {
      if (needed) fault(node, fmt::format("<{}> has no {}", node.name(), name));
      return "";
    }
    const std::size_t size = std::strlen(found.value());
    if (size > kMostAttribute) {
      fault(node, fmt::format("<{}> {}: {} characters; at most {} are read", node.name(), name, size, kMostAttribute));
      return "";
    }
    return found.value();
  }
  // A whole number, in any base that NCCL writes (0x…); the fault is named.
  int number(pugi::xml_node node, const char* name, int least, int most, int otherwise = 0) {
    const std::string text = attribute(node, name);
    if (text.empty()) return otherwise;
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
      fault(node, fmt::format("<{}> {} '{}': not a whole number from {} to {}", node.name(), name, text, least, most));
      return otherwise;
    }
    return value;
  }

  // Files of several hosts repeat addresses.
  std::string on_this_host(const std::string& bus) const { return fmt::format("{}/{}", cpus.back().host, bus); }

  void read_cpu(pugi::xml_node node) {
    const std::string host = attribute(node, "host_hash", false);
    const auto known = std::find(hosts.begin(), hosts.end(), host);
    Cpu cpu{static_cast<int>(known - hosts.begin()), attribute(node, "vendor", false)};
    if (known == hosts.end()) hosts.push_back(host);
    attribute(node, "arch");
    numa_ = number(node, "numaid", -1, 1 << 20, -1);
    const std::string mask = attribute(node, "affinity");
    const auto cores = cores_of(mask);
    if (!mask.empty() && !cores) fault(node, fmt::format("<cpu> affinity '{}': not words of 32 bits", mask));
    cores_ = cores.value_or("");
    cpus.push_back(std::move(cpu));
    for (const pugi::xml_node child : node.children()) read_child(child, -1, 1);
  }

  void read_child(pugi::xml_node node, int bridge, int depth) {
    if (depth > kMostDepth) return fault(node, fmt::format("elements nested over {} deep", kMostDepth));
    const std::string name = node.name();
    if (name == "pci") {
      read_pci(node, bridge, depth);
    } else if (name == "nic") {
      for (const pugi::xml_node net : node.children()) read_net(net, bridge, 0);
    } else if (!name.empty()) {
      ignored_.insert(name);
    }
  }

  // Bytes a second of "16.0 GT/s PCIe" and "16"; 0 where the driver said nothing.
  double link_of(pugi::xml_node node) {
    const std::string speed = attribute(node, "link_speed", false);
    const int lanes = number(node, "link_width", 0, 64);
    if (speed.empty() || speed.starts_with("Unknown")) return 0;
    double transfers = 0;
    const auto [end, error] = std::from_chars(speed.data(), speed.data() + speed.size(), transfers);
    const std::string_view unit(end, static_cast<std::size_t>(speed.data() + speed.size() - end));
    if (error != std::errc() || !unit.starts_with(" GT/s") || !(transfers > 0 && transfers < 1000)) {
      fault(node, fmt::format("<pci> link_speed '{}': not a number of GT/s", speed));
      return 0;
    }
    return pcie_bandwidth(transfers, lanes);
  }

  void read_pci(pugi::xml_node node, int bridge, int depth) {
    const std::string bus = attribute(node, "busid");
    if (!bus.empty() && !buses_.insert(on_this_host(bus)).second)
      fault(node, fmt::format("<pci> busid {} occurs twice", bus));
    const double link = link_of(node);
    const bool has_gpu = node.child("gpu");
    const bool has_nic = node.child("nic");
    if (!has_gpu && !has_nic) {
      bridges.push_back({bridge, link});
      const auto own = static_cast<int>(bridges.size()) - 1;
      for (const pugi::xml_node child : node.children()) read_child(child, own, depth + 1);
      return;
    }
    for (const pugi::xml_node child : node.children()) {
      if (std::strcmp(child.name(), "gpu") == 0) {
        read_gpu(child, bus, bridge, link);
      } else if (std::strcmp(child.name(), "nic") == 0) {
        for (const pugi::xml_node net : child.children()) read_net(net, bridge, link);
      } else {
        read_child(child, bridge, depth + 1);
      }
    }
  }

  std::optional<int> numa() const { return numa_ < 0 ? std::nullopt : std::optional<int>(numa_); }

  void read_gpu(pugi::xml_node node, const std::string& bus, int bridge, double link) {
    if (gpus.size() >= kMostDevices) return fault(node, fmt::format("over {} GPUs", kMostDevices));
    Gpu gpu;
    gpu.line = line_at(node.offset_debug());
    gpu.host = cpus.back().host;
    gpu.cpu = static_cast<int>(cpus.size()) - 1;
    gpu.bridge = bridge;
    gpu.link = link;
    gpu.sm = number(node, "sm", 0, 10000);
    gpu.device.number = number(node, "dev", 0, kMostDevices);
    gpu.device.name = fmt::format("GPU{}", gpu.device.number);
    gpu.device.numa = numa();
    gpu.device.cpus = cores_;
    gpu.device.id = bus;
    for (const Gpu& other : gpus) {
      if (other.host != gpu.host || other.device.number != gpu.device.number) continue;
      fault(node, fmt::format("<gpu> dev {}: that of line {}, too", gpu.device.number, other.line));
    }
    for (const pugi::xml_node link_node : node.children()) {
      if (std::strcmp(link_node.name(), "nvlink") != 0) {
        ignored_.insert(link_node.name());
        continue;
      }
      const int count = number(link_node, "count", 1, 1024, 1);
      const std::string target = attribute(link_node, "target");
      const std::string type = attribute(link_node, "tclass");
      if (type.starts_with("0x0680")) {
        gpu.to_switch += count;
      } else if (!target.empty()) {
        gpu.nvlinks[target] += count;
        targets_.emplace_back(link_node, target, on_this_host(target));
      }
    }
    gpus.push_back(std::move(gpu));
  }

  void read_net(pugi::xml_node node, int bridge, double pcie) {
    if (std::strcmp(node.name(), "net") != 0) {
      if (*node.name() != 0) ignored_.insert(node.name());
      return;
    }
    if (cards.size() >= kMostDevices) return fault(node, fmt::format("over {} network cards", kMostDevices));
    Card card;
    card.host = cpus.back().host;
    card.cpu = static_cast<int>(cpus.size()) - 1;
    card.bridge = bridge;
    card.number = number(node, "dev", 0, kMostDevices);
    for (const Card& other : cards) {
      if (other.host == card.host && other.number == card.number) {
        fault(node, fmt::format("<net> dev {} occurs twice", card.number));
      }
    }
    card.nic.name = attribute(node, "name");
    card.nic.numa = numa();
    card.nic.wire_bandwidth = 1e6 / 8 * number(node, "speed", 1, 100'000'000, 1);  // Mbit/s
    card.nic.pcie_bandwidth = pcie;
    card.nic.bandwidth = pcie > 0 ? std::min(pcie, card.nic.wire_bandwidth) : card.nic.wire_bandwidth;
    cards.push_back(std::move(card));
  }

  void check_links() {
    for (const auto& [node, target, place] : targets_) {
      if (!buses_.contains(place)) fault(node, fmt::format("<nvlink> target {} is not in the file", target));
    }
    for (const Gpu& a : gpus) {
      for (const Gpu& b : gpus) {
        if (!(a.device.id < b.device.id) || a.host != b.host) continue;
        const auto count = [](const Gpu& from, const Gpu& to) {
          const auto found = from.nvlinks.find(to.device.id);
          return found == from.nvlinks.end() ? 0 : found->second;
        };
        if (count(a, b) == count(b, a) || problems_.reasons().size() >= kMostFaults) continue;
        problems_.add(fmt::format("{}: {} has {} NVLinks to {}, which has {} to it", source_, a.device.name,
                                  count(a, b), b.device.name, count(b, a)));
      }
    }
  }

  std::string_view text_;
  std::string source_;
  pugi::xml_document document_;
  Problems problems_;
  std::set<std::string> buses_;
  std::set<std::string> ignored_;
  std::vector<std::tuple<pugi::xml_node, std::string, std::string>> targets_;
  int numa_ = -1;
  std::string cores_;
};

double nvlink_bandwidth(int sm) {
  return sm < 70 ? 20e9 : sm < 100 ? kAssumedNvlink : 50e9;
}

// The PCIe path between two ends: the bridges up to where they meet; a CPU where they do not.
Path pcie_path(const Reader& read, int cpu_a, int bridge_a, double link_a, int cpu_b, int bridge_b, double link_b) {
  double bandwidth = INFINITY;
  const auto narrow = [&](double link) {
    if (link > 0) bandwidth = std::min(bandwidth, link);
  };
  narrow(link_a);
  narrow(link_b);
  std::vector<int> above_a;
  for (int b = bridge_a; b >= 0; b = read.bridges[static_cast<std::size_t>(b)].parent) above_a.push_back(b);
  std::vector<int> above_b;
  for (int b = bridge_b; b >= 0; b = read.bridges[static_cast<std::size_t>(b)].parent) above_b.push_back(b);
  std::size_t bridges = 0;
  while (!above_a.empty() && !above_b.empty() && above_a.back() == above_b.back()) {
    bridges = 1;
    above_a.pop_back();
    above_b.pop_back();
  }
  for (const auto* side : {&above_a, &above_b}) {
    for (int b : *side) narrow(read.bridges[static_cast<std::size_t>(b)].bandwidth);
    bridges += side->size();
  }
  const bool meet = cpu_a == cpu_b && bridge_a >= 0 && bridge_b >= 0 && above_a.size() + above_b.size() + 1 == bridges;
  PathKind kind = PathKind::sys;
  if (cpu_a == cpu_b) kind = !meet ? PathKind::phb : bridges == 1 ? PathKind::pix : PathKind::pxb;
  if (kind == PathKind::sys) {
    const std::string& vendor = read.cpus[static_cast<std::size_t>(cpu_a)].vendor;
    narrow(vendor == "GenuineIntel" ? 10e9 : kAssumedSocket);
  }
  if (std::isinf(bandwidth)) bandwidth = pcie_bandwidth(16, 16);
  return path_of(kind, 0, bandwidth);
}

Path gpu_path(const Reader& read, const Gpu& a, const Gpu& b) {
  if (&a == &b) return {};
  const auto direct = a.nvlinks.find(b.device.id);
  const int links = direct != a.nvlinks.end() ? direct->second : std::min(a.to_switch, b.to_switch);
  if (links > 0) return path_of(PathKind::nvlink, links, links * nvlink_bandwidth(std::min(a.sm, b.sm)));
  return pcie_path(read, a.cpu, a.bridge, a.link, b.cpu, b.bridge, b.link);
}

NodeKind kind_of_host(const Reader& read, int host, const std::string& name) {
  NodeKind kind;
  kind.name = name;
  std::vector<const Gpu*> gpus;
  std::vector<const Card*> cards;
  for (const Gpu& gpu : read.gpus) {
    if (gpu.host == host) gpus.push_back(&gpu);
  }
  for (const Card& card : read.cards) {
    if (card.host == host) cards.push_back(&card);
  }
  std::sort(gpus.begin(), gpus.end(), [](auto* a, auto* b) { return a->device.number < b->device.number; });
  std::sort(cards.begin(), cards.end(), [](auto* a, auto* b) { return a->number < b->number; });
  for (const Card* card : cards) kind.nics.push_back(card->nic);
  for (const Gpu* gpu : gpus) {
    kind.devices.push_back(gpu->device);
    for (const Gpu* other : gpus) kind.paths.push_back(gpu_path(read, *gpu, *other));
    for (const Card* card : cards) {
      kind.nic_paths.push_back(
          pcie_path(read, gpu->cpu, gpu->bridge, gpu->link, card->cpu, card->bridge, card->nic.pcie_bandwidth));
    }
  }
  return kind;
}

}  // namespace

Topology parse_nccl_topology(std::string_view text, const std::string& source) {
  const Reader read(text, source);
  Topology topology;
  topology.name = source.substr(source.rfind('/') + 1);
  topology.name = topology.name.substr(0, topology.name.rfind('.'));
  for (std::size_t h = 0; h < read.hosts.size(); ++h) {
    const std::string name = read.hosts.size() == 1 ? topology.name : fmt::format("{}-{}", topology.name, h + 1);
    NodeKind kind = kind_of_host(read, static_cast<int>(h), name);
    if (kind.devices.empty()) continue;
    note_what_is_missing(kind, topology.notes);
    topology.nodes.push_back({name, static_cast<int>(topology.kinds.size())});
    topology.kinds.push_back(std::move(kind));
  }
  int expected = 0;
  for (const Card& card : read.cards) {
    for (; expected < card.number && expected < kMostDevices; ++expected) {
      const bool there =
          std::any_of(read.cards.begin(), read.cards.end(), [&](const Card& c) { return c.number == expected; });
      if (!there) topology.notes.push_back(fmt::format("{}: network card dev {} is not in the file", source, expected));
    }
  }
  for (const auto& name : read.ignored()) {
    if (!name.empty())
      topology.notes.push_back(fmt::format("{}: <{}> elements are not taken into account", source, name));
  }
  const auto faults = faults_of(topology);
  if (!faults.empty()) throw Error(ErrorKind::request, source + ": " + join(faults, "\n" + source + ": "));
  return topology;
}

}  // namespace cuboid
