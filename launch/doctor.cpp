// cuboid doctor: what this machine has, what follows from it, and the command that brings what is missing.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <span>
#include <sstream>

#include <dlfcn.h>
#include <fmt/format.h>
#include <hwloc.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "cuboid/comm/processes.h"
#include "cuboid/core/text.h"
#include "cuboid/core/units.h"
#include "cuboid/kernels/kernels.h"
#include "cuboid/runtime/gpus.h"
#include "cuboid/runtime/machine_memory.h"

#include "launch/commands.h"
#include "launch/flags.h"
#include "launch/machine.h"

namespace cuboid::launch {
namespace {

using Json = nlohmann::ordered_json;

/// Findings, and what is missing for what.
struct Findings {
  Json facts;
  Json missing = Json::array();
  void lack(const std::string& what, const std::string& purpose, const std::string& command) {
    missing.push_back({{"what", what}, {"for", purpose}, {"command", command}});
  }
};

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

bool library_loads(const char* name) {
  void* library = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (library != nullptr) dlclose(library);
  return library != nullptr;
}

bool one_loads(std::span<const char* const> names) {
  return std::any_of(names.begin(), names.end(), library_loads);
}

// The x86 features that decide which of oneDNN's kernels run, best first.
void look_at_cpu(Findings& findings) {
  std::ifstream file("/proc/cpuinfo");
  std::set<std::string> flags;
  std::string model;
  for (std::string line; std::getline(file, line) && flags.empty();) {
    const auto value = line.substr(std::min(line.size(), line.find(':') + 2));
    if (line.starts_with("model name")) model = value;
    if (!line.starts_with("flags")) continue;
    std::istringstream words(value);
    for (std::string word; words >> word;) flags.insert(word);
  }
  const auto kernels = [&](const std::vector<std::pair<const char*, const char*>>& choices) {
    for (const auto& [flag, name] : choices) {
      if (flags.contains(flag)) return std::string(name);
    }
    return std::string("SSE4.1");
  };
  Json features = Json::array();
  for (const char* flag : {"avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16"}) {
    if (flags.contains(flag)) features.push_back(flag);
  }
  findings.facts["cpu"] = {
      {"model", model},
      {"features", features},
      {"float32_gemm", kernels({{"avx512f", "AVX-512"}, {"avx2", "AVX2"}, {"avx", "AVX"}})},
      {"bfloat16_gemm",
       kernels({{"amx_bf16", "AMX"}, {"avx512_bf16", "AVX-512 BF16"}, {"avx512bw", "AVX-512, by way of float32"}})}};
  findings.facts["cpu"]["bfloat16_native"] = kernels::has_native_bfloat16();
  if (!kernels::has_native_bfloat16()) {
    findings.facts["cpu"]["bfloat16_gemm"] = "none native: by way of float32, slower than float32";
    findings.lack("AVX-512", "fast bfloat16 matrix products", "use --dtype float32 on this machine");
  }
}

void look_at_cores(Findings& findings) {
  hwloc_topology_t topology;
  hwloc_topology_init(&topology);
  hwloc_topology_load(topology);
  const auto count = [&](hwloc_obj_type_t type) { return hwloc_get_nbobjs_by_type(topology, type); };
  findings.facts["cores"] = {{"physical", count(HWLOC_OBJ_CORE)},
                             {"threads", count(HWLOC_OBJ_PU)},
                             {"sockets", count(HWLOC_OBJ_PACKAGE)},
                             {"numa_nodes", count(HWLOC_OBJ_NUMANODE)}};
  Json nodes = Json::array();
  for (int i = 0; i < count(HWLOC_OBJ_NUMANODE); ++i) {
    const hwloc_obj_t node = hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, static_cast<unsigned>(i));
    char cores[256] = {};
    hwloc_bitmap_list_snprintf(cores, sizeof(cores), node->cpuset);
    nodes.push_back({{"node", node->os_index}, {"cpus", cores}, {"bytes", node->attr->numanode.local_memory}});
  }
  findings.facts["numa"] = nodes;
  hwloc_topology_destroy(topology);
}

Json limit(int resource) {
  rlimit value{};
  getrlimit(static_cast<__rlimit_resource>(resource), &value);
  return value.rlim_cur == RLIM_INFINITY ? Json("unlimited") : Json(value.rlim_cur);
}

void look_at_limits(Findings& findings) {
  const MachineMemory memory = machine_memory();
  struct statvfs shm = {};
  const bool has_shm = statvfs("/dev/shm", &shm) == 0;
  const std::uint64_t shm_bytes = has_shm ? std::uint64_t{shm.f_bavail} * shm.f_frsize : 0;
  findings.facts["memory_bytes"] = memory.present;
  findings.facts["memory_available_bytes"] = memory.available;
  findings.facts["memory_cgroup_bytes"] = memory.cgroup > 0 ? Json(memory.cgroup) : Json("unlimited");
  findings.facts["shm_free_bytes"] = shm_bytes;
  findings.facts["limits"] = {{"open_files", limit(RLIMIT_NOFILE)},
                              {"locked_memory_bytes", limit(RLIMIT_MEMLOCK)},
                              {"processes", limit(RLIMIT_NPROC)},
                              {"stack_bytes", limit(RLIMIT_STACK)}};
  // Open MPI keeps a few MiB there for each process of a host.
  if (shm_bytes < (64U << 20)) {
    findings.lack("/dev/shm of 64 MiB", "several MPI processes on this host",
                  "mount -o remount,size=1G /dev/shm  (docker: --shm-size=1g)");
  }
  const Json files = findings.facts["limits"]["open_files"];
  if (files.is_number() && files.get<std::uint64_t>() < 1024) {
    findings.lack("1024 open files", "jobs of many processes", "ulimit -n 4096");
  }
}

// What `cuboid topo` draws, in short: levels of devices and network cards.
void look_at_links(Findings& findings) {
  const Topology topology = this_machine();
  Json cards = Json::array();
  for (const TopologyNic& nic : topology.kinds.front().nics) {
    cards.push_back({{"name", nic.name}, {"bandwidth_bytes_per_second", nic.bandwidth}});
  }
  Json between = Json::array();
  for (const TopologyLevel& level : levels(topology)) {
    between.push_back({{"name", level.name},
                       {"devices", level.groups.front().size()},
                       {"bandwidth_bytes_per_second", level.bandwidth}});
  }
  findings.facts["links"] = {{"between_devices", between}, {"network_cards", cards}, {"notes", topology.notes}};
}

void look_at_mpi(Findings& findings) {
  const std::string version = first_line(output_of("mpirun --version"));
  Json transports = Json::array();
  std::istringstream lines(output_of("ompi_info --parsable"));
  for (std::string line; std::getline(lines, line);) {
    for (const char* kind : {"mca:btl:", "mca:mtl:", "mca:pml:"}) {
      if (!line.starts_with(kind) || line.find(":version:\"mca:") == std::string::npos) continue;
      const std::string rest = line.substr(std::string(kind).size());
      transports.push_back(std::string(kind).substr(4, 3) + " " + rest.substr(0, rest.find(':')));
    }
  }
  findings.facts["mpi"] = {{"built_in", built_with_mpi()}, {"mpirun", version}, {"transports", transports}};
  if (version.empty()) findings.lack("mpirun", "runs on several hosts", "apt-get install openmpi-bin");
  if (!built_with_mpi()) {
    findings.lack("MPI in this program", "--fabric mpi", "apt-get install libopenmpi-dev, then build again");
  }
  if (output_of("command -v ssh").empty()) {
    findings.lack("ssh", "mpirun across hosts", "apt-get install openssh-client");
  }
}

void look_at_gpus(Findings& findings) {
  const GpuReport report = find_gpus();
  Json gpus = Json::array();
  for (const Gpu& gpu : report.gpus) {
    gpus.push_back(fmt::format("{}: {}, {}, compute capability {}.{}, {}", gpu.ordinal, gpu.name,
                               human_bytes(static_cast<std::uint64_t>(gpu.memory_bytes)), gpu.major, gpu.minor,
                               gpu.uuid));
  }
  const bool driver = library_loads("libcuda.so.1");
  const bool cublas = one_loads(kCublasLtNames);
  const bool nccl = one_loads(kNcclNames);
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  findings.facts["cuda"] = {{"built_in", report.built},
                            {"driver", driver},
                            {"cublaslt", cublas},
                            {"nccl", nccl},
                            {"visible_devices", visible == nullptr ? "all" : visible},
                            {"gpus", gpus}};
  if (report.gpus.empty()) findings.facts["cuda"]["no_gpu_because"] = describe_missing_gpus(report);
  const char* toolkit = "see https://developer.nvidia.com/cuda-downloads";
  if (!report.built)
    findings.lack("CUDA in this program", "--device cuda", "install the CUDA toolkit, then build again");
  if (!driver)
    findings.lack("a GPU with NVIDIA's driver", "--device cuda", "apt-get install nvidia-driver (Debian non-free)");
  if (!cublas) findings.lack("cuBLASLt in the linker's path", "--device cuda", toolkit);
  if (!nccl) findings.lack("NCCL", "several GPUs", "apt-get install libnccl2 (NVIDIA's repository)");
}

// A key as people read it: "memory_available_bytes" is "memory available", its value has a unit.
std::string words_of(std::string key) {
  for (const std::string_view unit : {"_bytes_per_second", "_bytes"}) {
    if (key.ends_with(unit)) key.resize(key.size() - unit.size());
  }
  return spaced(std::move(key));
}

std::string text_of(const std::string& key, const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (key.ends_with("bytes") && value.is_number()) return human_bytes(value.get<std::uint64_t>());
  if (key.ends_with("_bytes_per_second")) return fmt::format("{:.4g} GB/s", value.get<double>() * 1e-9);
  if (value.is_string()) return value.get<std::string>().empty() ? "none" : value.get<std::string>();
  if (!value.is_array() && !value.is_object()) return value.dump();
  std::vector<std::string> items;
  for (const auto& [name, item] : value.items()) {
    const std::string text = text_of(value.is_array() ? "" : name, item);
    items.push_back(value.is_array() || name == "name" ? text : words_of(name) + " " + text);
  }
  return items.empty() ? "none" : join(items, value.is_array() && value.front().is_object() ? "; " : ", ");
}

void print_value(const std::string& key, const Json& value, int depth) {
  const std::string indent(static_cast<std::size_t>(2 * depth), ' ');
  const std::string name = words_of(key);
  if (value.is_object()) {
    fmt::print("{}{}\n", indent, name);
    for (const auto& [inner_key, inner] : value.items()) print_value(inner_key, inner, depth + 1);
    return;
  }
  fmt::print("{}{:<{}} {}\n", indent, name, 24 - 2 * depth, text_of(key, value));
}

}  // namespace

int doctor_command(const Arguments& arguments) {
  Flags flags("cuboid doctor [flags]",
              "Reports what this machine has for training (CPU, memory, MPI, GPUs), what is missing for what, and the\n"
              "command that brings it.");
  bool json = false;
  flags.toggle("json", json, "print one JSON document");
  Problems problems;
  if (!flags.read(arguments, problems)) return 0;
  problems.throw_if_any();
  Findings findings;
  look_at_cpu(findings);
  look_at_cores(findings);
  look_at_limits(findings);
  look_at_links(findings);
  look_at_mpi(findings);
  look_at_gpus(findings);
  if (json) {
    findings.facts["missing"] = findings.missing;
    fmt::print("{}\n", findings.facts.dump(2));
    return 0;
  }
  for (const auto& [name, value] : findings.facts.items()) print_value(name, value, 0);
  for (const auto& lack : findings.missing) {
    fmt::print("missing: {} (for {}): {}\n", lack["what"].get<std::string>(), lack["for"].get<std::string>(),
               lack["command"].get<std::string>());
  }
  return 0;
}

}  // namespace cuboid::launch
