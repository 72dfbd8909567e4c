#include "launch/job.h"

#include <memory>

#include <fmt/format.h>

#include "cuboid/core/log.h"

namespace cuboid::launch {
namespace {

// Never destroyed: its threads end with leave(), or with the process.
Processes* g_job = nullptr;

}  // namespace

Processes* join_job(FabricKind fabric) {
  if (fabric != FabricKind::mpi && !launched_by_mpi()) return nullptr;
  if (g_job == nullptr) {
    g_job = join_processes().release();
    log::set_quiet(!speaks());
  }
  if (fabric != FabricKind::threads) return g_job;
  if (g_job->processes() > 1) {
    throw Error(ErrorKind::request, fmt::format("--fabric threads: {} processes were started, and each would train "
                                                "alone; use auto or mpi, or start one process",
                                                g_job->processes()));
  }
  return nullptr;
}

Processes* job() {
  return g_job;
}

bool speaks() {
  return g_job == nullptr || g_job->speaks();
}

}  // namespace cuboid::launch
