// Ranks in several processes, one or more of them a process: what runs under mpirun and srun. Ranks of a process talk
// through its memory, processes through MPI; a group that has members in several processes combines the two.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuboid/comm/ranks.h"

namespace cuboid {

class Processes {
 public:
  virtual ~Processes() = default;
  virtual int process() const = 0;
  virtual int processes() const = 0;
  /// Host name of every process.
  virtual const std::vector<std::string>& hosts() const = 0;

  /// As run_ranks, over the job: process p runs ranks p·n, p·n + 1, …, n being ranks_per_process. Called by every
  /// process with equal arguments; those that get no rank wait for the others. All throw the same first cause, also
  /// where a process was killed or stopped.
  /// @pre ranks ≤ processes · ranks_per_process
  virtual void run(int ranks, int ranks_per_process, const std::function<void(RankContext&)>& body,
                   const RankOptions& options) = 0;

  /// True on the one process that should print what concerns all: process 0, or the next if that one is lost.
  virtual bool speaks() const = 0;
  /// This process will not take part: whoever runs or will run learns why.
  virtual void refuse(const std::string& why) = 0;
  /// Ends the process's part in the job, the last thing before its exit. With a status other than 0 it does not return
  /// but exits with it, once the speaking process has said why.
  virtual void leave(int status) = 0;
};

/// Whether mpirun, srun or another launcher of MPI started this process together with others, from the environment.
bool launched_by_mpi();
/// Whether this program can join such a job at all.
bool built_with_mpi();
/// Joins the other processes of the job. Once a program.
/// @throws Error{request} if this build has no MPI; Error{failed} if MPI cannot start
std::unique_ptr<Processes> join_processes();

}  // namespace cuboid
