// Which host runs which process of a job.
#pragma once

#include <string>
#include <vector>

#include "cuboid/value/grid.h"

#include "launch/hosts.h"

namespace cuboid::launch {

struct Placement {
  std::vector<Host> hosts;
  std::vector<int> host_of_process;
  std::vector<std::string> notes;  ///< what could not be as it should
  /// Processes of each host.
  std::vector<int> counts() const;
  /// Each host's processes follow each other and fill it up before the next is begun.
  bool in_blocks() const;
};

/// Keeps the ranks of a tensor parallel group on one host wherever one has room for them, in the order of hosts.
/// Process p has ranks p·n, p·n + 1, …, n being ranks_per_process.
/// @throws Error{request} if the hosts have too few slots, or ranks_per_process does not divide the world
Placement place(const Grid& grid, int ranks_per_process, const std::vector<Host>& hosts);

/// The placement in each launcher's words. `command`: the program and its arguments.
struct LaunchForm {
  Placement placement;
  std::vector<std::string> command;
  int ranks_per_process = 1;
  int cores_per_process = 0;  ///< bind each process to so many cores; 0: no binding
};
/// Open MPI's rank file.
std::string rank_file(const LaunchForm& form);
/// Words of the mpirun command. @param rank_file_path  where rank_file() was written
std::vector<std::string> mpirun_words(const LaunchForm& form, const std::string& rank_file_path);
/// A batch script for sbatch, whose srun starts the processes.
std::string sbatch_script(const LaunchForm& form);
/// A Kubernetes MPIJob (kubeflow.org/v2beta1), a worker a host. @throws Error{request} where hosts differ in processes
std::string mpi_job(const LaunchForm& form, const std::string& image);
/// A word as a POSIX shell reads it back.
std::string quoted(const std::string& word);

}  // namespace cuboid::launch
