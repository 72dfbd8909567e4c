// cuboid topo: what a machine looks like, and which rank of a grid belongs where on it.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "cuboid/core/text.h"
#include "cuboid/formats/cluster_file.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/formats/mapped_file.h"
#include "cuboid/formats/topology.h"
#include "cuboid/plan/step_traffic.h"
#include "cuboid/train/check.h"

#include "launch/commands.h"
#include "launch/flags.h"
#include "launch/hosts.h"
#include "launch/machine.h"
#include "launch/topology_report.h"

namespace cuboid::launch {
namespace {

constexpr const char* kUsage = "cuboid topo [--from FILE...] [--grid tp=2,pp=2,dp=2] [flags]";
constexpr const char* kSummary =
    "Shows devices, the paths between them and network cards: of this machine, of a file, of a cluster. With a grid, "
    "places\nits ranks so that a training step's communication takes least time, and says what other orders would "
    "cost.";

// The network of nodes that are joined by --hosts, --nodes or several files.
constexpr double kAssumedLatency = 5e-6;

enum class Format { text, svg, json };
enum class Emit { nothing, rankfile, hostfile, slurm, cuda, toml };

struct Request {
  std::vector<std::string> from;
  std::string gpu_list;
  std::optional<std::string> visible;
  int nodes = 0;
  std::string hosts;
  std::string grid;
  std::string order{Grid::kDefaultOrder};
  std::string traffic;
  RunConfig run;
  Format format = Format::text;
  bool json = false;
  Emit emit = Emit::nothing;
};

void add_flags(Flags& flags, Request& request) {
  flags.section("Machine");
  flags.add(
      "from", "FILE...", "this machine",
      "output of `nvidia-smi topo -m`, topology XML of NCCL (NCCL_TOPO_DUMP_FILE), topology or cluster TOML, or the "
      "name of "
      "a cluster preset; several files are nodes that are joined",
      [&request](const Flags::Values& v) { request.from = v; }, true);
  flags.text("gpu-list", "FILE", request.gpu_list, "output of `nvidia-smi -L`: UUIDs of GPUs and MIG instances");
  flags.add("visible-devices", "LIST", "the variable CUDA_VISIBLE_DEVICES", "GPUs that a process sees, in its order",
            [&request](const Flags::Values& v) { request.visible = v.front(); });
  flags.may_be_empty("visible-devices");  // none, as in the variable
  flags.whole("nodes", request.nodes, "so many nodes like this one, or nodes of the cluster; 0: as described", 0,
              65536);
  flags.text("hosts", "LIST", request.hosts, "names of so many nodes like this one, in Slurm's notation: gpu[01-04]");
  flags.section("Placement");
  flags.text("grid", "tp=2,pp=2,...", request.grid, "degrees of the axes; ranks are placed");
  flags.text("order", "AXES", request.order, "how the grid numbers its ranks, fastest axis first");
  flags.text("traffic", "AXIS=OP:BYTES:COUNT,...", request.traffic,
             "communication of a step; without it that of the model below. OP: all_reduce, reduce_scatter, all_gather, "
             "all_to_all, broadcast, send");
  flags.text("model", "M", request.run.model, "model whose step is placed");
  flags.whole("seq-len", request.run.seq_len, "tokens of a sequence", 1);
  flags.whole("micro-batch", request.run.micro_batch, "sequences a rank computes at a time", 1);
  flags.whole("global-batch", request.run.global_batch, "sequences a step; 0: 4 micro-batches a rank and stage", 0);
  flags.whole("zero", request.run.zero, "ZeRO stage over the ranks with copies", 0, 3);
  flags.toggle("sequence-parallel", request.run.sequence_parallel, "norms split along the sequence");
  flags.choice<DType>("dtype", request.run.dtype, {{"float32", DType::float32}, {"bfloat16", DType::bfloat16}},
                      "of activations and weights");
  flags.section("Output");
  flags.choice<Emit>(
      "emit", request.emit,
      {{"nothing", Emit::nothing},
       {"rankfile", Emit::rankfile},
       {"hostfile", Emit::hostfile},
       {"slurm", Emit::slurm},
       {"cuda", Emit::cuda},
       {"toml", Emit::toml}},
      "print only Open MPI's rank file or host file, Slurm's options, each node's CUDA_VISIBLE_DEVICES, or "
      "the topology as TOML");
  flags.choice<Format>("format", request.format, {{"text", Format::text}, {"svg", Format::svg}, {"json", Format::json}},
                       "of the report");
  flags.toggle("json", request.json, "one JSON document: --format json");
}

// "tp=2,pp=2".
AxisValues degrees_of(const std::string& text) {
  AxisValues degrees{{1, 1, 1, 1, 1}};
  std::vector<bool> given(kAxisCount);
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const auto equals = item.find('=');
    const auto axis =
        std::find_if(kAxes.begin(), kAxes.end(), [&](Axis a) { return item.substr(0, equals) == name_of(a); });
    if (axis == kAxes.end() || equals == std::string::npos) {
      throw Error(ErrorKind::request, fmt::format("--grid {}: '{}' is not tp=N, cp=N, ep=N, dp=N or pp=N", text, item));
    }
    const auto at = static_cast<std::size_t>(*axis);
    if (given[at]) throw Error(ErrorKind::request, fmt::format("--grid {}: {} twice", text, name_of(*axis)));
    given[at] = true;
    try {
      degrees[*axis] = static_cast<int>(Flags::parse_whole(item.substr(equals + 1), 1, Flags::kMost<int>));
    } catch (const Error& error) {
      throw Error(ErrorKind::request, fmt::format("--grid {}: {}: {}", text, item, error.what()));
    }
  }
  return degrees;
}

Topology described_by(const std::string& from, int devices) {
  std::error_code ignored;
  const auto presets = cluster_names();
  if (std::filesystem::exists(from, ignored)) return read_topology(from, devices);
  if (std::find(presets.begin(), presets.end(), from) != presets.end()) {
    return topology_of(load_cluster(from), devices);
  }
  throw Error(ErrorKind::request,
              fmt::format("--from {}: neither a file nor a cluster preset; presets: {}", from, join(presets)));
}

// Nodes like the one there is, under these names.
Topology repeated(const Topology& one, const std::vector<std::string>& names) {
  Topology many = one;
  many.nodes.clear();
  for (const auto& name : names) many.nodes.push_back({name, one.nodes.front().kind});
  return many;
}

Topology obtain(const Request& request, int world) {
  std::vector<Topology> parts;
  for (const auto& from : request.from) parts.push_back(described_by(from, request.nodes == 0 ? world : 0));
  if (parts.empty()) parts.push_back(this_machine());
  // What a process sees concerns the machine that one file describes.
  const bool one_machine = parts.size() == 1 && parts.front().nodes.size() == 1 &&
                           parts.front().kinds.front().devices.front().kind == TopologyDeviceKind::gpu;
  const bool described = !request.from.empty() &&
                         (request.from.front().ends_with(".toml") || !std::filesystem::exists(request.from.front()));
  if (!request.gpu_list.empty()) {
    const auto file = MappedFile::open(request.gpu_list);
    const auto bytes = file->bytes();
    add_gpu_list(parts.front(), {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, request.gpu_list);
  }
  const char* variable = std::getenv("CUDA_VISIBLE_DEVICES");
  if (request.visible) {
    if (!one_machine)
      throw Error(ErrorKind::request, fmt::format("--visible-devices {}: concerns one node of GPUs", *request.visible));
    parts.front() = visible_devices(parts.front(), *request.visible);
  } else if (variable != nullptr && one_machine && !described) {
    parts.front() = visible_devices(parts.front(), variable);
  }
  Topology topology = joined(parts);
  std::vector<std::string> names;
  if (!request.hosts.empty()) names = expand_host_list(request.hosts);
  if (request.nodes > 0 && !names.empty() && static_cast<std::size_t>(request.nodes) != names.size()) {
    throw Error(ErrorKind::request,
                fmt::format("--nodes {}: --hosts {} are {}", request.nodes, request.hosts, names.size()));
  }
  for (int n = 1; names.size() < static_cast<std::size_t>(request.nodes); ++n)
    names.push_back(fmt::format("node{}", n));
  if (!names.empty()) {
    if (topology.kinds.size() > 1) {
      throw Error(ErrorKind::request,
                  "--nodes or --hosts: the nodes described are unlike each other; give a file for each node");
    }
    topology = repeated(topology, names);
  }
  if (topology.nodes.size() > 1 && topology.fabric.empty()) {
    topology.fabric.push_back({"network", 0, kAssumedLatency, 0, false});
    topology.notes.push_back(fmt::format(
        "the network between nodes is assumed to have {:.0f} us and no limit but the cards", kAssumedLatency * 1e6));
  }
  return topology;
}

Traffic traffic_of(Request& request, const Grid& grid) {
  if (!request.traffic.empty()) {
    try {
      return parse_traffic(request.traffic);
    } catch (const Error& error) {
      throw Error(error.kind(), naming("--traffic", error.what()));
    }
  }
  RunConfig run = request.run;
  run.grid = grid;
  run.data.paths = {"none: only the communication is looked at"};
  if (run.global_batch == 0) run.global_batch = 4 * run.micro_batch * grid.degree(Axis::dp) * grid.degree(Axis::pp);
  const ModelConfig model = load_model(run.model);
  Problems problems;
  check_run(model, run, problems);
  problems.throw_if_any();
  return step_traffic(run, model);
}

void check_request(const Flags& flags, const Request& request, Problems& problems) {
  if (request.emit != Emit::nothing) {
    for (const char* name : {"json", "format"}) {
      problems.add_if(flags.value_of(name).has_value(),
                      fmt::format("--{}: --emit {} prints that and no report; leave one of them out", name,
                                  *flags.value_of("emit")));
    }
  }
  check_json_or_format(flags, request.json, problems);
  const bool placement = request.emit != Emit::nothing && request.emit != Emit::toml;
  problems.add_if(placement && request.grid.empty(), "--emit: a placement needs --grid, such as --grid tp=2,dp=2");
  if (request.grid.empty()) {
    for (const char* name : {"order", "traffic", "model", "seq-len", "micro-batch", "global-batch", "zero",
                             "sequence-parallel", "dtype"}) {
      problems.add_if(flags.value_of(name).has_value(), fmt::format("--{}: nothing is placed without --grid", name));
    }
    return;
  }
  if (request.traffic.empty()) return;
  for (const char* name : {"model", "seq-len", "micro-batch", "global-batch", "zero", "sequence-parallel", "dtype"}) {
    problems.add_if(flags.value_of(name).has_value(), fmt::format("--{}: --traffic says what is sent", name));
  }
}

std::string emitted(Emit emit, const Topology& topology, const std::optional<PlacedGrid>& placed) {
  switch (emit) {
    case Emit::rankfile:
      return placed_rank_file(topology, placed->ranks.device_of_rank);
    case Emit::hostfile:
      return placed_host_file(topology, placed->ranks.device_of_rank);
    case Emit::slurm:
      return placed_slurm(topology, placed->ranks.device_of_rank);
    case Emit::cuda:
      return placed_cuda_devices(topology, placed->ranks.device_of_rank);
    case Emit::toml:
    case Emit::nothing:
      break;
  }
  return write_topology(topology);
}

}  // namespace

int topo_command(const Arguments& arguments) {
  Flags flags(kUsage, kSummary);
  Request request;
  request.run.model = "gpt2";
  request.run.seq_len = 1024;
  request.run.global_batch = 0;
  add_flags(flags, request);
  Problems problems;
  if (!flags.read(arguments, problems)) return 0;
  if (request.json) request.format = Format::json;
  check_request(flags, request, problems);

  std::optional<PlacedGrid> placed;
  if (!request.grid.empty()) {
    collect(problems, [&] {
      PlacedGrid asked;
      asked.grid = Grid(degrees_of(request.grid), request.order);
      placed = std::move(asked);
      placed->traffic = traffic_of(request, placed->grid);
    });
  }
  Topology topology;
  collect(problems, [&] {
    topology = obtain(request, placed ? placed->grid.world() : 0);
    const int devices = topology.devices();
    problems.add_if(placed && placed->grid.world() > devices,
                    fmt::format("--grid {}: needs {} devices, {} has {}", request.grid,
                                placed ? placed->grid.world() : 0, topology.name, devices));
  });
  problems.throw_if_any();
  if (placed) placed->ranks = place_ranks(topology, placed->grid, placed->traffic);
  std::string text;
  if (request.emit != Emit::nothing) {
    text = emitted(request.emit, topology, placed);
  } else {
    text = request.format == Format::json  ? topology_json(topology, placed)
           : request.format == Format::svg ? topology_svg(topology, placed)
                                           : topology_text(topology, placed);
  }
  fmt::print("{}", text);
  return 0;
}

}  // namespace cuboid::launch
