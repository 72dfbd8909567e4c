#include "launch/gpus.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/core/log.h"
#include "cuboid/core/text.h"
#include "cuboid/formats/cluster_file.h"

namespace cuboid::launch {
namespace {

// Of the visible GPUs, the first that a process of a job uses. Launchers may show each process GPUs of its own; where
// all see the same, they go by their place on the host.
int first_gpu(const Processes& job, int ranks_here, int found) {
  const auto& hosts = job.hosts();
  const auto here = hosts.begin() + job.process();
  const auto before = static_cast<int>(std::count(hosts.begin(), here, *here));
  const auto on_host = static_cast<int>(std::count(hosts.begin(), hosts.end(), *here));
  const int first = found >= on_host * ranks_here ? before * ranks_here : 0;
  if (found < first + ranks_here) {
    throw Error(ErrorKind::request,
                fmt::format("--device cuda: {} ranks of this process on {} need a GPU each; it sees {}", ranks_here,
                            *here, found));
  }
  return first;
}

// "NVIDIA H200" has the word H200.
bool has_word(const std::string& text, const std::string& word) {
  const auto letter = [&](std::size_t i) {
    return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i]));
  };
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    if ((at == 0 || !letter(at - 1)) && !letter(at + word.size())) return true;
  }
  return false;
}

}  // namespace

void add_device_flag(Flags& flags, DeviceChoice& device) {
  flags.choice<DeviceChoice>(
      "device", device, {{"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}},
      "where ranks compute: on the CPU, or on a GPU each (one process with fewer GPUs than ranks: all share the "
      "first); "
      "auto: the CPU");
}

std::vector<int> choose_gpus(DeviceChoice device, int ranks, const Processes* job, int ranks_per_process) {
  if (device != DeviceChoice::cuda) return {};
  const GpuReport report = find_gpus();
  if (report.gpus.empty()) {
    throw Error(ErrorKind::request, "--device cuda: no GPU to use: " + describe_missing_gpus(report));
  }
  const auto found = static_cast<int>(report.gpus.size());
  if (job != nullptr) ranks = ranks_per_process;
  const int first = job != nullptr ? first_gpu(*job, ranks, found) : 0;
  // One process with fewer GPUs than ranks: for tests and debugging they share the first.
  const bool share = job == nullptr && found < ranks;
  std::vector<int> gpus;
  for (int i = 0; i < ranks; ++i) gpus.push_back(share ? 0 : first + i);
  const Gpu& gpu = report.gpus[static_cast<std::size_t>(gpus.front())];
  if (share && ranks > 1) {
    log::warning(
        fmt::format("{} ranks share one GPU ({}, {}): that is for tests, not for speed", ranks, gpu.name, gpu.uuid));
  } else {
    log::info(fmt::format("{} with a GPU each, from {}, {} on", counted(ranks, "rank"), gpu.name, gpu.uuid));
  }
  return gpus;
}

std::optional<RatedGpu> rating_of(const Gpu& gpu) {
  for (const char* other : {"PCIe", "PCIE", "NVL", "MIG"}) {
    if (has_word(gpu.name, other)) return std::nullopt;
  }
  for (const std::string& name : cluster_names()) {
    const Cluster cluster = load_cluster(name);
    const std::string chip = cluster.device.name.substr(0, cluster.device.name.find('-'));
    const double memory = static_cast<double>(cluster.device.memory_bytes);
    if (has_word(gpu.name, chip) && std::abs(static_cast<double>(gpu.memory_bytes) - memory) < 0.1 * memory) {
      return RatedGpu{name, cluster.device};
    }
  }
  return std::nullopt;
}

}  // namespace cuboid::launch
