// Where a job may run, as people and batch systems write it: Slurm's host lists and environment, Open MPI's host files
// and rank files. Every reader refuses what it cannot read for certain, naming the place and the fault.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cuboid::launch {

struct Host {
  std::string name;
  int slots = 1;  ///< processes it may run
  friend bool operator==(const Host&, const Host&) = default;
};

/// More hosts than any machine has: a list with more is a mistake.
inline constexpr std::size_t kMostHosts = 1 << 18;

/// Slurm's notation: "gpu[001-003,7],login,n[1-2]x[01-02]". The left number's width is the padding; several brackets
/// multiply, the last varying fastest; the order is as listed. @throws Error{request}, also for
/// more than `most` names
std::vector<std::string> expand_host_list(const std::string& text, std::size_t most = kMostHosts);
/// Slurm's "2(x2),1": {2, 2, 1}. @throws Error{request}, also for more than `most` counts, or one above that
std::vector<int> expand_counts(const std::string& text, std::size_t most = kMostHosts);

/// Open MPI's host file: "node01 slots=4 max_slots=4  # comment" a line; a host without slots= counts one a line.
/// @throws Error{request} naming the file and line
std::vector<Host> read_host_file(const std::string& path);

/// A line of Open MPI's rank file: "rank 2=node02 slot=0:0-1".
struct RankPlace {
  std::string host;
  std::optional<int> socket;  ///< none: cores are counted over the host
  std::vector<int> cores;
  friend bool operator==(const RankPlace&, const RankPlace&) = default;
};
/// By rank; every rank from 0 on must be there once. @throws Error{request} naming the file and line
std::vector<RankPlace> read_rank_file(const std::string& path);

/// A Slurm allocation and, within a step, this task's place in it.
struct SlurmJob {
  std::vector<Host> hosts;  ///< slots: tasks of each
  int tasks = 0;
  std::optional<int> rank, local_rank, node;  ///< in a step only
  /// Host of every rank, with Slurm's block distribution: the first host is filled first.
  std::vector<int> host_of_rank() const;
};
/// Reads the SLURM_ variables. @param get  value of a variable, "" if unset
/// @throws Error{request} naming each missing or contradictory variable with its value
SlurmJob read_slurm(const std::function<std::string(const char*)>& get, std::size_t most_hosts = kMostHosts);

}  // namespace cuboid::launch
