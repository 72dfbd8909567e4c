// Ranks as threads of one process: what tests, laptops and the threads fabric run on.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cuboid/comm/communicator.h"

namespace cuboid {

/// What a rank thread is given. Lives as long as its function runs.
struct RankContext {
  int rank = 0;
  int size = 1;
  Device device;
  Communicator* world = nullptr;  ///< all ranks, backend `threads` (`self` when size is 1)
};

struct RankOptions {
  double deadline = 600;     ///< longest wait for another rank, in seconds
  int threads_per_rank = 1;  ///< OpenMP threads that a rank's GEMMs may use
  /// CUDA's numbers of the GPUs that this process's ranks compute on, rank after rank: all the same (they share it) or
  /// all different (they talk through NCCL). Empty: they compute on the CPU.
  std::vector<int> gpus = {};
  /// Called once after a failure, before it is thrown, with a report a rank: in
  /// the first line what it was doing or waiting for, then its last communications.
  std::function<void(const std::vector<std::string>&)> on_failure = {};
};

/// Runs body on `ranks` threads and returns when all have ended. A rank that throws aborts the world: the others' waits
/// throw Aborted, and the first cause is rethrown here with the rank's number ("rank 3: …", the kind of an Error kept,
/// a std::logic_error remains one, anything else becomes Error{failed}).
void run_ranks(int ranks, const std::function<void(RankContext&)>& body, const RankOptions& options = {});

}  // namespace cuboid
