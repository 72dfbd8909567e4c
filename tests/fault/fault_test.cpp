// Nothing is lost: runs that are killed at any moment, run out of disk, meet remains of others, or are told to stop.
#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <random>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/run_cuboid.h"

namespace cuboid::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;
using std::chrono::milliseconds;

const std::string kOracle = CUBOID_TEST_DATA "/oracle/llama-odd";

// A run of a few steps that saves every second one; `more` follows.
Words run_into(const fs::path& out, const Words& more, const std::string& every = "2") {
  Words words = {"train",
                 "--model",
                 kOracle,
                 "--data",
                 kOracle + "/tokens.bin",
                 "--seq-len",
                 "16",
                 "--global-batch",
                 "4",
                 "--checkpoint-every",
                 every,
                 "--out",
                 out,
                 "--resume",
                 "auto",
                 "--json"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// A run in the background.
class Process {
 public:
  Process(const Words& words, const fs::path& errors, rlim_t largest_file = RLIM_INFINITY) : errors_(errors) {
    std::vector<char*> arguments = {const_cast<char*>("cuboid")};
    for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    child_ = fork();
    if (child_ != 0) return;
    const int null = open("/dev/null", O_RDWR);
    const int err = open(errors.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    const rlimit limit = {largest_file, largest_file};
    setrlimit(RLIMIT_FSIZE, &limit);
    execv(CUBOID_PROGRAM, arguments.data());
    _exit(127);
  }
  ~Process() {
    if (child_ > 0) wait_killed();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number) const { kill(child_, number); }
  /// Exit status; 128 + signal.
  int wait() {
    int status = 0;
    waitpid(std::exchange(child_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  int wait_killed() {
    signal(SIGKILL);
    return wait();
  }
  /// What it has printed; empty before it has started to.
  std::string errors() const { return fs::exists(errors_) ? read_file(errors_) : std::string(); }
  /// Waits until the words appear on standard error. False: they have not after a long time.
  bool await(const std::string& words) const {
    for (int i = 0; i < 6000; ++i) {
      if (errors().find(words) != std::string::npos) return true;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return false;
  }

 private:
  fs::path errors_;
  pid_t child_ = -1;
};

json finished(const Words& words) {
  const Outcome outcome = run_cuboid(words);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return outcome.status == 0 ? json::parse(outcome.out) : json();
}

int announced_step(const std::string& errors) {
  const std::string words = "checkpoint after step ";
  const auto at = errors.rfind(words);
  return at == std::string::npos ? 0 : std::stoi(errors.substr(at + words.size()));
}

std::vector<std::string> entries(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// Kills a run again and again, each time at a random moment, until it has finished.
void kill_until_finished(const Words& grid, int kills, unsigned seed) {
  std::mt19937 random(seed);
  Words words = {"--steps", "12", "--keep", "2"};
  words.insert(words.end(), grid.begin(), grid.end());
  const fs::path folder = fresh_folder("kill");
  const auto begin = std::chrono::steady_clock::now();
  const json whole = finished(run_into(folder / "whole", words));
  const auto duration = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin).count();
  std::uniform_int_distribution<long> moment(0, duration);
  int run = 0;
  int killed = 0;
  while (killed < kills) {
    const fs::path out = folder / ("run-" + std::to_string(run++));
    const fs::path errors = folder / "errors";
    for (bool done = false; !done && killed < kills;) {
      Process process(run_into(out, words), errors);
      std::this_thread::sleep_for(milliseconds(moment(random)));
      const int status = process.wait_killed();
      ASSERT_TRUE(status == 0 || status == 128 + SIGKILL) << process.errors();
      done = status == 0;
      if (done) break;
      ++killed;
      // What had been announced is there, or something later, and whole.
      const int announced = announced_step(process.errors());
      const Outcome verified = run_cuboid({"checkpoint", "verify", out});
      if (announced > 0) {
        ASSERT_EQ(verified.status, 0) << verified.err;
      }
    }
    const json result = finished(run_into(out, words));
    ASSERT_EQ(result["weights_hash"], whole["weights_hash"]);
    ASSERT_GE(result["first_step"], announced_step(fs::exists(errors) ? read_file(errors) : std::string()));
    EXPECT_THAT(entries(out / "checkpoints"), ::testing::ElementsAre("latest", "step_00000010", "step_00000012"));
    const auto lines = read_json_lines(out / "metrics.jsonl");
    ASSERT_EQ(lines.size(), 12U);  // each step once, although some were done twice
    for (std::size_t s = 0; s < lines.size(); ++s) EXPECT_EQ(lines[s]["step"], s);
    fs::remove(errors);
  }
}

// A run may be killed after its last checkpoint is visible and before it has removed an older one.
TEST(Fault, ARunWithNothingLeftToDoRemovesWhatAKilledOneLeft) {
  const fs::path out = fresh_folder("left");
  const Words words = run_into(out, {"--steps", "4", "--keep", "1"});
  finished(words);
  const fs::path checkpoints = out / "checkpoints";
  fs::copy(checkpoints / "step_00000004", checkpoints / "step_00000002", fs::copy_options::recursive);
  finished(words);
  EXPECT_THAT(entries(checkpoints), ::testing::ElementsAre("latest", "step_00000004"));
}

TEST(Fault, KilledRunsGoOnFromACompleteCheckpoint) {
  kill_until_finished({"--pp", "2"}, 8, 1);
}
TEST(Fault, KilledRunsThatSaveInTheBackgroundGoOn) {
  kill_until_finished({"--dp", "2", "--zero", "1", "--async-save"}, 8, 2);
}
// Takes minutes: for whoever changes how checkpoints are written.
TEST(Fault, DISABLED_KilledTwoHundredTimes) {
  kill_until_finished({"--tp", "2", "--dp", "2"}, 100, 3);
  kill_until_finished({"--pp", "2", "--dp", "2", "--zero", "2", "--async-save"}, 100, 4);
}

TEST(Fault, FullDiskLeavesTheOldCheckpointAndNoRemains) {
  for (const Words& more : {Words{"--pp", "2"}, Words{"--pp", "2", "--async-save"}}) {
    const fs::path folder = fresh_folder("full");
    Words words = {"--steps", "2"};
    words.insert(words.end(), more.begin(), more.end());
    finished(run_into(folder, words));
    const std::string before = read_file(folder / "checkpoints" / "latest" / "index.json");
    words[1] = "6";
    // Files may not grow beyond a part of a rank's shard.
    Process process(run_into(folder, words), folder / "errors", 200'000);
    EXPECT_EQ(process.wait(), 3);
    EXPECT_THAT(process.errors(), HasSubstr("error: rank "));
    EXPECT_THAT(process.errors(), HasSubstr("step_00000004.tmp/rank_0000"));
    EXPECT_THAT(process.errors(), HasSubstr("cannot be written: File too large"));
    EXPECT_THAT(entries(folder / "checkpoints"), ::testing::ElementsAre("latest", "step_00000002"));
    EXPECT_EQ(read_file(folder / "checkpoints" / "latest" / "index.json"), before);
    EXPECT_EQ(finished(run_into(folder, words))["first_step"], 2);
  }
}

TEST(Fault, RemainsOfAnInterruptedSaveAreRemoved) {
  const fs::path folder = fresh_folder("remains");
  fs::create_directories(folder / "checkpoints" / "step_00000002.tmp");
  std::ofstream(folder / "checkpoints" / "step_00000002.tmp" / "rank_00007.safetensors") << "half";
  fs::create_directories(folder / "checkpoints" / "step_00000004.removed.tmp");
  const json result = finished(run_into(folder, {"--steps", "4", "--dp", "2"}));
  EXPECT_EQ(result["first_step"], 0);
  EXPECT_THAT(entries(folder / "checkpoints"), ::testing::ElementsAre("latest", "step_00000002", "step_00000004"));
  EXPECT_EQ(entries(folder / "checkpoints" / "step_00000002"),
            (Words{"config.json", "index.json", "rank_00000.safetensors", "rank_00001.safetensors", "run.toml"}));
}

TEST(Fault, AFolderThatCannotBeWrittenIsNamed) {
  const fs::path folder = fresh_folder("readonly");
  std::ofstream(folder / "checkpoints") << "a file where the folder should be";
  const Outcome outcome = run_cuboid(run_into(folder, {"--steps", "2", "--dp", "2"}));
  EXPECT_EQ(outcome.status, 3);
  EXPECT_THAT(outcome.err, HasSubstr((folder / "checkpoints").string()));
  EXPECT_THAT(outcome.err, HasSubstr("Not a directory"));
}

TEST(Fault, TwoRunsOnOneFolderAreRefused) {
  const fs::path folder = fresh_folder("lock");
  Process first(run_into(folder, {"--steps", "100000"}), folder / "errors");
  ASSERT_TRUE(first.await("checkpoint after step 2:")) << first.errors();
  const Outcome second = run_cuboid(run_into(folder, {"--steps", "4"}));
  EXPECT_EQ(second.status, 2);
  EXPECT_THAT(second.err, HasSubstr(folder.string() + ": the folder is in use by another run: process "));
  first.wait_killed();
  EXPECT_GE(finished(run_into(folder, {"--steps", "4"}))["first_step"], 2);  // the lock ends with its process
}

TEST(Fault, SignalsSaveAtTheNextStepAndEndWell) {
  for (const int number : {SIGTERM, SIGUSR1}) {
    const fs::path folder = fresh_folder("signal");
    Process stopped(run_into(folder, {"--steps", "100000", "--pp", "2"}, "1000000"), folder / "errors");
    ASSERT_TRUE(stopped.await("1f1b with")) << stopped.errors();
    std::this_thread::sleep_for(milliseconds(100));
    stopped.signal(number);
    EXPECT_EQ(stopped.wait(), 0) << stopped.errors();
    EXPECT_THAT(stopped.errors(), HasSubstr(number == SIGTERM ? " by SIGTERM" : " by SIGUSR1"));
    const int step = announced_step(stopped.errors());
    EXPECT_GT(step, 0);
    EXPECT_EQ(read_json_lines(folder / "metrics.jsonl").size(), static_cast<std::size_t>(step));
  }
}

TEST(Fault, ASecondSigtermEndsAtOnce) {
  const fs::path folder = fresh_folder("second");
  // One step takes far longer than the test.
  Process process({"train", "--model", "gpt2", "--data", kOracle + "/tokens.bin", "--seq-len", "512", "--global-batch",
                   "64", "--steps", "2", "--out", folder},
                  folder / "errors");
  ASSERT_TRUE(process.await("samples of 512 tokens"));
  std::this_thread::sleep_for(milliseconds(100));
  process.signal(SIGTERM);
  std::this_thread::sleep_for(milliseconds(100));
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 128 + SIGTERM);
}

TEST(Fault, TimeLimitSavesAndEndsWell) {
  const fs::path folder = fresh_folder("seconds");
  const json result = finished(run_into(folder, {"--steps", "1000000", "--max-seconds", "0.5", "--keep", "1"}));
  EXPECT_EQ(result["stopped"], true);
  EXPECT_GT(result["steps"], 0);
  const json resumed = finished({"train", "--resume", folder, "--max-seconds", "0.1", "--json"});
  EXPECT_EQ(resumed["first_step"], result["steps"]);  // all other settings are the stored run's
}

TEST(Fault, WhatDiffersFromTheStoredRunIsSaid) {
  const fs::path folder = fresh_folder("differs");
  finished(run_into(folder, {"--steps", "2"}));
  const Outcome outcome =
      run_cuboid(run_into(folder, {"--steps", "3", "--lr", "0.5", "--tp", "2", "--micro-batch", "2"}));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("differs from the stored run: lr = 0.5 (stored: 0.001)"));
  EXPECT_THAT(outcome.err, HasSubstr("differs from the stored run: steps = 3 (stored: 2)"));
  EXPECT_THAT(outcome.err, HasSubstr("laid out differently from the stored run: tp = 2 (stored: 1), micro-batch = 2"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("differs from the stored run: out")));
  EXPECT_EQ(json::parse(outcome.out)["steps"], 3);
}

}  // namespace
}  // namespace cuboid::test
