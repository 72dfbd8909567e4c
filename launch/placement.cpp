#include "launch/placement.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "cuboid/core/error.h"
#include "cuboid/core/text.h"

namespace cuboid::launch {
namespace {

// Processes that share a tensor parallel group, each in ascending order, ordered by their first.
std::vector<std::vector<int>> tensor_groups(const Grid& grid, int ranks_per_process, int processes) {
  std::vector<int> root(static_cast<std::size_t>(processes));
  std::iota(root.begin(), root.end(), 0);
  const auto find = [&](int p) {
    while (root[static_cast<std::size_t>(p)] != p) p = root[static_cast<std::size_t>(p)];
    return p;
  };
  for (int r = 0; r < grid.world(); ++r) {
    const int first = find(grid.group(Axis::tp, r).front() / ranks_per_process);
    const int own = find(r / ranks_per_process);
    root[static_cast<std::size_t>(std::max(first, own))] = std::min(first, own);
  }
  std::vector<std::vector<int>> groups(static_cast<std::size_t>(processes));
  for (int p = 0; p < processes; ++p) groups[static_cast<std::size_t>(find(p))].push_back(p);
  std::erase_if(groups, [](const auto& group) { return group.empty(); });
  return groups;
}

}  // namespace

std::vector<int> Placement::counts() const {
  std::vector<int> counts(hosts.size());
  for (int host : host_of_process) ++counts[static_cast<std::size_t>(host)];
  return counts;
}

bool Placement::in_blocks() const {
  return std::is_sorted(host_of_process.begin(), host_of_process.end());
}

Placement place(const Grid& grid, int ranks_per_process, const std::vector<Host>& hosts) {
  const int world = grid.world();
  if (world % ranks_per_process != 0) {
    throw Error(ErrorKind::request, fmt::format("--ranks-per-process {}: the grid's {} ranks cannot be divided by it",
                                                ranks_per_process, world));
  }
  const int processes = world / ranks_per_process;
  std::int64_t slots = 0;
  for (const Host& host : hosts) slots += host.slots;
  if (slots < processes) {
    throw Error(ErrorKind::request, fmt::format("the grid needs {} processes, but the {} hosts have {} slots",
                                                processes, hosts.size(), slots));
  }
  Placement placement{hosts, std::vector<int>(static_cast<std::size_t>(processes), -1), {}};
  std::vector<int> left;
  for (const Host& host : hosts) left.push_back(host.slots);
  std::vector<int> homeless;
  for (const auto& group : tensor_groups(grid, ranks_per_process, processes)) {
    const auto size = static_cast<int>(group.size());
    const auto host = std::find_if(left.begin(), left.end(), [&](int n) { return n >= size; });
    if (host == left.end()) {
      homeless.insert(homeless.end(), group.begin(), group.end());
      placement.notes.push_back(fmt::format(
          "the tensor parallel group of process{} {} does not fit in one host: its all-reduces will cross the network",
          size == 1 ? "" : "es", fmt::join(group, ", ")));
      continue;
    }
    *host -= size;
    for (int p : group) placement.host_of_process[static_cast<std::size_t>(p)] = static_cast<int>(host - left.begin());
  }
  for (int p : homeless) {
    const auto host = std::find_if(left.begin(), left.end(), [](int n) { return n > 0; });
    --*host;
    placement.host_of_process[static_cast<std::size_t>(p)] = static_cast<int>(host - left.begin());
  }
  return placement;
}

std::string quoted(const std::string& word) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string("-_./=:,+@%").find(char(c)) != std::string::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
  std::string text = "'";
  for (char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

namespace {

std::string shell_line(const std::vector<std::string>& words) {
  std::vector<std::string> safe;
  for (const auto& word : words) safe.push_back(quoted(word));
  return join(safe, " ");
}

}  // namespace

std::string rank_file(const LaunchForm& form) {
  std::string text;
  std::vector<int> used(form.placement.hosts.size());
  for (std::size_t p = 0; p < form.placement.host_of_process.size(); ++p) {
    const auto host = static_cast<std::size_t>(form.placement.host_of_process[p]);
    std::string slot = "*";
    if (form.cores_per_process > 0) {
      const std::int64_t first = std::int64_t{used[host]++} * form.cores_per_process;
      slot = form.cores_per_process == 1 ? fmt::format("{}", first)
                                         : fmt::format("{}-{}", first, first + form.cores_per_process - 1);
    }
    text += fmt::format("rank {}={} slot={}\n", p, form.placement.hosts[host].name, slot);
  }
  return text;
}

std::vector<std::string> mpirun_words(const LaunchForm& form, const std::string& rank_file_path) {
  std::vector<std::string> hosts;
  const auto counts = form.placement.counts();
  for (std::size_t h = 0; h < counts.size(); ++h) {
    if (counts[h] > 0) hosts.push_back(fmt::format("{}:{}", form.placement.hosts[h].name, counts[h]));
  }
  std::vector<std::string> words = {"mpirun"};
  if (geteuid() == 0) words.emplace_back("--allow-run-as-root");
  for (const std::string& word : {std::string("--host"), join(hosts, ","), std::string("--rankfile"), rank_file_path,
                                  std::string("-n"), std::to_string(form.placement.host_of_process.size())}) {
    words.push_back(word);
  }
  words.insert(words.end(), form.command.begin(), form.command.end());
  return words;
}

std::string sbatch_script(const LaunchForm& form) {
  const Placement& placement = form.placement;
  std::vector<std::string> names;
  std::set<int> different;
  const auto counts = placement.counts();
  for (std::size_t h = 0; h < counts.size(); ++h) {
    if (counts[h] == 0) continue;
    names.push_back(placement.hosts[h].name);
    different.insert(counts[h]);
  }
  std::string text = "#!/bin/sh\n#SBATCH --job-name=cuboid\n";
  text += fmt::format("#SBATCH --nodes={}\n#SBATCH --nodelist={}\n#SBATCH --ntasks={}\n", names.size(),
                      join(names, ","), placement.host_of_process.size());
  const bool even = different.size() == 1 && placement.in_blocks();
  if (even) text += fmt::format("#SBATCH --ntasks-per-node={}\n", *different.begin());
  if (form.cores_per_process > 0) text += fmt::format("#SBATCH --cpus-per-task={}\n", form.cores_per_process);
  text += "\n";
  if (!even) {
    // Slurm's way to give each task its host.
    text += "SLURM_HOSTFILE=$(mktemp)\nexport SLURM_HOSTFILE\ncat >\"$SLURM_HOSTFILE\" <<'END'\n";
    for (int host : placement.host_of_process) text += placement.hosts[static_cast<std::size_t>(host)].name + "\n";
    text += "END\n";
  }
  return text + fmt::format("exec srun --mpi=pmix --kill-on-bad-exit=1 --distribution={} {}\n",
                            even ? "block" : "arbitrary", shell_line(form.command));
}

std::string mpi_job(const LaunchForm& form, const std::string& image) {
  std::set<int> different;
  int workers = 0;
  for (int count : form.placement.counts()) {
    if (count == 0) continue;
    different.insert(count);
    ++workers;
  }
  if (different.size() > 1 || !form.placement.in_blocks()) {
    throw Error(ErrorKind::request,
                "an MPIJob's workers are all alike: give hosts with equal numbers of slots that the grid fills evenly");
  }
  std::string words;
  const std::vector<std::string> mpirun = {
      "mpirun", "--allow-run-as-root", "-n", std::to_string(form.placement.host_of_process.size()), "--map-by", "slot"};
  for (const auto* list : {&mpirun, &form.command}) {
    for (const auto& word : *list) {
      std::string escaped;
      for (char c : word) escaped += c == '\'' ? std::string("''") : std::string(1, c);
      words += fmt::format("            - '{}'\n", escaped);
    }
  }
  return fmt::format(R"(apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata:
  generateName: cuboid-
spec:
  slotsPerWorker: {}
  runPolicy:
    cleanPodPolicy: Running
    backoffLimit: 0
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template:
        spec:
          restartPolicy: Never
          containers:
          - name: launcher
            image: {}
            command:
{}    Worker:
      replicas: {}
      template:
        spec:
          containers:
          - name: worker
            image: {}
)",
                     *different.begin(), image, words, workers, image);
}

}  // namespace cuboid::launch
