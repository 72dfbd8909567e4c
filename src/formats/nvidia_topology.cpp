#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/core/text.h"
#include "cuboid/formats/topology.h"

#include "topology_units.h"

namespace cuboid {

double pcie_bandwidth(double giga_transfers, int lanes) {
  const double efficiency = giga_transfers < 8 ? 8.0 / 10 : 128.0 / 130;
  return giga_transfers * 1e9 * lanes * efficiency / 8;
}

Path path_of(PathKind kind, int links, double bandwidth) {
  constexpr std::array<double, 9> kLatency = {0, 2e-6, 1e-6, 3e-6, 3e-6, 4e-6, 4e-6, 5e-6, 10e-6};
  if (kind == PathKind::same) return {};
  return {kind, links, bandwidth, kLatency[static_cast<std::size_t>(kind)]};
}

void note_what_is_missing(const NodeKind& kind, std::vector<std::string>& notes) {
  std::set<int> numbers;
  for (const auto& d : kind.devices) numbers.insert(d.number);
  std::vector<std::string> gaps;
  for (int i = 0; i < *numbers.rbegin() && gaps.size() < 16; ++i) {
    if (!numbers.contains(i)) gaps.push_back(fmt::format("GPU{}", i));
  }
  if (!gaps.empty()) notes.push_back(fmt::format("{}: {} not there, though higher numbers are", kind.name, join(gaps)));
  if (kind.nics.empty()) {
    notes.push_back(kind.name + ": no network card is described; paths to other nodes have no known bandwidth");
    return;
  }
  for (std::size_t d = 0; d < kind.devices.size(); ++d) {
    const auto near = kind.nics_of(static_cast<int>(d));
    if (kind.nic_path(static_cast<int>(d), near.front()).kind < PathKind::sys) continue;
    notes.push_back(fmt::format("{}: {} has no network card on its NUMA node", kind.name, kind.devices[d].name));
  }
}

namespace {

constexpr std::size_t kMostColumns = 512;
constexpr std::size_t kMostText = 4 << 20;

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \r");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \r") - first + 1));
}

// Without the terminal's colours and underlines.
std::string plain(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\033') {
      out += text[i];
      continue;
    }
    while (i < text.size() && text[i] != 'm') ++i;
  }
  return out;
}

// Cells of a line: between tabs, or where tabs were lost between runs of spaces.
std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells;
  if (line.find('\t') != std::string_view::npos) {
    while (true) {
      const auto tab = line.find('\t');
      cells.push_back(trimmed(line.substr(0, tab)));
      if (tab == std::string_view::npos) break;
      line.remove_prefix(tab + 1);
    }
  } else {
    if (line.starts_with("  ")) cells.emplace_back();
    std::string cell;
    for (std::size_t i = 0; i <= line.size(); ++i) {
      const bool gap = i == line.size() || line.substr(i).starts_with("  ");
      if (!gap) {
        cell += line[i];
        continue;
      }
      if (const auto text = trimmed(cell); !text.empty()) cells.push_back(text);
      cell.clear();
    }
  }
  while (!cells.empty() && cells.back().empty()) cells.pop_back();
  return cells;
}

std::optional<int> number_after(const std::string& word, std::string_view prefix) {
  if (!word.starts_with(prefix)) return {};
  int number = 0;
  const auto [end, fault] = std::from_chars(word.data() + prefix.size(), word.data() + word.size(), number);
  if (fault != std::errc() || end != word.data() + word.size() || number < 0) return {};
  return number;
}

struct Column {
  std::string name;
  bool gpu = false;
  int number = 0;
};

/// The matrix as text, before anything is concluded from it.
class Matrix {
 public:
  Matrix(std::string_view text, std::string source) : source_(std::move(source)) {
    if (text.size() > kMostText) fault(0, "larger than 4 MiB: not this tool's output");
    if (problems_.empty()) read(plain(text));
    if (problems_.empty() && gpus().empty()) fault(0, "no GPU columns: not the output of `nvidia-smi topo -m`");
    check();
    problems_.throw_if_any();
  }

  std::vector<std::size_t> gpus() const { return those(true); }
  std::vector<std::size_t> nics() const { return those(false); }
  const Column& column(std::size_t c) const { return columns_[c]; }
  const std::string& cell(std::size_t a, std::size_t b) const { return rows_.at(columns_[a].name)[b]; }
  /// A cell of a trailing column; empty: there is none.
  std::string extra(std::size_t row, const char* title) const {
    const auto found = std::find(extras_.begin(), extras_.end(), title);
    const auto index = columns_.size() + static_cast<std::size_t>(found - extras_.begin());
    const auto& cells = rows_.at(columns_[row].name);
    return found == extras_.end() || index >= cells.size() ? "" : cells[index];
  }
  const std::map<std::string, std::string>& legend() const { return legend_; }

 private:
  std::vector<std::size_t> those(bool gpu) const {
    std::vector<std::size_t> out;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (columns_[c].gpu == gpu) out.push_back(c);
    }
    return out;
  }
  void fault(int line, const std::string& why) {
    problems_.add(line == 0 ? source_ + ": " + why : fmt::format("{}: line {}: {}", source_, line, why));
  }

  void read(const std::string& text) {
    std::size_t begin = 0;
    bool in_nic_legend = false;
    bool in_legend = false;
    for (int number = 1; begin < text.size(); ++number) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view line = std::string_view(text).substr(begin, end - begin);
      begin = end + 1;
      const std::string words = trimmed(line);
      if (words == "NIC Legend:") in_nic_legend = true;
      if (words == "Legend:") in_legend = true;
      if (words.empty() || words.ends_with("Legend:")) continue;
      if (in_nic_legend) {
        const auto colon = words.find(": ");
        if (colon != std::string::npos) legend_[words.substr(0, colon)] = trimmed(words.substr(colon + 2));
      } else if (!in_legend) {
        columns_.empty() ? read_header(cells_of(line), number) : read_row(cells_of(line), number);
      }
      if (problems_.reasons().size() > 20) return;
    }
  }

  void read_header(const std::vector<std::string>& cells, int line) {
    if (cells.size() < 2 || !cells.front().empty() || !number_after(cells[1], "GPU")) return;  // a banner before it
    if (cells.size() > kMostColumns) return fault(line, fmt::format("{} columns", cells.size()));
    std::set<std::string> seen;
    for (std::size_t c = 1; c < cells.size(); ++c) {
      const std::string& name = cells[c];
      if (!seen.insert(name).second) fault(line, fmt::format("column {} twice", name));
      if (name == "CPU Affinity" || name == "NUMA Affinity" || name == "GPU NUMA ID") {
        extras_.push_back(name);
      } else if (!extras_.empty()) {
        fault(line, fmt::format("column '{}' after {}", name, extras_.back()));
      } else {
        const auto number = number_after(name, "GPU");
        columns_.push_back({name, number.has_value(), number.value_or(0)});
      }
    }
  }

  void read_row(const std::vector<std::string>& cells, int line) {
    if (cells.empty()) return;
    const auto column =
        std::find_if(columns_.begin(), columns_.end(), [&](const Column& c) { return c.name == cells[0]; });
    if (column == columns_.end()) return fault(line, fmt::format("'{}' is not a column", cells[0]));
    if (rows_.contains(cells[0])) return fault(line, fmt::format("row {} twice", cells[0]));
    const std::size_t given = cells.size() - 1;
    if (given < columns_.size() || given > columns_.size() + extras_.size()) {
      return fault(line, fmt::format("row {} has {} cells, the header {} devices and {} more columns", cells[0], given,
                                     columns_.size(), extras_.size()));
    }
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const std::string& cell = cells[c + 1];
      constexpr std::array<const char*, 7> kP2p = {"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"};
      if (std::find(kP2p.begin(), kP2p.end(), cell) != kP2p.end()) {
        fault(line, fmt::format("'{}': this is the output of `nvidia-smi topo -p2p`; that of `nvidia-smi topo -m` is "
                                "needed",
                                cell));
        return;
      }
      if (!kind_of(cell)) fault(line, fmt::format("{} to {}: unknown path '{}'", cells[0], columns_[c].name, cell));
      if ((cell == "X") != (columns_[c].name == cells[0])) {
        fault(line, fmt::format("{} to {}: '{}'", cells[0], columns_[c].name, cell));
      }
    }
    rows_[cells[0]] = {cells.begin() + 1, cells.end()};
  }

  void check() {
    for (std::size_t a = 0; a < columns_.size(); ++a) {
      if (!rows_.contains(columns_[a].name)) {
        if (columns_[a].gpu) fault(0, fmt::format("there is a column {} but no row", columns_[a].name));
        continue;
      }
      for (std::size_t b = 0; b < a; ++b) {
        if (!rows_.contains(columns_[b].name) || cell(a, b) == cell(b, a)) continue;
        fault(0, fmt::format("{} to {} is {}, but {} to {} is {}", columns_[b].name, columns_[a].name, cell(b, a),
                             columns_[a].name, columns_[b].name, cell(a, b)));
      }
    }
  }

 public:
  static std::optional<PathKind> kind_of(const std::string& cell) {
    static const std::map<std::string, PathKind> kKinds = {
        {"X", PathKind::same},    {"PIX", PathKind::pix}, {"PXB", PathKind::pxb}, {"PHB", PathKind::phb},
        {"NODE", PathKind::node}, {"SYS", PathKind::sys}, {"SOC", PathKind::sys}};
    if (const auto found = kKinds.find(cell); found != kKinds.end()) return found->second;
    const auto links = number_after(cell, "NV");
    if (links && *links > 0 && *links <= 1024) return PathKind::nvlink;
    return {};
  }

 private:
  std::string source_;
  Problems problems_;
  std::vector<Column> columns_;
  std::vector<std::string> extras_;
  std::map<std::string, std::vector<std::string>> rows_;
  std::map<std::string, std::string> legend_;
};

Path path_in(const std::string& cell) {
  const PathKind kind = *Matrix::kind_of(cell);
  if (kind == PathKind::nvlink) {
    const int links = *number_after(cell, "NV");
    return path_of(kind, links, links * kAssumedNvlink);
  }
  return path_of(kind, 0, kind >= PathKind::node ? kAssumedSocket : pcie_bandwidth(16, 16));
}

}  // namespace

Topology parse_nvidia_topology(std::string_view text, const std::string& source) {
  const Matrix matrix(text, source);
  Topology topology;
  topology.name = source.substr(source.rfind('/') + 1);
  topology.name = topology.name.substr(0, topology.name.rfind('.'));
  NodeKind& kind = topology.kinds.emplace_back();
  kind.name = topology.name;
  topology.nodes.push_back({topology.name, 0});
  topology.notes.push_back(
      topology.name +
      ": nvidia-smi does not say bandwidths; assumed are 25 GB/s a NVLink, PCIe 4.0 x16, 16 GB/s between "
      "host bridges, cards of 200 Gbit/s (`cuboid bench comm --save` measures)");
  const auto gpus = matrix.gpus();
  const auto nics = matrix.nics();
  for (std::size_t g : gpus) {
    TopologyDevice& device = kind.devices.emplace_back();
    device.name = matrix.column(g).name;
    device.number = matrix.column(g).number;
    device.numa = number_after(matrix.extra(g, "NUMA Affinity"), "");
    device.cpus = matrix.extra(g, "CPU Affinity");
    if (device.cpus == "N/A") device.cpus.clear();
    for (std::size_t b : gpus) kind.paths.push_back(path_in(matrix.cell(g, b)));
    for (std::size_t n : nics) kind.nic_paths.push_back(path_in(matrix.cell(g, n)));
  }
  std::set<std::string> named;
  for (std::size_t n = 0; n < nics.size(); ++n) {
    TopologyNic& nic = kind.nics.emplace_back();
    const std::string& column = matrix.column(nics[n]).name;
    const auto legend = matrix.legend().find(column);
    nic.name = legend == matrix.legend().end() ? column : legend->second;
    named.insert(column);
    nic.wire_bandwidth = kAssumedWire;
    nic.pcie_bandwidth = pcie_bandwidth(16, 16);
    nic.bandwidth = std::min(nic.wire_bandwidth, nic.pcie_bandwidth);
    for (std::size_t d = 0; d < gpus.size(); ++d) {
      if (kind.nic_paths[d * nics.size() + n].kind <= PathKind::phb) nic.numa = kind.devices[d].numa;
    }
  }
  for (const auto& [column, name] : matrix.legend()) {
    if (!named.contains(column)) {
      topology.notes.push_back(fmt::format("{}: {} ({}) is in the legend but not in the matrix", source, column, name));
    }
  }
  note_what_is_missing(kind, topology.notes);
  const auto faults = faults_of(topology);
  if (!faults.empty()) throw Error(ErrorKind::request, source + ": " + join(faults, "\n" + source + ": "));
  return topology;
}

namespace {

// The text between "(UUID: " and ")".
std::string uuid_in(std::string_view line) {
  const auto begin = line.find("(UUID: ");
  if (begin == std::string_view::npos) return "";
  const auto rest = line.substr(begin + 7);
  return std::string(rest.substr(0, rest.find(')')));
}

}  // namespace

void add_gpu_list(Topology& topology, std::string_view text, const std::string& source) {
  if (topology.nodes.size() != 1) throw Error(ErrorKind::request, source + ": a list of GPUs concerns one node");
  NodeKind& kind = topology.kinds[static_cast<std::size_t>(topology.nodes.front().kind)];
  if (text.size() > kMostText) throw Error(ErrorKind::request, source + ": larger than 4 MiB");
  std::vector<std::vector<std::string>> instances(kind.devices.size());
  int current = -1;
  int number = 0;
  Problems problems;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (line.empty()) continue;
    const std::string uuid = uuid_in(line);
    if (line.starts_with("GPU ") && uuid.starts_with("GPU-")) {
      const auto index = number_after(line.substr(4, line.find(':') - 4), "");
      const auto found = std::find_if(kind.devices.begin(), kind.devices.end(),
                                      [&](const auto& d) { return index && d.number == *index; });
      current = found == kind.devices.end() ? -1 : static_cast<int>(found - kind.devices.begin());
      if (current < 0) {
        problems.add(fmt::format("{}: line {}: {} has no such GPU", source, number, topology.name));
      } else {
        found->id = uuid;
      }
    } else if (line.starts_with("MIG ") && uuid.starts_with("MIG-") && current >= 0) {
      instances[static_cast<std::size_t>(current)].push_back(uuid);
    } else {
      problems.add(fmt::format("{}: line {}: neither a GPU nor a MIG instance with its UUID", source, number));
    }
    if (problems.reasons().size() > 20) break;
  }
  problems.throw_if_any();
  // Places: whole GPUs and instances, with the GPU that each belongs to.
  std::vector<std::pair<TopologyDevice, int>> seats;
  for (std::size_t d = 0; d < kind.devices.size(); ++d) {
    const auto gpu = static_cast<int>(d);
    if (instances[d].empty()) seats.emplace_back(kind.devices[d], gpu);
    for (std::size_t i = 0; i < instances[d].size(); ++i) {
      TopologyDevice instance = kind.devices[d];
      instance.name += fmt::format("/MIG{}", i);
      instance.kind = TopologyDeviceKind::mig;
      instance.id = instances[d][i];
      seats.emplace_back(instance, gpu);
    }
  }
  NodeKind divided;
  divided.name = kind.name;
  divided.nics = kind.nics;
  for (const auto& [device, gpu] : seats) {
    for (const auto& [other, other_gpu] : seats) {
      const bool peers = device.kind != TopologyDeviceKind::mig && other.kind != TopologyDeviceKind::mig;
      divided.paths.push_back(device.id == other.id && gpu == other_gpu ? Path{}
                              : peers                                   ? kind.path(gpu, other_gpu)
                                      : path_of(PathKind::host, 0, kAssumedSocket / 2));
    }
    for (std::size_t n = 0; n < kind.nics.size(); ++n) {
      divided.nic_paths.push_back(kind.nic_path(gpu, static_cast<int>(n)));
    }
    divided.devices.push_back(device);
  }
  kind = std::move(divided);
  const auto faults = faults_of(topology);
  if (!faults.empty()) throw Error(ErrorKind::request, source + ": " + join(faults, "\n" + source + ": "));
}

}  // namespace cuboid
