// Requests that are wrong: exit status 2, every reason in the message, nothing on standard output, nothing made.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/run_cuboid.h"

namespace cuboid::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

const std::string kOracle = CUBOID_TEST_DATA "/oracle/gpt2-tiny";
const std::string kCases = CUBOID_TEST_DATA "/cases";

// A small valid request; `more` follows it.
Words request(const Words& more) {
  Words words = {"train", "--model", kOracle, "--data", kOracle + "/tokens.bin", "--seq-len", "32", "--steps", "1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(Requests, HelpAndVersion) {
  for (const Words& words : std::vector<Words>{{"--help"}, {"-h"}, {"help"}}) {
    const Outcome outcome = run_cuboid(words);
    EXPECT_EQ(outcome.status, 0);
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("train"), HasSubstr("models"), HasSubstr("Exit status")));
    EXPECT_EQ(outcome.err, "");
  }
  for (const char* command : {"train", "models", "schedule"}) {
    const Outcome outcome = run_cuboid({command, "--help"});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_THAT(outcome.out, HasSubstr(std::string("Usage: cuboid ") + command));
    EXPECT_EQ(run_cuboid({"help", command}).out, outcome.out);
  }
  EXPECT_THAT(run_cuboid({"--version"}).out, ::testing::MatchesRegex("cuboid [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST(Requests, SamplesThatCannotBeMade) {
  expect_refused({"sample", "--prompt", "x"}, {"--from: give"});
  expect_refused({"sample", "--from", kCases, "--prompt", "x"}, {"--from " + kCases + ": holds neither"});
  expect_refused({"sample", "--from", kOracle, "--prompt", "x"}, {"--tokenizer: the model knows 500 tokens"});
  const Words sample = {"sample", "--from", kOracle, "--tokenizer", "bytes"};
  const auto with = [&](const Words& more) {
    Words words = sample;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  expect_refused(with({"--tp", "3", "--temperature", "-1", "--top-p", "0", "--tokens", "64"}),
                 {"--tp 3: 4 attention heads", "--temperature -1", "--top-p 0", "--prompt: gives no token"});
  expect_refused(with({"--prompt", "abc", "--tokens", "62"}), {"--tokens 62: the prompt's 3 tokens"});
}

TEST(Requests, UnknownCommandsAndFlagsNameTheNearest) {
  EXPECT_EQ(run_cuboid({}).status, 2);
  expect_refused({"trian"}, {"'trian' is no command; did you mean train?"});
  expect_refused({"models", "--modle", "gpt2"}, {"--modle: unknown flag; did you mean --model?"});
  expect_refused({"models", "--model", "gpt3"}, {"--model gpt3"});
  expect_refused(request({"--checkpoint-every", "5"}), {"--checkpoint-every 5: needs --out"});
  expect_refused(request({"--chekpoint-every", "5"}),
                 {"--chekpoint-every: unknown flag; did you mean --checkpoint-every?"});
}

TEST(Requests, AllReasonsOfAllKindsAtOnceAndNothingIsMade) {
  const fs::path folder = fresh_folder("refused");
  const std::string out = folder / "run";
  expect_refused(
      {"train",
       "--model",
       kOracle,
       "--tp",
       "3",
       "--pp",
       "5",
       "--dp",
       "2",
       "--global-batch",
       "7",
       "--seq-len",
       "65",
       "--sequence-parallel",
       "--lr",
       "fast",
       "--stpes",
       "3",
       "--data",
       "/no/such/file",
       "--weights",
       "/no/such/folder",
       "--out",
       out,
       "--dump-grads",
       "/no/such/folder/g.json"},
      {"--stpes: unknown flag; did you mean --steps?", "--lr fast: not a finite number",
       "--tp 3: 4 attention heads cannot be split over 3 ranks; use 1, 2 or 4",
       "--pp 5: 4 layers cannot fill 5 stages; use at most 4",
       "--seq-len 65: --sequence-parallel splits it over 3 ranks; use 63 or 66",
       "--seq-len 65: the model has a learned embedding for 64 positions; use at most 64",
       "--global-batch 7: must be a multiple of --dp 2 x --micro-batch 1 = 2; use 6 or 8", "--data /no/such/file",
       "/no/such/folder", "--dump-grads /no/such/folder/g.json: there is no folder /no/such/folder"});
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST(Requests, WhatIsMissing) {
  expect_refused({"train", "--model", "gtp2", "--steps", "1"}, {"--model gtp2", "--data: names no text or token file"});
  expect_refused({"train"}, {"--model: give a preset name", "--data: names no text or token file"});
  expect_refused({"train", "--model"}, {"--model: needs a value (M)"});
}

// On a machine with a GPU the request is right; then the driver is told to hide it.
TEST(Requests, GpuThatIsNotThere) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  expect_refused(request({"--device", "cuda", "--tp", "3"}), {"--device cuda: no GPU to use: ", "--tp 3: "});
  expect_refused({"bench", "step", "--device", "cuda", "--model", "gpt2", "--tp", "5", "--threads-per-rank", "2"},
                 {"--device cuda: no GPU to use: ", "--tp 5: ", "--threads-per-rank 2: with --device cuda"});
  for (const char* kind : {"gemm", "comm"})
    expect_refused({"bench", kind, "--device", "cuda"}, {"--device cuda: no GPU to use: "});
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(Requests, ModelThatCannotFitInMemory) {
  const std::string data = kOracle + "/tokens.bin";
  expect_refused({"train", "--model", "llama3.1-70b", "--dp", "1000", "--global-batch", "1000", "--data", data},
                 {"--model llama3.1-70b: the 1000 ranks here need 1 PiB for parameters, gradients and optimizer"});
  // 2 GB for each of 1000 replicas, but no more than 2 GB sharded over them (then only the output is wrong).
  Words words = {"train",
                 "--model",
                 "gpt2",
                 "--dp",
                 "1000",
                 "--seq-len",
                 "8",
                 "--data",
                 data,
                 "--global-batch",
                 "1000",
                 "--dump-grads",
                 "/no/such/folder/g.json"};
  EXPECT_THAT(run_cuboid(words).err, AllOf(HasSubstr("the 1000 ranks here need 1.95 TiB"), HasSubstr("--dump-grads"),
                                           HasSubstr("ranks 0-999")));
  words.insert(words.end(), {"--zero", "3"});
  EXPECT_THAT(run_cuboid(words).err, AllOf(HasSubstr("--dump-grads"), Not(HasSubstr("need"))));
}

TEST(Requests, MemoryLimit) {
  // 284,416 weights of the larger half of the oracle, and its first two layers: 16 bytes each.
  expect_refused(request({"--pp", "2", "--memory-limit", "1 MB"}), {"--memory-limit 977 KiB: rank "});
  expect_refused(request({"--memory-limit", "lots"}), {"--memory-limit lots: not a number of bytes"});
  expect_refused(request({"--memory-limit", "0"}), {"--memory-limit 0: must be from 1 byte"});
}

TEST(Requests, OutputThatCannotBeWritten) {
  const fs::path folder = fresh_folder("unwritable");
  std::ofstream(folder / "file") << "text";
  expect_refused(request({"--out", folder / "file" / "run"}), {"--out " + (folder / "file" / "run").string()});
  expect_refused(request({"--out", folder / "file"}), {"--out " + (folder / "file").string()});
  expect_refused(request({"--dump-grads", folder}), {"--dump-grads " + folder.string() + ": is a folder"});
  EXPECT_EQ(read_file(folder / "file"), "text");
  if (geteuid() != 0) {
    fs::permissions(folder, fs::perms::owner_read | fs::perms::owner_exec);
    expect_refused(request({"--out", folder / "run"}), {"--out " + (folder / "run").string()});
    fs::permissions(folder, fs::perms::owner_all);
  }
}

TEST(Requests, DataThatCannotBeTrainedOn) {
  const fs::path folder = fresh_folder("data");
  std::ofstream(folder / "empty.txt").flush();
  std::ofstream(folder / "short.txt") << "exactly thirty-two bytes of text";
  const auto with_data = [&](const std::string& path) {
    return Words{"train", "--model", "gpt2-nano", "--seq-len", "32", "--data", path};
  };
  expect_refused(with_data(folder / "empty.txt"), {"--data " + (folder / "empty.txt").string()});
  expect_refused(with_data(folder / "none"), {"--data " + (folder / "none").string()});
  EXPECT_THAT(run_cuboid(with_data(folder / "short.txt")).err, AllOf(HasSubstr("33"), HasSubstr("32")));
  for (const char* bad : {"llmc-bad-version", "llmc-eval-file-given-as-train", "nanogpt-199-bytes"}) {
    expect_refused(with_data(kCases + "/tokens/" + bad + ".bin"), {"--data " + kCases + "/tokens/" + bad});
  }
}

// A token outside the vocabulary is named in the same words whatever the grid.
TEST(Requests, TokenOutsideTheVocabulary) {
  const fs::path folder = fresh_folder("tokens");
  std::string tokens(2 * 40, '\0');
  tokens[2 * 37] = static_cast<char>(500 & 255);
  tokens[2 * 37 + 1] = static_cast<char>(500 >> 8);
  std::ofstream(folder / "t.bin", std::ios::binary) << tokens;
  std::string message;
  for (const char* tp : {"1", "2", "4"}) {
    const Outcome outcome = run_cuboid({"train", "--model", kOracle, "--seq-len", "32", "--global-batch", "1", "--tp",
                                        tp, "--data", folder / "t.bin"});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("500"), HasSubstr("37"), HasSubstr((folder / "t.bin").string())));
    if (message.empty()) message = outcome.err;
    EXPECT_EQ(outcome.err, message);
  }
}

TEST(Requests, FaultyModelsAndWeights) {
  expect_refused({"train", "--model", kCases + "/hf-config/bad-shapes.json", "--data", kOracle + "/tokens.bin"},
                 {kCases + "/hf-config/bad-shapes.json"});
  for (const char* bad : {"bad-duplicate-key", "bad-hole", "bad-header-length-past-eof"}) {
    expect_refused(request({"--weights", kCases + "/safetensors/" + bad + ".safetensors"}),
                   {kCases + "/safetensors/" + bad});
  }
  // Another model's weights: names and shapes do not fit, said before anything is allocated.
  expect_refused(request({"--weights", CUBOID_TEST_DATA "/oracle/llama-tiny"}), {});
}

TEST(Requests, RunFile) {
  const fs::path folder = fresh_folder("run-file");
  std::ofstream(folder / "bad.toml") << "stesp = 3\ntp = \"two\"\n";
  const Outcome outcome = run_cuboid(request({"--config", folder / "bad.toml"}));
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("stesp"), HasSubstr("tp"), HasSubstr((folder / "bad.toml").string())));
  expect_refused(request({"--config", folder / "none.toml"}), {(folder / "none.toml").string()});
}

TEST(Requests, FullStandardOutputIsAFailure) {
  EXPECT_EQ(run_cuboid({"models"}, {.standard_output = "/dev/full"}).status, 3);
}

}  // namespace
}  // namespace cuboid::test
