#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cuboid/core/error.h"
#include "cuboid/core/text.h"
#include "cuboid/formats/cluster_file.h"
#include "cuboid/formats/mapped_file.h"
#include "cuboid/formats/topology.h"

#include "toml_reader.h"
#include "topology_units.h"

namespace cuboid {
namespace {

constexpr int kPathKinds = static_cast<int>(PathKind::host) + 1;
constexpr int kDeviceKinds = static_cast<int>(TopologyDeviceKind::core) + 1;
constexpr std::size_t kMostDevices = 4096;  // of a node
constexpr std::size_t kMostText = 64 << 20;

std::string path_text(const Path& path) {
  std::string text = fmt::format("path = \"{}\", ", name_of(path.kind));
  if (path.links > 0) text += fmt::format("links = {}, ", path.links);
  return text + fmt::format("bandwidth = {}, latency = {}", exact(path.bandwidth), exact(path.latency));
}

std::string kind_text(const NodeKind& kind) {
  std::string text = fmt::format("\n[[kind]]\nname = {}\n", toml_string(kind.name));
  text += "devices = [\n";
  for (const auto& d : kind.devices) {
    text += fmt::format("  {{name = {}, kind = \"{}\", number = {}", toml_string(d.name), name_of(d.kind), d.number);
    if (d.numa) text += fmt::format(", numa = {}", *d.numa);
    if (!d.cpus.empty()) text += ", cpus = " + toml_string(d.cpus);
    if (!d.id.empty()) text += ", id = " + toml_string(d.id);
    text += "},\n";
  }
  text += "]\nnics = [\n";
  for (const auto& n : kind.nics) {
    text += fmt::format("  {{name = {}, bandwidth = {}, wire-bandwidth = {}, pcie-bandwidth = {}", toml_string(n.name),
                        exact(n.bandwidth), exact(n.wire_bandwidth), exact(n.pcie_bandwidth));
    if (n.numa) text += fmt::format(", numa = {}", *n.numa);
    text += "},\n";
  }
  text += "]\nlinks = [\n";
  const auto count = static_cast<int>(kind.devices.size());
  for (int a = 0; a < count; ++a) {
    for (int b = a + 1; b < count; ++b) {
      text += fmt::format("  {{from = {}, to = {}, {}}},\n", a, b, path_text(kind.path(a, b)));
    }
  }
  text += "]\nnic-links = [\n";
  for (int a = 0; a < count; ++a) {
    for (int n = 0; n < static_cast<int>(kind.nics.size()); ++n) {
      text += fmt::format("  {{from = {}, to = {}, {}}},\n", a, n, path_text(kind.nic_path(a, n)));
    }
  }
  return text + "]\n";
}

void read_path(TomlReader& reader, Path& path) {
  reader.choice("path", path.kind, kPathKinds);
  reader("links", "", path.links);
  reader("bandwidth", "", path.bandwidth);
  reader("latency", "", path.latency);
  reader.refuse_unknown();
}

// A list of paths into a matrix of rows × columns; a place given twice or outside is a fault.
void read_links(const std::vector<const toml::table*>& tables, std::size_t rows, std::size_t columns, bool both_ways,
                std::vector<Path>& matrix, const std::string& where, TomlFaults& faults) {
  matrix.assign(rows * columns, Path{});
  std::vector<bool> given(rows * columns, false);
  for (const toml::table* table : tables) {
    TomlReader reader(*table, where, faults);
    int from = -1;
    int to = -1;
    reader("from", "", from);
    reader("to", "", to);
    Path path;
    read_path(reader, path);
    const auto a = static_cast<std::size_t>(from);
    const auto b = static_cast<std::size_t>(to);
    const auto line = table->source().begin.line;
    if (from < 0 || to < 0 || a >= rows || b >= columns || (both_ways && a == b)) {
      faults.emplace(line, fmt::format("{}link from {} to {}: there are {} and {}", where, from, to, rows, columns));
      continue;
    }
    const std::size_t at = a * columns + b;
    if (given[at]) faults.emplace(line, fmt::format("{}link from {} to {} is there twice", where, from, to));
    given[at] = true;
    matrix[at] = path;
    if (!both_ways) continue;
    const std::size_t back = b * columns + a;
    if (given[back]) faults.emplace(line, fmt::format("{}link from {} to {} is there twice", where, from, to));
    given[back] = true;
    matrix[back] = path;
  }
  for (std::size_t at = 0; at < given.size(); ++at) {
    if (given[at] || (both_ways && at / columns == at % columns)) continue;
    faults.emplace(0, fmt::format("{}the link from {} to {} is missing", where, at / columns, at % columns));
    return;
  }
}

NodeKind read_kind(const toml::table& table, std::size_t index, TomlFaults& faults) {
  const std::string where = fmt::format("kind {}: ", index + 1);
  NodeKind kind;
  TomlReader reader(table, where, faults);
  reader("name", "", kind.name);
  for (const toml::table* row : reader.tables("devices")) {
    TomlReader device(*row, where + "device: ", faults);
    TopologyDevice& d = kind.devices.emplace_back();
    device("name", "", d.name);
    device.choice("kind", d.kind, kDeviceKinds);
    device("number", "", d.number);
    device("numa", "", d.numa);
    device("cpus", "", d.cpus);
    device("id", "", d.id);
    device.refuse_unknown();
  }
  for (const toml::table* row : reader.tables("nics")) {
    TomlReader nic(*row, where + "nic: ", faults);
    TopologyNic& n = kind.nics.emplace_back();
    nic("name", "", n.name);
    nic("bandwidth", "", n.bandwidth);
    nic("wire-bandwidth", "", n.wire_bandwidth);
    nic("pcie-bandwidth", "", n.pcie_bandwidth);
    nic("numa", "", n.numa);
    nic.refuse_unknown();
  }
  const auto links = reader.tables("links");
  const auto nic_links = reader.tables("nic-links");
  reader.refuse_unknown();
  if (kind.devices.size() > kMostDevices || kind.nics.size() > kMostDevices) {
    faults.emplace(table.source().begin.line, fmt::format("{}over {} devices or cards", where, kMostDevices));
    return kind;
  }
  read_links(links, kind.devices.size(), kind.devices.size(), true, kind.paths, where, faults);
  read_links(nic_links, kind.devices.size(), kind.nics.size(), false, kind.nic_paths, where, faults);
  return kind;
}

}  // namespace

std::string write_topology(const Topology& topology) {
  std::string text =
      "# A topology for `cuboid topo --from FILE`. Bandwidths are bytes a second and direction, latencies seconds;\n"
      "# links name devices and cards by their place in the lists above them.\n";
  text += fmt::format("name = {}\n", toml_string(topology.name));
  std::vector<std::string> notes;
  for (const auto& note : topology.notes) notes.push_back(toml_string(note));
  text += fmt::format("notes = [{}]\n", join(notes));
  for (const NodeKind& kind : topology.kinds) text += kind_text(kind);
  for (const auto& node : topology.nodes) {
    text += fmt::format("\n[[node]]\nname = {}\nkind = {}\n", toml_string(node.name), node.kind);
  }
  for (const auto& f : topology.fabric) {
    text += fmt::format("\n[[fabric]]\nname = {}\nnodes = {}\nlatency = {}\nbandwidth = {}\nrail = {}\n",
                        toml_string(f.name), f.nodes, exact(f.latency), exact(f.bandwidth), f.rail);
  }
  return text;
}

Topology parse_topology(std::string_view text, const std::string& source) {
  const toml::table file = parse_toml(std::string(text), source);
  TomlFaults faults;
  Topology topology;
  TomlReader reader(file, "", faults);
  reader("name", "", topology.name);
  reader("notes", "", topology.notes);
  for (const toml::table* table : reader.tables("kind")) {
    topology.kinds.push_back(read_kind(*table, topology.kinds.size(), faults));
  }
  for (const toml::table* table : reader.tables("node")) {
    TomlReader node(*table, "node: ", faults);
    TopologyNode& n = topology.nodes.emplace_back();
    node("name", "", n.name);
    node("kind", "", n.kind);
    node.refuse_unknown();
  }
  for (const toml::table* table : reader.tables("fabric")) {
    TomlReader level(*table, "fabric: ", faults);
    FabricLevel& f = topology.fabric.emplace_back();
    level("name", "", f.name);
    level("nodes", "", f.nodes);
    level("latency", "", f.latency);
    level("bandwidth", "", f.bandwidth);
    level("rail", "", f.rail);
    level.refuse_unknown();
  }
  reader.refuse_unknown();
  Problems problems;
  for (const auto& [line, reason] : faults) {
    problems.add(line == 0 ? fmt::format("{}: {}", source, reason)
                           : fmt::format("{}: line {}: {}", source, line, reason));
  }
  problems.throw_if_any();
  for (const auto& fault : faults_of(topology)) problems.add(fmt::format("{}: {}", source, fault));
  problems.throw_if_any();
  return topology;
}

Topology read_topology(const std::string& path, int cluster_devices) {
  const auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.size() > kMostText) throw Error(ErrorKind::request, path + ": larger than 64 MiB: no topology");
  const auto first = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (first == std::string::npos) throw Error(ErrorKind::request, path + ": is empty");
  if (text[first] == '<') return parse_nccl_topology(text, path);
  if (text.find("GPU0") != std::string::npos && text.find('=') > text.find("GPU0")) {
    return parse_nvidia_topology(text, path);
  }
  if (path.ends_with(".toml")) {
    const toml::table table = parse_toml(text, path);
    if (table.contains("kind") || table.contains("node")) return parse_topology(text, path);
    return topology_of(parse_cluster_file(text, path), cluster_devices);
  }
  throw Error(ErrorKind::request,
              path + ": is neither the output of `nvidia-smi topo -m`, nor a topology XML of NCCL, nor a .toml file");
}

}  // namespace cuboid
