// A large all-reduce over the processes of a job, beside MPI_Allreduce called flat on the same processes in the same
// run. Start it with mpirun; process 0 prints one JSON document.
//   bench_network [BYTES] [ROUNDS] [CLOCK_ROUNDS] [RANKS_PER_PROCESS]
// CLOCK_ROUNDS: compares the clock of `cuboid bench comm` with a plain loop around MPI_Allreduce, so often.
// RANKS_PER_PROCESS over 1: also times an all-reduce of the ranks inside a process, and of as many threads without a
// job.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#define OMPI_SKIP_MPICXX 1
#include <fmt/format.h>
#include <mpi.h>

#include "cuboid/comm/processes.h"
#include "cuboid/core/median.h"
#include "cuboid/plan/measure_comm.h"

namespace {

template <typename F>
double seconds_of(F&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string described(const std::vector<double>& values) {
  return fmt::format("{{\"fastest\": {:.6f}, \"median\": {:.6f}}}", std::ranges::min(values), cuboid::median(values));
}

using Seconds = std::vector<double>;

// Times of all-reduces over a group, pushed by its rank 0; the first is not counted.
void time_all_reduces(const cuboid::Device& device, cuboid::Communicator& group, std::int64_t count, int rounds,
                      Seconds& seconds) {
  const cuboid::Tensor x = device.zeros({count}, cuboid::DType::float32);
  const cuboid::Tensor y = device.zeros({count}, cuboid::DType::float32);
  for (int round = 0; round <= rounds; ++round) {
    group.barrier();
    const double time = seconds_of([&] { group.all_reduce(x, y, cuboid::ReduceOp::sum).wait(); });
    if (round > 0 && group.rank() == 0) seconds.push_back(time);
  }
}

// The ranks of process 0 among themselves, in the job and without it, in turns.
std::string in_process(cuboid::Processes& job, std::int64_t count, int rounds, int ranks) {
  Seconds hybrid;
  Seconds threads;
  for (int turn = 0; turn < 3; ++turn) {
    job.run(job.processes() * ranks, ranks,
            [&](cuboid::RankContext& self) {
              const int process = self.rank / ranks;
              const auto group = self.world->split(process, self.rank, "process");
              // The others wait: in tests they are on the same machine.
              if (process == 0) time_all_reduces(self.device, *group, count, rounds, hybrid);
              self.world->barrier();
            },
            {});
    if (job.process() != 0) continue;
    cuboid::run_ranks(
        ranks, [&](cuboid::RankContext& self) { time_all_reduces(self.device, *self.world, count, rounds, threads); });
  }
  if (job.process() != 0) return "";
  return fmt::format(", \"ranks_per_process\": {}, \"in_process_seconds\": {}, \"threads_seconds\": {}", ranks,
                     described(hybrid), described(threads));
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t count = (argc > 1 ? std::atoll(argv[1]) : 4 << 20) / 4;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  const int clock_rounds = argc > 3 ? std::atoi(argv[3]) : 0;
  const int ranks = argc > 4 ? std::atoi(argv[4]) : 1;
  const auto job = cuboid::join_processes();
  std::vector<double> ours;
  std::vector<double> flat;
  std::vector<double> overhead;
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
             // What the clock of `cuboid bench comm` adds to a collective: MPI's own in it, and in a plain loop.
             const auto call = [&] {
               MPI_Allreduce(x.raw(), y.raw(), static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
             };
             for (int round = 0; round < clock_rounds; ++round) {
               const cuboid::RoundTimes timed = cuboid::time_rounds(*self.world, self.device, call, 0.1);
               self.world->barrier();
               const double plain = seconds_of([&] {
                 for (int i = 0; i < timed.rounds; ++i) call();
               });
               if (self.rank == 0) overhead.push_back(timed.mean * timed.rounds / plain - 1);
             }
           },
           {});
  const std::string inside = ranks > 1 ? in_process(*job, count, rounds, ranks) : "";
  if (job->process() == 0) {
    fmt::print(
        "{{\"bytes\": {}, \"processes\": {}, \"all_reduce_seconds\": {}, \"mpi_allreduce_seconds\": {}, "
        "\"bench_overhead\": {}{}}}\n",
        4 * count, job->processes(), described(ours), described(flat),
        overhead.empty() ? "null" : fmt::format("{:.4f}", cuboid::median(overhead)), inside);
    std::fflush(stdout);
  }
  job->leave(0);
  return 0;
}
