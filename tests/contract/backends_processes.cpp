// The suite in several processes: started by mpirun, every process runs every test, and they meet in the runs. A row's
// world is all processes times CUBOID_RANKS_PER_PROCESS rank threads; runs on fewer ranks leave processes idle.
#include <cstdlib>

#include <gmock/gmock.h>

#include "cuboid/comm/processes.h"

#include "backend.h"

namespace cuboid::contract {
namespace {

std::unique_ptr<Processes> g_job;

int number_in(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

// Before main: MPI has not started.
int processes() {
  return number_in("OMPI_COMM_WORLD_SIZE", 1);
}
int ranks_per_process() {
  return number_in("CUBOID_RANKS_PER_PROCESS", 1);
}

void run_on_job(int ranks, const Body& body, const RankOptions& options) {
  g_job->run(ranks, ranks_per_process(), body, options);
}

std::int64_t over_processes(std::int64_t own, ReduceOp op) {
  std::int64_t result = 0;
  g_job->run(processes(), 1,
             [&](RankContext& self) {
               const Tensor x = self.device.zeros({1}, DType::int64);
               *x.data<std::int64_t>() = own;
               all_reduce_in_place(*self.world, x, op);
               result = *x.data<std::int64_t>();
             },
             {.deadline = 60});
  return result;
}

}  // namespace

const std::vector<Backend>& backends() {
  static const std::vector<Backend> all = {
      {ranks_per_process() == 1 ? "mpi" : "hybrid",
       {processes() * ranks_per_process()},
       false,
       run_on_job,
       [](std::int64_t x) { return over_processes(x, ReduceOp::sum); },
       [](std::int64_t x) { return over_processes(x, ReduceOp::max); }},
  };
  return all;
}

}  // namespace cuboid::contract

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  cuboid::contract::g_job = cuboid::join_processes();
  // Reports of all processes would be one too many; failures are told by each.
  if (cuboid::contract::g_job->process() != 0) GTEST_FLAG_SET(brief, true);
  const int status = RUN_ALL_TESTS();
  cuboid::contract::g_job->leave(status);
  return status;
}
