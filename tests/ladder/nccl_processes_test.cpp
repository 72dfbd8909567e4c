// NCCL itself, without this project's communicator: one rank, and several processes that share the first GPU. NCCL
// refuses two ranks on one device of one host; with a NCCL_HOSTID of its own each process passes for a host. Whether
// that works is NCCL's affair: where it refuses, the test is skipped and says in what words.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "formats/files.h"
#include "src/runtime/cuda/gpu.h"

extern char** environ;

namespace cuboid::ladder {
namespace {

constexpr int kRefused = 77;
constexpr const char* kRole = "CUBOID_NCCL_RANK";  // of a child: "rank size file-with-the-id"

// What NCCL said against it, or nothing: it went through with the right sum.
std::string sum_over_ranks(int rank, int size, const ncclUniqueId& id) {
  const auto refused = [](ncclResult_t status, const char* call) {
    return status == ncclSuccess || status == ncclInProgress
               ? std::string()
               : fmt::format("{}: {} ({})", call, ncclGetErrorString(status), static_cast<int>(status));
  };
  CUBOID_CUDA(cudaSetDevice(0));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  ncclComm_t comm = nullptr;
  if (auto why = refused(ncclCommInitRankConfig(&comm, size, id, rank, &config), "ncclCommInitRankConfig");
      !why.empty())
    return why;
  const cuda::Stream stream;
  const std::vector<float> mine = {1.0F + static_cast<float>(rank), 10, 100};
  std::vector<float> sum(mine.size());
  void* there = nullptr;
  const std::size_t bytes = mine.size() * sizeof(float);
  CUBOID_CUDA(cudaMalloc(&there, bytes));
  CUBOID_CUDA(cudaMemcpyAsync(there, mine.data(), bytes, cudaMemcpyHostToDevice, stream.get()));
  std::string why =
      refused(ncclAllReduce(there, there, mine.size(), ncclFloat32, ncclSum, comm, stream.get()), "ncclAllReduce");
  CUBOID_CUDA(cudaMemcpyAsync(sum.data(), there, bytes, cudaMemcpyDeviceToHost, stream.get()));
  stream.synchronize();
  ncclCommDestroy(comm);
  cudaFree(there);
  if (!why.empty()) return why;
  const float ranks = static_cast<float>(size);
  EXPECT_EQ(sum, (std::vector<float>{ranks * (ranks + 1) / 2, 10 * ranks, 100 * ranks}));
  return "";
}

TEST(Nccl, OneRankSumsItsOwn) {
  ncclUniqueId id{};
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  EXPECT_EQ(sum_over_ranks(0, 1, id), "");
}

// Runs in the children of the test below alone.
TEST(Nccl, DISABLED_ChildOfSeveral) {
  const char* const role = std::getenv(kRole);
  ASSERT_NE(role, nullptr);
  int rank = 0;
  int size = 0;
  char path[512] = {};
  ASSERT_EQ(std::sscanf(role, "%d %d %511s", &rank, &size, path), 3);
  ncclUniqueId id{};
  if (rank == 0) {
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    std::ofstream(std::string(path) + ".new", std::ios::binary).write(id.internal, sizeof(id.internal));
    std::filesystem::rename(std::string(path) + ".new", path);
  }
  for (int i = 0; i < 300 && !std::filesystem::exists(path); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  std::ifstream(path, std::ios::binary).read(id.internal, sizeof(id.internal));
  const std::string why = sum_over_ranks(rank, size, id);
  std::fprintf(stderr, "%s\n", why.c_str());
  if (!why.empty()) _exit(kRefused);
}

// Starts a rank of its own: this program again, as another host to NCCL.
pid_t start_rank(int rank, int size, const std::string& id, const std::string& output) {
  const std::string role = fmt::format("{}={} {} {}", kRole, rank, size, id);
  const std::string host = fmt::format("NCCL_HOSTID=cuboid-{}", rank);
  std::vector<char*> environment;
  for (char** e = environ; *e != nullptr; ++e) environment.push_back(*e);
  environment.push_back(const_cast<char*>(role.c_str()));
  environment.push_back(const_cast<char*>(host.c_str()));
  environment.push_back(nullptr);
  const pid_t child = fork();
  if (child != 0) return child;
  const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  dup2(file, STDOUT_FILENO);
  dup2(file, STDERR_FILENO);
  alarm(90);  // an NCCL that waits for ever
  const char* words[] = {"gpu_ladder", "--gtest_also_run_disabled_tests", "--gtest_filter=Nccl.DISABLED_ChildOfSeveral",
                         nullptr};
  execve("/proc/self/exe", const_cast<char**>(words), environment.data());
  _exit(127);
}

TEST(Nccl, SeveralProcessesShareAGpu) {
  constexpr int kRanks = 2;
  const test::TemporaryFolder folder;
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    children.push_back(start_rank(rank, kRanks, folder / "id", folder / fmt::format("out{}", rank)));
  }
  std::string refusal;
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = 0;
    ASSERT_EQ(waitpid(children[static_cast<std::size_t>(rank)], &status, 0), children[static_cast<std::size_t>(rank)]);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    std::ifstream file(folder / fmt::format("out{}", rank));
    std::string said;
    std::string last;  // of NCCL
    for (std::string line; std::getline(file, line); said += line + "\n") {
      if (line.starts_with("nccl")) last = line;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == kRefused) {
      refusal = last;
    } else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) {
      refusal = "NCCL was not done after 90 s";
    } else {
      ADD_FAILURE() << "rank " << rank << " ended with " << status << ":\n" << said;
    }
  }
  if (!refusal.empty()) GTEST_SKIP() << "NCCL refuses: " << refusal;
}

}  // namespace
}  // namespace cuboid::ladder
