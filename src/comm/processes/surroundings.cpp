// What the environment says about the launcher.
#include <cstdlib>
#include <string_view>

#include "exchange.h"

namespace cuboid {
namespace {

bool set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

}  // namespace

bool launched_by_mpi() {
  // Open MPI and PMIx; MPICH's Hydra and srun --mpi=pmi2.
  if (set("OMPI_COMM_WORLD_SIZE") || set("PMIX_RANK") || set("PMI_RANK")) return true;
  // srun starts its tasks as a step; a batch script has SLURM_PROCID too, but is not a step of several tasks.
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  return set("SLURM_PROCID") && tasks != nullptr && std::string_view(tasks) != "1" && *tasks != '\0';
}

std::unique_ptr<Processes> join_processes() {
  return std::make_unique<detail::Exchange>(detail::make_mpi_transport());
}

}  // namespace cuboid
