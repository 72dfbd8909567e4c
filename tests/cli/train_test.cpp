// Training through the command line: the oracle's numbers, the files and documents that a run leaves, and that a run is
// repeated by its run.toml.
#include <cmath>
#include <fstream>
#include <set>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "cli/run_cuboid.h"

namespace cuboid::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

constexpr int kSteps = 20;

std::string oracle(const std::string& model) {
  return CUBOID_TEST_DATA "/oracle/" + model;
}

json expected(const std::string& model) {
  return json::parse(read_file(oracle(model) + "/expected.json"));
}

// The oracle's training run; `more` follows.
Words oracle_run(const std::string& model, const Words& more) {
  const json o = expected(model)["training"]["optimizer"];
  const auto number = [&](const char* key) { return o.at(key).dump(); };
  Words words = {"train",
                 "--model",
                 oracle(model),
                 "--weights",
                 oracle(model),
                 "--data",
                 oracle(model) + "/tokens.bin",
                 "--seq-len",
                 "32",
                 "--global-batch",
                 "8",
                 "--steps",
                 std::to_string(kSteps),
                 "--lr",
                 number("lr"),
                 "--beta1",
                 number("beta1"),
                 "--beta2",
                 number("beta2"),
                 "--eps",
                 number("eps"),
                 "--weight-decay",
                 number("weight_decay"),
                 "--json"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

json trained(const Words& words, const Surroundings& surroundings = {}) {
  const Outcome outcome = run_cuboid(words, surroundings);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return json::parse(outcome.out);  // one document and nothing else, or this throws
}

void expect_near_relative(double value, double wanted, double tolerance, const std::string& what) {
  EXPECT_LE(std::abs(value - wanted), tolerance * std::abs(wanted)) << what << ": " << value << ", wanted " << wanted;
}

TEST(Train, FollowsTheOracleAndReportsIt) {
  const fs::path folder = fresh_folder("oracle");
  const std::string out = folder / "a" / "run";  // folders are made as needed
  const json result = trained(oracle_run("gpt2-tiny", {"--tp", "2", "--pp", "2", "--dp", "2", "--micro-batch", "2",
                                                       "--out", out, "--dump-grads", folder / "grads.json"}));
  EXPECT_EQ(result["steps"], kSteps);
  EXPECT_EQ(result["world"], 8);
  // Embeddings (500 + 64)·64, four layers of 12·64² + 13·64, final norm 2·64.
  EXPECT_EQ(result["params"], 564 * 64 + 4 * (12 * 64 * 64 + 13 * 64) + 128);
  EXPECT_EQ(result["grid"], json::parse(R"({"tp":2,"cp":1,"ep":1,"dp":2,"pp":2,"order":"tp-cp-ep-dp-pp"})"));
  EXPECT_EQ(result["stage_layers"], json({2, 2}));
  // Two micro-batches on two stages: (p-1)/(m+p-1) = 1/3 were the stages equal; head and embedding make them unequal.
  EXPECT_GT(result["predicted_bubble_fraction"], 1.0 / 3);
  EXPECT_LT(result["predicted_bubble_fraction"], 0.5);
  EXPECT_GT(result["tokens_per_second"], 0);
  EXPECT_GT(result["step_seconds"], 0);
  EXPECT_EQ(result["predicted_cluster"], "cpu-local");
  double causes = 0;
  for (const auto& [cause, seconds] : result["predicted_seconds"].items()) causes += seconds.get<double>();
  EXPECT_GT(causes, 0);
  expect_near_relative(causes, result["predicted_step_seconds"], 1e-9, "causes of the step");
  EXPECT_THAT(result["weights_hash"].get<std::string>(), ::testing::MatchesRegex("[0-9a-f]{16}"));

  const json wanted = expected("gpt2-tiny");
  const auto lines = read_json_lines(fs::path(out) / "metrics.jsonl");
  ASSERT_EQ(lines.size(), static_cast<std::size_t>(kSteps));
  for (int s = 0; s < kSteps; ++s) {
    const json& line = lines[static_cast<std::size_t>(s)];
    EXPECT_EQ(line["step"], s);
    EXPECT_EQ(line["tokens"], 8 * 32);
    expect_near_relative(line["loss"], wanted["training"]["loss"][s], 1e-5, "loss of step " + std::to_string(s));
    expect_near_relative(line["grad_norm"], wanted["training"]["grad_norm"][s], 1e-4,
                         "norm of step " + std::to_string(s));
    EXPECT_GT(line["step_seconds"], 0);
    EXPECT_GE(line["bubble_fraction"], 0);
    EXPECT_LT(line["bubble_fraction"], 1);
    for (const char* category : {"parameters", "gradients", "optimizer", "activations"}) {
      EXPECT_GT(line["peak_bytes"][category], 0) << category;
    }
  }
  EXPECT_EQ(lines.back()["loss"], result["final_loss"]);

  const json norms = wanted["first_batch"]["grad_norms"];
  const json dumped = json::parse(read_file(folder / "grads.json"));
  EXPECT_EQ(dumped.size(), norms.size());
  for (const auto& [name, norm] : norms.items()) {
    // A key bias has no gradient but rounding; c_attn's bias still has those of query and value.
    expect_near_relative(dumped.at(name), norm, 1e-4, name);
  }
}

// Law 1 from outside: pipeline degree, schedule and rank order change no bit, dropout on; tp and dp only rounding.
TEST(Train, WhatIsLearnedDoesNotDependOnTheGrid) {
  const Words base = {"--dropout", "0.1", "--micro-batch", "2", "--seed", "5"};
  const auto run = [&](Words grid) {
    grid.insert(grid.end(), base.begin(), base.end());
    return trained(oracle_run("llama-odd", grid));
  };
  const json one = run({});
  const std::string hash = one["weights_hash"];
  EXPECT_EQ(run({"--pp", "3"})["weights_hash"], hash);
  EXPECT_EQ(run({"--pp", "2", "--schedule", "gpipe"})["weights_hash"], hash);
  const json wide = run({"--tp", "2", "--dp", "2", "--pp", "2", "--sequence-parallel"});
  EXPECT_EQ(run({"--tp", "2", "--dp", "2", "--pp", "2", "--sequence-parallel", "--order", "pp-dp-tp"})["weights_hash"],
            wide["weights_hash"]);
  expect_near_relative(wide["final_loss"], one["final_loss"], 1e-5, "loss on 2x2x2");
  EXPECT_EQ(run({"--pp", "2", "--stage-layers", "4,1"})["weights_hash"], hash);
}

TEST(Train, RunFileRepeatsTheRunFromAnyFolder) {
  const fs::path folder = fresh_folder("repeat");
  fs::copy_file(oracle("gpt2-tiny") + "/tokens.bin", folder / "tokens.bin");
  fs::create_directories(folder / "elsewhere");
  const Words words = {"train",
                       "--model",
                       oracle("gpt2-tiny"),
                       "--data",
                       "tokens.bin",
                       "--seq-len",
                       "16",
                       "--global-batch",
                       "6",
                       "--micro-batch",
                       "3",
                       "--steps",
                       "4",
                       "--pp",
                       "2",
                       "--lr",
                       "0.0123456789",
                       "--dropout",
                       "0.1",
                       "--json",
                       "--out",
                       "first",
                       "--timeline"};
  const json first = trained(words, {.folder = folder});
  const json again = trained({"train", "--config", folder / "first" / "run.toml", "--out", "again", "--json"},
                             {.folder = folder / "elsewhere"});
  EXPECT_EQ(again["weights_hash"], first["weights_hash"]);
  const auto a = read_json_lines(folder / "first" / "metrics.jsonl");
  const auto b = read_json_lines(folder / "elsewhere" / "again" / "metrics.jsonl");
  ASSERT_EQ(a.size(), 4U);
  ASSERT_EQ(b.size(), 4U);
  for (std::size_t s = 0; s < 4; ++s) {
    for (const char* key : {"loss", "grad_norm", "lr"}) EXPECT_EQ(a[s][key], b[s][key]) << key << " of step " << s;
  }
  const json other =
      trained({"train", "--config", folder / "first" / "run.toml", "--seed", "1", "--out", "other", "--json"},
              {.folder = folder / "elsewhere"});
  EXPECT_NE(other["weights_hash"], first["weights_hash"]);  // flags override the file
}

TEST(Train, TimelineHasALaneForEveryRankAndEveryAction) {
  const fs::path folder = fresh_folder("timeline");
  trained({"train", "--model", oracle("gpt2-tiny"), "--data", oracle("gpt2-tiny") + "/tokens.bin", "--seq-len", "16",
           "--global-batch", "6", "--steps", "2", "--pp", "2", "--dp", "2", "--json", "--timeline", "--out", folder});
  const json timeline = json::parse(read_file(folder / "timeline.json"));
  const json& events = timeline.is_array() ? timeline : timeline.at("traceEvents");
  std::set<std::pair<json, json>> lanes;
  int forwards = 0;
  for (const json& event : events) {
    if (event.at("ph") != "X") continue;
    lanes.emplace(event.at("pid"), event.at("tid"));
    EXPECT_GE(event.at("dur").get<double>(), 0);
    if (const std::string name = event.at("name"); name.find('F') != std::string::npos &&
                                                   name.find("SEND") == std::string::npos &&
                                                   name.find("RECV") == std::string::npos) {
      ++forwards;
    }
  }
  EXPECT_EQ(lanes.size(), 4U);
  EXPECT_EQ(forwards, 2 * 4 * 3);  // steps x ranks x micro-batches
}

TEST(Train, ValidationIsReported) {
  const Outcome outcome =
      run_cuboid({"train", "--model", oracle("gpt2-tiny"), "--data", oracle("gpt2-tiny") + "/tokens.bin", "--seq-len",
                  "16", "--steps", "20", "--validation-fraction", "0.01", "--eval-every", "10", "--lr", "0.01"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("step 10: validation loss "));
  EXPECT_THAT(outcome.err, HasSubstr("step 20: validation loss "));
  EXPECT_THAT(outcome.err, HasSubstr("step 14/20: loss "));  // a line every tenth of the steps
  EXPECT_THAT(outcome.err, Not(HasSubstr("step 15/20: loss ")));
  EXPECT_THAT(outcome.err, Not(HasSubstr("\r")));  // no bar without a terminal
  EXPECT_THAT(outcome.out, HasSubstr("validation loss   "));
  EXPECT_THAT(outcome.out, HasSubstr("weights hash      "));
}

// On a terminal: a line redrawn in place, and messages on lines of their own.
TEST(Train, ProgressBarOnATerminal) {
  constexpr int kColumns = 72;
  const Outcome outcome =
      run_cuboid({"train", "--model", oracle("gpt2-tiny"), "--data", oracle("gpt2-tiny") + "/tokens.bin", "--seq-len",
                  "16", "--steps", "8", "--validation-fraction", "0.01", "--eval-every", "4"},
                 {.terminal_columns = kColumns});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("\r\x1b[Kcuboid: step 4: validation loss "));
  EXPECT_THAT(outcome.err, HasSubstr("8/8 \x1b[36m━"));
  EXPECT_THAT(outcome.err, HasSubstr("  in 0:0"));
  EXPECT_THAT(outcome.err, ::testing::EndsWith("\n"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("step 8/8: loss")));
}

// What the run chose, why, and what it cost: said before the first step, and in the document.
TEST(Train, AutoSaysWhatItChose) {
  const Words words = {"train",
                       "--model",
                       oracle("gpt2-tiny"),
                       "--data",
                       oracle("gpt2-tiny") + "/tokens.bin",
                       "--seq-len",
                       "16",
                       "--steps",
                       "3",
                       "--pp",
                       "2",
                       "--schedule",
                       "auto",
                       "--balance",
                       "measured",
                       "--max-activations",
                       "2",
                       "--json"};
  const Outcome outcome = run_cuboid(words);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("measured in a profile"));
  EXPECT_THAT(outcome.err, HasSubstr("auto: found from "));
  const json result = json::parse(outcome.out);
  EXPECT_EQ(result["stage_work"].size(), 2U);
  EXPECT_EQ(result["stage_work_unit"], "s");
  const double bound = result["auto"]["lower_bound"];
  EXPECT_LE(bound * (1 - 1e-9), result["auto"]["makespan"].get<double>());  // sums in another order
  EXPECT_LE(result["auto"]["makespan"], result["auto"]["best_named_makespan"]);
  for (const char* bubble : {"bubble_fraction", "schedule_bubble_fraction", "predicted_bubble_fraction"}) {
    EXPECT_GT(result[bubble], 0) << bubble;
    EXPECT_LT(result[bubble], 1) << bubble;
  }
}

// ---------------------------------------------------------------- memory

TEST(Train, MemoryOfEveryRankIsReported) {
  const fs::path folder = fresh_folder("memory");
  const Words words = {"train",
                       "--model",
                       oracle("gpt2-tiny"),
                       "--data",
                       oracle("gpt2-tiny") + "/tokens.bin",
                       "--pp",
                       "2",
                       "--dp",
                       "2",
                       "--seq-len",
                       "16",
                       "--steps",
                       "2",
                       "--out",
                       folder};
  Words for_machines = words;
  for_machines.push_back("--json");
  const json result = trained(for_machines);
  const json& ranks = result["rank_peak_bytes"];
  for (const char* category : {"parameters", "gradients", "optimizer", "activations", "communication", "total"}) {
    ASSERT_EQ(ranks[category].size(), 4U) << category;
    for (const json& bytes : ranks[category]) EXPECT_GT(bytes, 0) << category;
  }
  EXPECT_NE(ranks["parameters"][0], ranks["parameters"][2]);  // the second stage has the head
  const json line = read_json_lines(folder / "metrics.jsonl").back();
  EXPECT_EQ(line["rank_peak_bytes"]["optimizer"], ranks["optimizer"]);
  EXPECT_LE(line["rank_peak_bytes"]["total"][0], ranks["total"][0]);
  const Outcome for_people = run_cuboid(words);
  EXPECT_THAT(for_people.out, HasSubstr("memory at its peak\n"));
  for (const char* words_of_table : {"optimizer", "activations", "total", "\n  rank"}) {
    EXPECT_THAT(for_people.out, HasSubstr(words_of_table));
  }
}

TEST(Train, ALimitPassedDuringTheRunEndsItWithTheTable) {
  const Words words = {"train", "--model", oracle("llama-odd"), "--data", oracle("llama-odd") + "/tokens.bin",
                       "--tp",  "2",       "--seq-len",         "64",     "--steps",
                       "2",     "--json"};
  const json peaks = trained(words)["rank_peak_bytes"];
  std::int64_t kept = 0;
  for (const char* category : {"parameters", "gradients", "optimizer"}) kept += peaks[category][0].get<std::int64_t>();
  Words limited = words;
  limited.insert(limited.end(), {"--memory-limit", std::to_string((kept + peaks["total"][0].get<std::int64_t>()) / 2)});
  const Outcome outcome = run_cuboid(limited);
  EXPECT_EQ(outcome.status, 3);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("cuboid: error: rank "));
  EXPECT_THAT(outcome.err, HasSubstr("--memory-limit "));
  EXPECT_THAT(outcome.err, HasSubstr("do not fit"));
  EXPECT_THAT(outcome.err, HasSubstr("cuboid: error:   held"));
}

// What is counted is what the system sees: the peak of the process's resident memory over that of a small run, with a
// GPT-2 of 100 million weights.
TEST(Train, CountedBytesAreTheGrowthOfTheProcess) {
  const fs::path folder = fresh_folder("resident");
  std::ofstream(folder / "config.json") << R"({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12,
      "n_positions": 64, "vocab_size": 20000})";
  const auto run = [&](const std::string& model) {
    const json result = trained({"train", "--model", model, "--data", oracle("gpt2-tiny") + "/tokens.bin", "--seq-len",
                                 "16", "--global-batch", "1", "--steps", "2", "--json"});
    rusage usage{};
    getrusage(RUSAGE_CHILDREN, &usage);  // the largest child so far
    return std::pair{1024.0 * static_cast<double>(usage.ru_maxrss),
                     result["rank_peak_bytes"]["total"][0].get<double>()};
  };
  const auto [small_resident, small_counted] = run(oracle("gpt2-tiny"));
  const auto [resident, counted] = run(folder);
  EXPECT_GT(counted, 16 * 100e6);
  const double growth = resident - small_resident;
  EXPECT_NEAR(counted - small_counted, growth, 0.1 * growth);
}

TEST(Train, StopsWhenTheLossIsNotANumber) {
  const Words words = {"train",
                       "--model",
                       oracle("gpt2-tiny"),
                       "--data",
                       oracle("gpt2-tiny") + "/tokens.bin",
                       "--steps",
                       "6",
                       "--seq-len",
                       "16",
                       "--optimizer",
                       "sgd",
                       "--lr",
                       "1e30",
                       "--pp",
                       "2",
                       "--json",
                       "--clip-grad",
                       "0"};
  Words stopping = words;
  stopping.push_back("--stop-on-nan");
  const Outcome stopped = run_cuboid(stopping);
  EXPECT_EQ(stopped.status, 3);
  EXPECT_THAT(stopped.err, HasSubstr("is not a number (--stop-on-nan)"));
  const json result = json::parse(stopped.out);
  EXPECT_TRUE(result["final_loss"].is_null());
  EXPECT_LT(result["steps"], 6);
  EXPECT_EQ(trained(words)["steps"], 6);
}

}  // namespace
}  // namespace cuboid::test
