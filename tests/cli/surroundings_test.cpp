// The program where things are not as usual: streams closed, narrow pages, files that cannot be made, contradictions.
#include <algorithm>
#include <cstdio>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "cli/run_cuboid.h"

namespace cuboid::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

const std::string kOracle = CUBOID_TEST_DATA "/oracle/gpt2-tiny";

Words train(const Words& more) {
  Words words = {"train", "--model", kOracle, "--data", kOracle + "/tokens.bin", "--seq-len", "16", "--steps", "2"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

json document_of(const Words& words) {
  const Outcome outcome = run_cuboid(words);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return json::parse(outcome.out);
}

struct Ended {
  int status = -1;
  std::string out;
};

// The program as a shell starts it: redirections behind its words, variables before it.
Ended shell(const std::string& words, const std::string& variables = "unset COLUMNS; ") {
  Ended ended;
  std::FILE* pipe = popen((variables + CUBOID_PROGRAM " " + words).c_str(), "r");
  if (pipe == nullptr) return ended;
  char block[4096];
  for (std::size_t n; (n = std::fread(block, 1, sizeof block, pipe)) > 0;) ended.out.append(block, n);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) ended.status = WEXITSTATUS(status);
  return ended;
}

std::size_t longest_line(const std::string& text) {
  std::size_t longest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  return longest;
}

// The next file that a program opens gets the lowest free number: without care messages would go into it.
TEST(Surroundings, ClosedStreamsAreNoFiles) {
  const fs::path folder = fresh_folder("closed");
  const std::string text = kOracle + "/config.json";
  int set = 0;
  for (const auto& [closed, status] : {std::pair{"2>&-", 0}, {"1>&-", 3}, {"0<&- 1>&- 2>&-", 3}}) {
    const std::string prefix = folder / std::to_string(set++);
    EXPECT_EQ(shell("data build " + text + " --out " + prefix + " " + closed).status, status) << closed;
    EXPECT_EQ(document_of({"data", "inspect", prefix, "--json"}).at("tokens"), fs::file_size(text));
  }
}

TEST(Surroundings, HelpAndPicturesKeepToThePage) {
  EXPECT_LE(longest_line(shell("sample --help", "COLUMNS=72 ").out), 72U);
  EXPECT_GT(longest_line(shell("sample --help").out), 72U);
  const std::string picture = "schedule --pp 3 --micro-batches 9";
  const std::string wide = shell(picture).out;
  const std::string narrow = shell(picture, "COLUMNS=48 ").out;
  EXPECT_GT(longest_line(wide), 100U);
  EXPECT_LE(longest_line(narrow), 48U);
  // Nothing is lost.
  for (const char* part : {"2B8", "idle", "makespan 33"}) {
    EXPECT_THAT(wide, HasSubstr(part));
    EXPECT_THAT(narrow, HasSubstr(part));
  }
  const auto actions = [](const std::string& all) { return std::count(all.begin(), all.end(), 'B'); };
  EXPECT_EQ(actions(narrow), actions(wide));
}

TEST(Surroundings, HelpGoesToStandardErrorWhereItWasNotAskedFor) {
  const Outcome outcome = run_cuboid({});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("Commands:"), HasSubstr("no command given")));
  expect_refused({"help", "train", "plan"}, {"help train: name one command"});
}

TEST(Surroundings, FilesThatCannotBeMadeAreNoticedBeforeTheWork) {
  const fs::path folder = fresh_folder("made");
  const std::string missing = folder / "none" / "file";
  const Words run = {"simulate", "--model", "gpt2-nano", "--cluster", "cpu-local"};
  Words words = run;
  words.insert(words.end(), {"--html", missing, "--svg", folder});
  expect_refused(words, {"--html " + missing + ": there is no folder", "--svg " + folder.string() + ": is a folder"});
  expect_refused({"bench", "comm", "--svg", missing, "--save", folder},
                 {"--svg " + missing, "--save " + folder.string() + ": is a folder"});
  expect_refused({"bench", "gemm", "--save", missing}, {"--save " + missing});
  expect_refused({"bench", "step", "--save", missing}, {"--save " + missing});
  expect_refused({"bench", "map", "--tp", "2", "--svg", missing}, {"--svg " + missing});
  expect_refused({"data", "build", kOracle + "/config.json", "--out", missing},
                 {"--out " + missing + ".bin: there is"});
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST(Surroundings, AllReasonsOfEveryCommand) {
  expect_refused({"simulate", "--model", "llama3-8b", "--cluster", "dgx", "--tp", "3", "--zero", "9", "--dp", "2",
                  "--global-batch", "7"},
                 {"--zero 9: ", "--tp 3: 32 attention heads", "--global-batch 7: ", "--cluster dgx: "});
  expect_refused({"topo", "--from", "dgx", "--grid", "tp=2,xp=2", "--nodes", "0x2"},
                 {"--nodes 0x2: ", "--grid tp=2,xp=2: 'xp=2' is not tp=N", "--from dgx: "});
  expect_refused({"topo", "--from", "dgx-a100", "--grid", "tp=16", "--nodes", "1"},
                 {"--grid tp=16: needs 16 devices, dgx-a100 has 8"});
  expect_refused({"bench", "step", "--rounds", "0", "--model", "gpt2", "--tp", "5", "--seq-len", "2000"},
                 {"--rounds 0: ", "--tp 5: ", "--seq-len 2000: "});
  expect_refused({"bench", "comm", "--tp", "100000"}, {"the grid has 100000 ranks; one process runs at most 1024"});
  expect_refused({"bench", "comm", "--ops", "gather", "--min-bytes", "2 PB"},
                 {"--ops gather: 'gather' is not one of all_reduce, ", "--min-bytes 2 PB: "});
  expect_refused({"bench", "gemm", "--model", "gpt2-nano", "--tp", "3"}, {"--tp 3: 4 attention heads"});
  expect_refused({"topo", "--from", "dgx-a100", "--grid", "tp=2", "--traffic", "tp=shout:1"},
                 {"--traffic 'tp=shout:1' is not AXIS=OPERATION"});
  expect_refused({"bench", "gemm", "--shapes", "8,8"}, {"--shapes 8,8: '8,8' is not M,N,K"});
  expect_refused({"sample", "--from", kOracle, "--tokenizer", "bytes", "--temperature", "warm", "--tp", "3"},
                 {"--temperature warm: ", "--prompt: give the text", "--tp 3: "});
}

TEST(Surroundings, NothingIsParsedAndIgnored) {
  expect_refused(train({"--keep", "3", "--async-save"}), {"--keep 3: ", "--async-save: "});
  expect_refused(train({"--ranks-per-process", "5"}), {"--ranks-per-process 5: without mpirun or srun"});
  expect_refused({"schedule", "--json", "--format", "svg"}, {"--format svg: --json asks for another"});
  expect_refused({"topo", "--json", "--format", "text"}, {"--format text: --json asks for another"});
  expect_refused({"topo", "--json", "--emit", "toml"}, {"--json: --emit toml prints that and no report"});
  expect_refused({"checkpoint", "inspect", kOracle, "--file-bytes", "7"}, {"--file-bytes: checkpoint inspect writes"});
  expect_refused({"data", "inspect", kOracle + "/tokens.bin", "--out", "x", "--threads", "3"},
                 {"--out: says nothing to data inspect", "--threads: says nothing to data inspect"});
  expect_refused({"data", "build", kOracle, "--out", "x", "--data-format", "text", "--end-of-document"},
                 {"--data-format: says nothing to data build", "--end-of-document: bytes have no end token"});
  expect_refused({"data", "build", kOracle + "/config.json", "--out", "x", "--vocab-size", "255"},
                 {"--vocab-size 255: the tokenizer bytes makes ids up to 255"});
  expect_refused({"launch", "--max-restarts", "2", "--image", "i", "--slots", "3", "train"},
                 {"--max-restarts: only --run", "--image: only --form kubernetes", "--slots: are those of --hosts"});
  expect_refused({"simulate", "--validate", kOracle + "/config.json", "--tp", "3", "--html", "x"},
                 {"--tp: --validate takes models and grids", "--html: is a report on one run"});
  const json limited =
      document_of({"simulate", "--model", "gpt2", "--cluster", "dgx-a100", "--memory-limit", "1 GiB", "--json"});
  EXPECT_FALSE(limited.at("feasible"));
  EXPECT_THAT(limited.at("reasons").dump(), HasSubstr("1 GiB"));
}

// What a file would have said is unknown, not missing.
TEST(Surroundings, AFileThatCannotBeReadIsTheOnlyReason) {
  for (const char* flag : {"--config", "--resume"}) {
    const Outcome outcome = run_cuboid({"train", flag, "/no/such/run"});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("/no/such/run"), Not(HasSubstr("--model")), Not(HasSubstr("--data"))));
  }
}

TEST(Surroundings, MachinesGetWholeNumbersAndADocumentOfEveryCommand) {
  const fs::path folder = fresh_folder("documents");
  const json comm = document_of({"bench", "comm", "--tp", "2", "--min-bytes", "64", "--max-bytes", "64", "--seconds",
                                 "0.001", "--ops", "send", "--json"});
  EXPECT_TRUE(comm.at("results").at(0).at("bytes").is_number_integer());
  EXPECT_EQ(comm.at("results").at(0).at("bytes"), 64);
  const json model = document_of({"models", "--model", "gpt2-nano", "--json"});
  EXPECT_TRUE(model.at("flops_per_token").at("training").is_number_integer());
  EXPECT_EQ(run_cuboid(train({"--out", folder / "run", "--checkpoint-every", "2"})).status, 0);
  const json converted = document_of({"checkpoint", "to-hf", folder / "run", folder / "hf", "--json"});
  EXPECT_EQ(converted.at("path"), (folder / "hf").string());
  EXPECT_GE(converted.at("files").get<int>(), 2);
  EXPECT_GT(converted.at("bytes").get<std::int64_t>(), 4 * 236160);
  const std::string inspected = run_cuboid({"checkpoint", "inspect", folder / "run"}).out;
  EXPECT_THAT(inspected, AllOf(HasSubstr("grid              tp 1, cp 1"), HasSubstr("optimizer steps"),
                               HasSubstr("MiB)"), Not(HasSubstr("{"))));
  const json built = document_of({"data", "build", kOracle + "/config.json", "--out", folder / "set", "--seq-len", "7",
                                  "--vocab-size", "256", "--json"});
  EXPECT_EQ(built.at("samples").get<int>(), (built.at("tokens").get<int>() - 1) / 7);
}

}  // namespace
}  // namespace cuboid::test
