// A large all-reduce over the processes of a job, beside MPI_Allreduce called flat on the same processes in the same
// run, the fastest of some rounds of each. Start it with mpirun; process 0 prints one JSON document. bench_network
// [BYTES] [ROUNDS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define OMPI_SKIP_MPICXX 1
#include <fmt/format.h>
#include <mpi.h>

#include "cuboid/comm/processes.h"

namespace {

template <typename F>
double seconds_of(F&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double fastest(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t count = (argc > 1 ? std::atoll(argv[1]) : 4 << 20) / 4;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  const auto job = cuboid::join_processes();
  std::vector<double> ours;
  std::vector<double> flat;
  job->run(job->processes(), 1,
           [&](cuboid::RankContext& self) {
             const cuboid::Tensor x = self.device.zeros({count}, cuboid::DType::float32);
             const cuboid::Tensor y = self.device.zeros({count}, cuboid::DType::float32);
             for (int round = 0; round <= rounds; ++round) {
               self.world->barrier();
               const double a = seconds_of([&] { self.world->all_reduce(x, y, cuboid::ReduceOp::sum).wait(); });
               self.world->barrier();
               const double b = seconds_of([&] {
                 MPI_Allreduce(x.raw(), y.raw(), static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
               });
               if (round == 0 || self.rank != 0) continue;  // the first opens connections
               ours.push_back(a);
               flat.push_back(b);
             }
           },
           {});
  if (job->process() == 0) {
    fmt::print(
        "{{\"bytes\": {}, \"processes\": {}, \"all_reduce_seconds\": {:.6f}, \"mpi_allreduce_seconds\": {:.6f}, "
        "\"ratio\": {:.3f}}}\n",
        4 * count, job->processes(), fastest(ours), fastest(flat), fastest(flat) / fastest(ours));
    std::fflush(stdout);
  }
  job->leave(0);
  return 0;
}
