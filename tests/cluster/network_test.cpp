// Two hosts with a network of 1 Gbit/s between them, made from namespaces (tests/hosts/hosts).
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "cluster/shell.h"

namespace cuboid::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const std::string kOracle = CUBOID_TEST_DATA "/oracle/gpt2-tiny";
const std::string kHosts = CUBOID_SOURCE_DIR "/tests/hosts/hosts";

class Network : public testing::Test {
 protected:
  // One set-up for all tests of the program's process; names are short, as interface names are.
  static void SetUpTestSuite() {
    name_ = "cb" + std::to_string(getpid() % 100000);
    const Ended up = shell(kHosts + " up 2 " + name_);
    usable_ = up.status == 0;
    why_not_ = up.err;
    EXPECT_TRUE(usable_ || up.status == 77) << up.err;
  }
  static void TearDownTestSuite() { shell(kHosts + " down " + name_); }
  void SetUp() override {
    if (!usable_) GTEST_SKIP() << why_not_;
  }

  // On `slots` processes a host, by mpirun on the first host.
  static std::string mpirun(int slots) {
    const std::string n = std::to_string(slots);
    return kHosts + " enter " + name_ + "-1 env TMPDIR=/tmp $MPIRUN --mca plm_rsh_agent '" + kHosts +
           " agent' --mca btl_tcp_if_include eth0 " + "--mca oob_tcp_if_include eth0 --host " + name_ + "-1:" + n +
           "," + name_ + "-2:" + n + " -n " + std::to_string(2 * slots) + " ";
  }
  static std::string run(const std::string& more) {
    return "$CUBOID train --model " + kOracle + " --data " + kOracle +
           "/tokens.bin --seq-len 32 --global-batch 8 --tp 2 --pp 2 --dp 2 --dropout 0.1 " + more;
  }

  static inline std::string name_, why_not_;
  static inline bool usable_ = false;
};

TEST_F(Network, TrainingOnTwoHostsGivesTheSameBits) {
  const Ended alone = shell(run("--steps 3 --json"));
  ASSERT_EQ(alone.status, 0) << alone.err;
  const Ended hybrid = shell(mpirun(1) + run("--steps 3 --json --ranks-per-process 4"));
  ASSERT_EQ(hybrid.status, 0) << hybrid.err;
  const Ended processes = shell(mpirun(4) + run("--steps 3 --json"));
  ASSERT_EQ(processes.status, 0) << processes.err;
  EXPECT_EQ(json::parse(hybrid.out).at("weights_hash"), json::parse(alone.out).at("weights_hash"));
  EXPECT_EQ(json::parse(processes.out).at("weights_hash"), json::parse(alone.out).at("weights_hash"));
}

TEST_F(Network, AStoppedProcessIsNamedWithItsHost) {
  const Ended ended =
      shell_and_signal(mpirun(1), run("--steps 1000000 --ranks-per-process 4 --seed 90011"), "seed 90011", 1, "STOP");
  EXPECT_EQ(ended.status, 3) << ended.err;
  EXPECT_LT(ended.seconds, 10.0);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("process 1 (ranks 4-7) on host " + name_ + "-2"), HasSubstr("rank 0 ")));
  EXPECT_EQ(std::atoi(shell("sleep 0.3; pgrep -fc '^[^ ]*cuboid .*seed 90011'").out.c_str()), 0);
}

TEST_F(Network, AKilledRankEndsAllHosts) {
  const Ended ended = shell_and_signal(mpirun(4), run("--steps 1000000 --seed 90012"), "seed 90012", 6, "KILL");
  EXPECT_NE(ended.status, 0);
  EXPECT_LT(ended.seconds, 10.0);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("rank 6"), HasSubstr(name_ + "-2")));
  EXPECT_EQ(std::atoi(shell("sleep 0.3; pgrep -fc '^[^ ]*cuboid .*seed 90012'").out.c_str()), 0);
}

// The second of two hosts is lost while the run saves: it goes on on the first alone, with the same global batch and
// data, to the loss that it would have had.
TEST_F(Network, ARunGoesOnOnTheHostsThatAreLeft) {
  const std::string name = name_ + "e";  // hosts of its own: they do not survive
  ASSERT_EQ(shell(kHosts + " up 2 " + name).status, 0);
  const std::string out = testing::TempDir() + name;
  shell("rm -rf " + out);
  const auto training = [&](const std::string& more) {
    return " train --model " + kOracle + " --data " + kOracle +
           "/tokens.bin --seq-len 32 --global-batch 8 --tp 2 --dp=2 --zero 1 --steps 40 --json " + more;
  };
  const Ended whole = shell("$CUBOID" + training(""));
  ASSERT_EQ(whole.status, 0) << whole.err;
  const Ended ended = shell(
      kHosts + " enter " + name + "-1 env TMPDIR=/tmp OMPI_MCA_plm_rsh_agent='" + kHosts +
      " agent' OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0 $CUBOID launch --run --max-restarts 2 "
      "--hosts " +
      name + "-[1-2] --slots 2" + training("--checkpoint-every 2 --out " + out) +
      " & job=$!; for i in $(seq 600); do [ -e " + out + "/checkpoints/latest ] && break; sleep 0.05; done; " + kHosts +
      " lose " + name + "-2; wait $job");
  shell(kHosts + " down " + name + "; rm -rf " + out);
  ASSERT_EQ(ended.status, 0) << ended.err;
  EXPECT_THAT(ended.err, AllOf(HasSubstr("host " + name + "-2 does not answer: the run goes on without its 2 slots"),
                               HasSubstr("the grid is now tp 2 x pp 1 x dp 1 (it was tp 2 x pp 1 x dp 2); the global "
                                         "batch stays 8"),
                               HasSubstr("going on after step")));
  const json result = json::parse(ended.out);
  EXPECT_EQ(result.at("world"), 2);
  EXPECT_EQ(result.at("steps"), 40);
  EXPECT_GT(result.at("first_step").get<int>(), 0);
  const double loss = json::parse(whole.out).at("final_loss");
  EXPECT_NEAR(result.at("final_loss").get<double>(), loss, 1e-5 * loss);
}

TEST_F(Network, ALargeAllReduceComesNearTheNetworksLimit) {
  // Whatever the algorithm, each host has to send as many bytes as one rank's tensor has: here in 33.6 ms.
  constexpr double kBytes = 4 << 20;
  constexpr double kLimit = kBytes * 8 / 1e9;
  // A busy machine upsets one measurement, hardly three.
  std::string seen;
  bool good = false;
  for (int attempt = 0; attempt < 3 && !good; ++attempt) {
    const Ended ended = shell(mpirun(2) + CUBOID_BENCH_NETWORK + " 4194304 9");
    ASSERT_EQ(ended.status, 0) << ended.err;
    seen += ended.out;
    const json result = json::parse(ended.out);
    const json& ours = result.at("all_reduce_seconds");
    const json& flat = result.at("mpi_allreduce_seconds");
    good = ours.at("fastest").get<double>() < 1.4 * kLimit &&
           ours.at("median").get<double>() < flat.at("median").get<double>();
    EXPECT_GT(ours.at("fastest").get<double>(), 0.8 * kLimit) << "these links are not slow: " << seen;
  }
  EXPECT_TRUE(good) << seen;
}

TEST_F(Network, TheBenchClockAddsNothingToACollective) {
  std::string seen;
  double least = 1;
  for (int attempt = 0; attempt < 6 && least > 0.02; ++attempt) {
    const Ended ended = shell(mpirun(2) + CUBOID_BENCH_NETWORK + " 262144 1 5");
    ASSERT_EQ(ended.status, 0) << ended.err;
    seen += ended.out;
    least = std::min(least, json::parse(ended.out).at("bench_overhead").get<double>());
  }
  EXPECT_LE(least, 0.02) << seen;
}

// A narrow model: between its ranks go 32 bytes for every few hundred FLOPs, so that tensor parallel traffic dominates.
std::string map_of(const std::string& more, int rounds) {
  const std::string folder = testing::TempDir() + "cuboid-narrow-" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json")
      << R"({"model_type": "gpt2", "n_layer": 8, "n_embd": 64, "n_head": 4, "n_inner": 64, "n_positions": 128, "vocab_size": 256})";
  return "$CUBOID bench map --json --ranks-per-process 2 --model " + folder +
         " --seq-len 128 --global-batch 32 --micro-batch 8 --rounds " + std::to_string(rounds) + " " + more;
}

// Inside hosts tensor parallel communication takes less than half the time that it takes across.
TEST_F(Network, ThePlacerKeepsTensorRanksOnAHost) {
  // A busy machine upsets one measurement, hardly three.
  std::string seen;
  bool good = false;
  for (int attempt = 0; attempt < 3 && !good; ++attempt) {
    const Ended ended = shell(mpirun(1) + map_of("--tp 2 --dp 2", 3));
    ASSERT_EQ(ended.status, 0) << ended.err;
    seen += ended.out;
    const json map = json::parse(ended.out);
    ASSERT_EQ(map.at("choice"), "tp-dp");
    ASSERT_EQ(map.at("mappings").size(), 2U);
    const json& best = map.at("mappings").at(0);
    const json& worst = map.at("mappings").at(1);
    EXPECT_EQ(best.at("placement"), json({0, 1, 2, 3}));
    EXPECT_EQ(worst.at("order"), "dp-tp");
    good = worst.at("comm_seconds") > 2 * best.at("comm_seconds").get<double>();
  }
  EXPECT_TRUE(good) << seen;
}

// The whole of it, with step times, which needs two cores that do nothing else.
TEST_F(Network, DISABLED_ThePlacersChoiceIsTheMeasuredBest) {
  struct Case {
    std::string grid;
    double worst_to_best;
  };
  for (const auto& [grid, worst_to_best] :
       {Case{"--tp 2 --dp 2", 2.0}, {"--pp 2 --dp 2", 1.0}, {"--tp 2 --pp 2", 1.0}}) {
    const Ended ended = shell(mpirun(1) + map_of(grid, 7));
    ASSERT_EQ(ended.status, 0) << ended.err;
    const json map = json::parse(ended.out);
    EXPECT_TRUE(map.at("choice_is_best").get<bool>()) << grid << ended.out;
    EXPECT_EQ(map.at("disagreements"), 0) << grid << ended.out;
    EXPECT_GE(map.at("worst_to_best"), worst_to_best) << grid << ended.out;
    EXPECT_LE(map.at("largest_comm_error"), 0.25) << grid << ended.out;
  }
}

}  // namespace
}  // namespace cuboid::test
