// The program under mpirun: the same numbers as in one process, refusals said once, and failures that end everybody.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cluster/shell.h"

namespace cuboid::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string kOracle = CUBOID_TEST_DATA "/oracle/gpt2-tiny";

std::string folder(const std::string& name) {
  const auto path = std::filesystem::path(testing::TempDir()) / ("cuboid-job-" + std::to_string(getpid()) + name);
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path.string();
}

// The oracle's training run on tp 2, pp 2, dp 2.
std::string oracle_run(const json& training, const std::string& out, const std::string& more) {
  const auto real = [&](const char* name) { return training.at("optimizer").at(name).dump(); };
  return "train --model " + kOracle + " --weights " + kOracle + " --data " + kOracle +
         "/tokens.bin --seq-len 32 --global-batch 8 --micro-batch 2 --steps 20 --tp 2 --pp 2 --dp 2 --optimizer adamw" +
         " --lr " + real("lr") + " --weight-decay " + real("weight_decay") + " --beta1 " + real("beta1") + " --beta2 " +
         real("beta2") + " --eps " + real("eps") + " --clip-grad " + real("max_grad_norm") + " --out " + out +
         " --json " + more;
}

// A run that goes on until something ends it.
std::string long_run(const std::string& more) {
  return "train --model " + kOracle + " --data " + kOracle +
         "/tokens.bin --seq-len 32 --global-batch 8 --steps 1000000 " + more;
}

std::vector<json> metrics_in(const std::string& folder) {
  std::ifstream file(folder + "/metrics.jsonl");
  std::vector<json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
  return lines;
}

// No process of this name and these words is left.
void expect_nobody_left(const std::string& words) {
  const Ended left = shell("sleep 0.3; pgrep -fc '^[^ ]*cuboid .*" + words + "'");
  EXPECT_EQ(std::atoi(left.out.c_str()), 0) << shell("pgrep -af '" + words + "'").out;
}

TEST(Job, TheOracleOnEightProcessesAndOnTwoOfFourRanks) {
  const json expected = json::parse(std::ifstream(kOracle + "/expected.json")).at("training");
  std::vector<std::string> hashes;
  for (const auto& [name, launcher, more] : {std::tuple("threads", "", ""), std::tuple("mpi", "$MPIRUN -n 8 ", ""),
                                             std::tuple("hybrid", "$MPIRUN -n 2 ", "--ranks-per-process 4")}) {
    const std::string out = folder(name);
    const Ended ended = shell(launcher + std::string("$CUBOID ") + oracle_run(expected, out, more));
    ASSERT_EQ(ended.status, 0) << name << "\n" << ended.err;
    const json result = json::parse(ended.out);  // one document: only one process printed
    EXPECT_EQ(result.at("world"), 8);
    hashes.push_back(result.at("weights_hash"));
    const auto lines = metrics_in(out);
    ASSERT_EQ(lines.size(), 20U);
    for (std::size_t s = 0; s < lines.size(); ++s) {
      const double loss = expected.at("loss").at(s);
      EXPECT_NEAR(lines[s].at("loss").get<double>(), loss, 1e-5 * loss) << name << ", step " << s;
    }
    std::filesystem::remove_all(out);
  }
  EXPECT_EQ(hashes[1], hashes[0]) << "the same sums in the same order";
  EXPECT_EQ(hashes[2], hashes[0]);
}

// Processes that measured for themselves would cut the model in different places and wait for each other for ever.
TEST(Job, MeasuredBalanceIsOneForAllProcesses) {
  const std::string run = "train --model " + kOracle + " --data " + kOracle +
                          "/tokens.bin --seq-len 32 --global-batch 8 --steps 2 --pp 4 --tp 2 --schedule auto --json ";
  const Ended threads = shell("$CUBOID " + run);
  ASSERT_EQ(threads.status, 0) << threads.err;
  const Ended ended = shell("$MPIRUN -n 4 $CUBOID " + run + "--balance measured --ranks-per-process 2");
  ASSERT_EQ(ended.status, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("measured in a profile"));
  const json result = json::parse(ended.out);
  EXPECT_EQ(result.at("stage_work_unit"), "s");
  EXPECT_EQ(result.at("weights_hash"), json::parse(threads.out).at("weights_hash"));
}

TEST(Job, AWorldThatIsNotTheGridsIsRefusedOnceWithBothNumbers) {
  const Ended ended = shell("$MPIRUN -n 3 $CUBOID " + long_run("--tp 2 --dp 2"));
  EXPECT_EQ(ended.status, 2) << ended.err;
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, AllOf(HasSubstr("4 ranks"), HasSubstr("3 processes"), HasSubstr("make 3")));
  EXPECT_EQ(ended.err.find("4 ranks"), ended.err.rfind("4 ranks")) << ended.err;
  const Ended alone = shell("$MPIRUN -n 2 $CUBOID " + long_run("--fabric threads"));
  EXPECT_EQ(alone.status, 2);
  EXPECT_THAT(alone.err, HasSubstr("--fabric threads: 2 processes were started"));
}

TEST(Job, ARefusalByOneProcessEndsAll) {
  const std::string where = folder("one-lacks-data");
  // Only the second process's data is missing, as on a host without the file system.
  const Ended ended = shell("cd " + where +
                            R"(; printf '#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && data=/nowhere/x )"
                            R"(|| data=)" +
                            kOracle + R"(/tokens.bin\nexec "$CUBOID" train --model )" + kOracle +
                            R"( --data $data )"
                            R"(--seq-len 32 --steps 1000000 --dp 2 --global-batch 8\n' >start; chmod +x start; )"
                            "$MPIRUN -n 2 ./start");
  EXPECT_EQ(ended.status, 2) << ended.err;
  EXPECT_THAT(ended.err, AllOf(HasSubstr("process 1 on host"), HasSubstr("/nowhere/x")));
  EXPECT_LT(ended.seconds, 10.0);
}

TEST(Job, AKilledRankEndsTheRun) {
  const std::string mark = "seed 90001";
  const Ended ended = shell_and_signal("$MPIRUN -n 4 $CUBOID ", long_run("--tp 2 --pp 2 --" + mark), mark, 2, "KILL");
  // mpirun reports a signal in its own way; what runs under it says where everybody was.
  EXPECT_NE(ended.status, 0);
  EXPECT_LT(ended.seconds, 10.0);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("rank 2"), HasSubstr("waits"), HasSubstr("on host")));
  expect_nobody_left(mark);
}

TEST(Job, AStoppedRankEndsTheRunWithinTenSeconds) {
  const std::string mark = "seed 90002";
  const Ended ended = shell_and_signal("$MPIRUN -n 4 $CUBOID ", long_run("--tp 2 --pp 2 --" + mark), mark, 3, "STOP");
  EXPECT_EQ(ended.status, 3) << ended.err;
  EXPECT_LT(ended.seconds, 10.0);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("rank 3 on host"), HasSubstr("no sign of life"), HasSubstr("rank 0 waits"),
                               HasSubstr("rank 2 waits"), HasSubstr("in action"), HasSubstr("failure.txt")));
  expect_nobody_left(mark);
}

void expect_two_jobs_apart(int rounds) {
  const std::string run = "$MPIRUN -n 2 $CUBOID train --model " + kOracle + " --data " + kOracle +
                          "/tokens.bin --seq-len 32 --global-batch 2 --steps 1 --dp 2 --json";
  for (int round = 0; round < rounds; ++round) {
    const Ended ended = shell(run + " --seed 1 >a.$$ & " + run +
                              " --seed 2 >b.$$; s=$?; wait $! && cat a.$$ b.$$; "
                              "rm -f a.$$ b.$$; exit $s");
    ASSERT_EQ(ended.status, 0) << ended.err;
    const auto cut = ended.out.find("}\n{");
    ASSERT_NE(cut, std::string::npos) << ended.out;
    EXPECT_NE(json::parse(ended.out.substr(0, cut + 1)).at("weights_hash"),
              json::parse(ended.out.substr(cut + 2)).at("weights_hash"));
  }
}

TEST(Job, TwoJobsAtOnceAreNeverJoined) {
  expect_two_jobs_apart(3);
}
TEST(Job, DISABLED_TwentyTimesTwoJobsAtOnce) {
  expect_two_jobs_apart(20);
}

// Kills one process of a job again and again, at a random moment and of a random rank, until the run has finished.
void kill_until_finished(const std::string& grid, int processes, int kills, unsigned seed) {
  std::mt19937 random(seed);
  const std::string mark = "seed 9" + std::to_string(100 + seed);
  const auto training = [&](const std::string& out) {
    return "$MPIRUN -n " + std::to_string(processes) + " $CUBOID train --model " + kOracle + " --data " + kOracle +
           "/tokens.bin --seq-len 32 --global-batch 8 --steps 12 --checkpoint-every 2 --keep 2 --resume auto --json " +
           grid + " --" + mark + " --out " + out;
  };
  const Ended whole = shell(training(folder("whole")));
  ASSERT_EQ(whole.status, 0) << whole.err;
  const json expected = json::parse(whole.out);
  std::uniform_real_distribution<double> moment(0, whole.seconds);
  for (int killed = 0, run = 0; killed < kills; ++run) {
    const std::string out = folder("run-" + std::to_string(run));
    int announced = 0;
    for (bool done = false; !done;) {
      const std::string victim = std::to_string(random() % static_cast<unsigned>(processes));
      const std::string kill = killed < kills ? " & job=$!; sleep " + std::to_string(moment(random)) +
                                                    "; for p in $(pgrep -f '^[^ ]*cuboid train.*" + mark +
                                                    "'); do grep -qz OMPI_COMM_WORLD_RANK=" + victim +
                                                    " /proc/$p/environ && kill -KILL $p; done 2>/dev/null; wait $job"
                                              : "";
      const Ended ended = shell(training(out) + kill);
      const std::string words = "checkpoint after step ";
      if (const auto at = ended.err.rfind(words); at != std::string::npos) {
        announced = std::stoi(ended.err.substr(at + words.size()));
      }
      if (announced > 0) {
        ASSERT_EQ(shell("$CUBOID checkpoint verify " + out).status, 0) << "after " << killed << " kills";
      }
      done = ended.status == 0;
      if (!done) {
        ASSERT_LT(killed, kills) << ended.err;
        ++killed;
        continue;
      }
      const json result = json::parse(ended.out);
      EXPECT_EQ(result.at("weights_hash"), expected.at("weights_hash"));
      EXPECT_EQ(result.at("steps"), 12);
    }
    std::filesystem::remove_all(out);
  }
  std::filesystem::remove_all(folder("whole"));
}

TEST(Job, KilledRunsGoOnFromACompleteCheckpoint) {
  kill_until_finished("--tp 2 --dp 2 --ranks-per-process 2", 2, 3, 1);
}
// Takes minutes: for whoever changes how checkpoints are written, or how processes end.
TEST(Job, DISABLED_KilledTwoHundredTimes) {
  kill_until_finished("--dp 2 --zero 2 --async-save", 2, 100, 2);
  kill_until_finished("--pp 2 --tp 2", 4, 100, 3);
}

TEST(Launch, RunsTagsAndRestarts) {
  const Ended good = shell("$CUBOID launch --run train --model " + kOracle + " --data " + kOracle +
                           "/tokens.bin --seq-len 32 --global-batch 2 --steps 1 --dp 2 --json");
  ASSERT_EQ(good.status, 0) << good.err;
  EXPECT_EQ(json::parse(good.out).at("world"), 2);
  EXPECT_THAT(good.err, HasSubstr("process 0: cuboid: "));
  const std::string mark = "seed 90003";
  const Ended killed =
      shell_and_signal("$CUBOID launch --run --max-restarts 1 ", long_run("--dp 2 --" + mark), mark, 1, "KILL", 2);
  EXPECT_EQ(killed.status, 3) << killed.err;
  EXPECT_THAT(killed.err, AllOf(HasSubstr("restart 1 of 1"), HasSubstr("after 1 restart")));
  expect_nobody_left(mark);
  // A wrong request is not tried again.
  const Ended wrong = shell("$CUBOID launch --run --max-restarts 3 " + long_run("--dp 2 --global-batch 7"));
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.err, Not(HasSubstr("restart")));
}

TEST(Doctor, FactsAndWhatIsMissing) {
  const Ended ended = shell("$CUBOID doctor --json");
  ASSERT_EQ(ended.status, 0) << ended.err;
  const json found = json::parse(ended.out);
  EXPECT_GE(found.at("cores").at("physical").get<int>(), 1);
  EXPECT_GT(found.at("memory_bytes").get<std::int64_t>(), 1 << 28);
  EXPECT_THAT(found.at("mpi").at("mpirun").get<std::string>(), HasSubstr("Open MPI"));
  EXPECT_TRUE(found.at("mpi").at("built_in"));
  for (const auto& lack : found.at("missing")) EXPECT_FALSE(lack.at("command").get<std::string>().empty());
  EXPECT_THAT(found.at("mpi").at("transports").dump(), HasSubstr("btl tcp"));
  EXPECT_TRUE(found.at("links").at("between_devices").is_array());
  const std::string text = shell("$CUBOID doctor").out;
  EXPECT_THAT(text, AllOf(HasSubstr("float32 gemm"), HasSubstr("network cards"), Not(HasSubstr("{")),
                          Not(HasSubstr("_bytes"))));
}

}  // namespace
}  // namespace cuboid::test
