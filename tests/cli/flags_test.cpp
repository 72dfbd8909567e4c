// The flag table, the run that flags and a run file make, and what people and machines are shown.
#include "launch/flags.h"

#include <cmath>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cuboid/formats/run_file.h"

#include "launch/gpus.h"
#include "launch/metrics.h"
#include "launch/progress.h"
#include "launch/train_flags.h"

namespace cuboid::launch {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

enum class Fruit { apple, pear };

struct Basket {
  int apples = 3;
  std::uint64_t seeds = 7;
  double weight = 1e-8;
  std::string name = "none";
  bool ripe = false;
  Fruit fruit = Fruit::pear;
  std::vector<std::string> paths;
};

// Parses the words into a basket and returns the problems.
std::vector<std::string> fill(Basket& basket, const std::vector<std::string>& words, std::string* help = nullptr) {
  Flags flags("fill [flags]", "Fills a basket.");
  flags.section("Fruit");
  flags.whole("apples", basket.apples, "how many", 0, 10);
  flags.whole("seeds", basket.seeds, "how many", 0);
  flags.real("weight", basket.weight, "in kg", "KG");
  flags.text("name", "WORD", basket.name, "of the basket");
  flags.toggle("ripe", basket.ripe, "ready to eat");
  flags.choice<Fruit>("fruit", basket.fruit, {{"apple", Fruit::apple}, {"pear", Fruit::pear}}, "kind");
  flags.fixed("colour", {"red", "any"}, "of the skin", "only red ones are left");
  flags.add(
      "paths", "PATH...", "", "where", [&](const Flags::Values& v) { basket.paths = v; }, true);
  Problems problems;
  flags.parse(words, problems);
  flags.apply(problems);
  if (help) *help = flags.help();
  return problems.reasons();
}

TEST(Flags, StoreValuesInBothSpellings) {
  Basket basket;
  EXPECT_THAT(fill(basket, {"--apples", "5", "--weight=-0.25", "--name", "-1", "--ripe", "--fruit", "apple", "--paths",
                            "a", "b", "--seeds", "9223372036854775807", "--paths", "c", "--colour", "any"}),
              IsEmpty());
  EXPECT_EQ(basket.apples, 5);
  EXPECT_EQ(basket.weight, -0.25);
  EXPECT_EQ(basket.name, "-1");
  EXPECT_TRUE(basket.ripe);
  EXPECT_EQ(basket.fruit, Fruit::apple);
  EXPECT_EQ(basket.seeds, 9223372036854775807U);
  EXPECT_THAT(basket.paths, ElementsAre("a", "b", "c"));
}

TEST(Flags, ToggleCanBeSwitchedOff) {
  Basket basket;
  basket.ripe = true;
  EXPECT_THAT(fill(basket, {"--ripe=false"}), IsEmpty());
  EXPECT_FALSE(basket.ripe);
  EXPECT_THAT(fill(basket, {"--ripe=no"}), ElementsAre("--ripe no: not one of false, true"));
  EXPECT_THAT(fill(basket, {"--ripe", "yes"}), ElementsAre("--ripe yes: not one of false, true"));
}

TEST(Flags, EveryFaultIsReportedAtOnce) {
  Basket basket;
  EXPECT_THAT(
      fill(basket, {"stray", "--aples", "5", "--apples", "11", "--weight", "heavy", "--name", "--fruit", "plum",
                    "--colour", "green", "--seeds", "1", "2", "--seeds", "3", "-x", "--unheard-of-thing=1"}),
      ElementsAre("'stray': no flag takes this value", "--aples: unknown flag; did you mean --apples?",
                  "--name: needs a value (WORD)", "'2': no flag takes this value (--seeds takes one)",
                  "--seeds: given twice", "-x: unknown flag", "--unheard-of-thing: unknown flag",
                  "--apples 11: must be at most 10", "--weight heavy: not a finite number",
                  "--fruit plum: not one of apple, pear", "--colour green: only red ones are left; use red or any"));
}

// A script's `--name "$NAME"` without NAME.
TEST(Flags, EmptyValuesAreRefusedWhereTheyMeanNothing) {
  Basket basket;
  EXPECT_THAT(fill(basket, {"--name", "", "--paths", "a", "", "--ripe", ""}),
              ElementsAre("--name: the value is empty (WORD)", "--paths: the value is empty (PATH...)",
                          "--ripe: the value is empty (true or false)"));
  EXPECT_EQ(basket.name, "none");
  Flags flags("fill [flags]", "Fills a basket.");
  flags.text("name", "WORD", basket.name, "of the basket");
  flags.may_be_empty("name");
  Problems problems;
  EXPECT_TRUE(flags.read({"--name", ""}, problems));
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(basket.name, "");
}

TEST(Flags, NumbersAreReadWholeOrNotAtAll) {
  Basket basket;
  for (const char* text : {"5x", "", " 5", "0x5", "5.0", "1e1", "+5"}) {
    EXPECT_THAT(fill(basket, {std::string("--apples=") + text}), Not(IsEmpty())) << text;
  }
  EXPECT_THAT(fill(basket, {"--apples", "-1"}), ElementsAre("--apples -1: must be at least 0"));
  EXPECT_THAT(fill(basket, {"--apples", "99999999999999999999"}),
              ElementsAre("--apples 99999999999999999999: must be at most 10"));
  EXPECT_THAT(fill(basket, {"--apples", "-99999999999999999999"}),
              ElementsAre("--apples -99999999999999999999: must be at least 0"));
  for (const char* text : {"nan", "inf", "1e999", "1,5", "1.5kg"}) {
    EXPECT_THAT(fill(basket, {"--weight", text}), ElementsAre(HasSubstr("not a finite number"))) << text;
  }
  EXPECT_EQ(basket.apples, 3);
}

TEST(Flags, HelpShowsEveryFlagWithItsDefault) {
  Basket basket;
  std::string help;
  fill(basket, {}, &help);
  for (const char* part :
       {"Usage: fill [flags]", "--apples N (=3)", "--weight KG (=1e-08)", "--name WORD (=none)", "--ripe ",
        "--fruit apple|pear (=pear)", "--colour red|any (=red)", "--paths PATH...", "--help"}) {
    EXPECT_THAT(help, HasSubstr(part));
  }
}

RunConfig read(const std::vector<std::string>& words, std::vector<std::string>* reasons = nullptr) {
  Flags flags("cuboid train", "Trains.");
  RunDraft draft;
  add_run_flags(flags, draft);
  Problems problems;
  RunConfig run = read_run(flags, draft, words, problems);
  if (reasons) {
    *reasons = problems.reasons();
  } else {
    EXPECT_THAT(problems.reasons(), IsEmpty());
  }
  return run;
}

std::string write_file(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

// Every flag of the contract lands in its member.
TEST(TrainFlags, MakeARunConfig) {
  const RunConfig run = read({"--model",
                              "m",
                              "--weights",
                              "w",
                              "--data",
                              "d",
                              "e",
                              "--data-format",
                              "bin",
                              "--data-order",
                              "shuffled",
                              "--validation-fraction",
                              "0.125",
                              "--eval-every",
                              "3",
                              "--mask-token",
                              "17",
                              "--mask-file",
                              "k",
                              "--tp",
                              "2",
                              "--pp",
                              "3",
                              "--dp",
                              "5",
                              "--order",
                              "dp-tp-pp",
                              "--schedule",
                              "gpipe",
                              "--stage-layers",
                              "7,8,9",
                              "--sequence-parallel",
                              "--steps",
                              "11",
                              "--global-batch",
                              "60",
                              "--micro-batch",
                              "4",
                              "--seq-len",
                              "33",
                              "--seed",
                              "99",
                              "--dropout",
                              "0.25",
                              "--optimizer",
                              "sgd",
                              "--lr",
                              "0.5",
                              "--min-lr",
                              "0.0625",
                              "--warmup-steps",
                              "6",
                              "--lr-schedule",
                              "cosine",
                              "--weight-decay",
                              "0.375",
                              "--beta1",
                              "0.75",
                              "--beta2",
                              "0.875",
                              "--eps",
                              "1e-6",
                              "--clip-grad",
                              "2.5",
                              "--threads-per-rank",
                              "12",
                              "--deadline",
                              "13.5",
                              "--out",
                              "o",
                              "--timeline",
                              "--dump-grads",
                              "g",
                              "--dtype",
                              "bfloat16",
                              "--reduce-dtype",
                              "bfloat16",
                              "--stop-on-nan"});
  RunConfig expected;
  expected.dtype = expected.reduce_dtype = DType::bfloat16;
  expected.model = "m";
  expected.weights = "w";
  expected.data = {{"d", "e"}, DataFormat::bin, DataOrder::shuffled, 0.125, 3, 17, "k"};
  expected.grid = Grid({{2, 1, 1, 5, 3}}, "dp-tp-pp");
  expected.schedule = "gpipe";
  expected.stage_layers = {7, 8, 9};
  expected.sequence_parallel = true;
  expected.steps = 11;
  expected.global_batch = 60;
  expected.micro_batch = 4;
  expected.seq_len = 33;
  expected.seed = 99;
  expected.dropout = 0.25;
  expected.optimizer = {OptimizerKind::sgd, 0.5, 0.0625, 6, LrSchedule::cosine, 0.375, 0.75, 0.875, 1e-6, 2.5};
  expected.threads_per_rank = 12;
  expected.deadline = 13.5;
  expected.out = "o";
  expected.timeline = true;
  expected.dump_grads = "g";
  expected.stop_on_nan = true;
  EXPECT_EQ(run, expected);
}

TEST(TrainFlags, OverrideTheRunFile) {
  RunConfig written;
  written.model = "from-file";
  written.grid = Grid({{2, 1, 1, 3, 1}}, "tp-dp");
  written.timeline = true;
  written.steps = 21;
  written.data.paths = {"x", "y"};
  const std::string file = write_file("override.toml", write_run_file(written));
  EXPECT_EQ(read({"--config", file}), written);
  const RunConfig run = read({"--steps", "22", "--config", file, "--dp", "5", "--timeline=false", "--data", "z"});
  written.steps = 22;
  written.grid = Grid({{2, 1, 1, 5, 1}}, "tp-dp");
  written.timeline = false;
  written.data.paths = {"z"};
  EXPECT_EQ(run, written);
}

TEST(TrainFlags, FaultsOfFlagsFileAndGridTogether) {
  const std::string file = write_file("faulty.toml", "stepss = 3\n");
  std::vector<std::string> reasons;
  read({"--config", file, "--tpp", "2", "--order", "tp-xp", "--dtype", "float16", "--device", "gpu", "--fabric", "mpl",
        "--stage-layers", "3,,4", "--lr-schedule", "cosin", "--balance", "layers"},
       &reasons);
  EXPECT_THAT(
      reasons,
      ElementsAre("--tpp: unknown flag; did you mean --tp?", HasSubstr("stepss"), HasSubstr("--dtype float16: "),
                  "--device gpu: not one of auto, cpu, cuda", "--fabric mpl: not one of auto, threads, mpi",
                  "--stage-layers 3,,4: not a whole number", "--lr-schedule cosin: not one of constant, cosine, linear",
                  "--balance layers: not one of flops, measured",
                  "--order tp-xp: 'xp' is not an axis; the axes are tp, cp, ep, dp, pp"));
}

int visible_width(const std::string& line) {
  int width = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      while (line[i] != 'm') ++i;
    } else if ((static_cast<unsigned char>(line[i]) & 0xC0) != 0x80) {
      ++width;
    }
  }
  return width;
}

TEST(Progress, LineFitsEveryTerminal) {
  ProgressState state{12345, 20000, 3.14159, 2.71828, 123456, 0.218, 4000};
  for (int columns = 0; columns <= 220; ++columns) {
    for (bool unicode : {false, true}) {
      for (bool colour : {false, true}) {
        const std::string line = progress_line(state, {columns, unicode, colour});
        EXPECT_LE(visible_width(line), columns) << line;
        const auto bytes = [&](auto wanted) { return std::count_if(line.begin(), line.end(), wanted); };
        EXPECT_TRUE(unicode || bytes([](char c) { return c < 0; }) == 0) << line;
        EXPECT_TRUE(colour || bytes([](char c) { return c == '\x1b'; }) == 0) << line;
      }
    }
  }
}

TEST(Progress, LineSaysEverythingWhereThereIsRoom) {
  ProgressState state{60, 240, 3.14159, std::nullopt, 12345, 0.218, 30};
  EXPECT_EQ(progress_line(state, {80, false, false}),
            " 60/240 =====----------------  loss 3.142  12.35 K tok/s  bubble 22 %  1:30 left");
  state.validation_loss = 2.71828;
  const std::string wide = progress_line(state, {200, true, true});
  for (const char* part :
       {" 60/240 ", "━", "─", "loss 3.142", "val 2.718", "12.35 K tok/s", "bubble 22 %", "1:30 left"}) {
    EXPECT_THAT(wide, HasSubstr(part));
  }
  EXPECT_THAT(progress_line(state, {60, false, false}), Not(HasSubstr("bubble")));
  EXPECT_THAT(progress_line(state, {30, false, false}), HasSubstr("loss 3.142"));
  state.step = 240;
  EXPECT_THAT(progress_line(state, {100, false, false}), HasSubstr("in 0:30"));
}

TEST(Progress, WhatIsNotANumberHasNoSign) {
  const ProgressState state{1, 2, -std::nan(""), -std::nan(""), 1, 0, 1};
  EXPECT_THAT(progress_line(state, {100, false, false}), AllOf(HasSubstr("loss nan"), HasSubstr("val nan")));
}

TEST(Progress, ClockTime) {
  EXPECT_EQ(clock_time(-1), "0:00");
  EXPECT_EQ(clock_time(59.6), "1:00");
  EXPECT_EQ(clock_time(605), "10:05");
  EXPECT_EQ(clock_time(3 * 3600 + 2 * 60 + 9), "3:02:09");
}

TEST(Metrics, FloatsAreRoundTripExact) {
  StepMetrics metrics;
  metrics.step = 4;
  metrics.loss = 1.0 / 3;
  metrics.grad_norm = 5e-324;
  metrics.lr = 0.1;
  metrics.step_seconds = std::nan("");
  metrics.peak_bytes = {1, 2, 3, 4, 5, 6};
  metrics.rank_peaks = {{{1, 2, 3, 1, 5, 6}, 17}, {{1, 0, 3, 4, 5, 6}, 18}};
  const auto line = metrics_line(metrics);
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["loss"].get<double>(), metrics.loss);
  EXPECT_EQ(json["grad_norm"].get<double>(), metrics.grad_norm);
  EXPECT_EQ(json["lr"].get<double>(), metrics.lr);
  EXPECT_TRUE(json["step_seconds"].is_null());
  for (int i = 0; i < kCategoryCount; ++i) EXPECT_EQ(json["peak_bytes"][name_of(static_cast<Category>(i))], i + 1);
  EXPECT_EQ(json["rank_peak_bytes"]["gradients"], nlohmann::json({2, 0}));
  EXPECT_EQ(json["rank_peak_bytes"]["total"], nlohmann::json({17, 18}));
}

TEST(RatedGpus, AreFoundByChipAndMemory) {
  const auto cluster_of = [](const std::string& name, double gibibytes) {
    Gpu gpu;
    gpu.name = name;
    gpu.memory_bytes = static_cast<std::int64_t>(gibibytes * (1 << 30));
    const auto rated = rating_of(gpu);
    return rated ? rated->cluster : "";
  };
  EXPECT_EQ(cluster_of("NVIDIA H200", 139.8), "hgx-h200");
  EXPECT_EQ(cluster_of("NVIDIA H100 80GB HBM3", 79.6), "dgx-h100");
  EXPECT_EQ(cluster_of("NVIDIA A100-SXM4-80GB", 79.2), "dgx-a100");
  EXPECT_EQ(cluster_of("NVIDIA A100-SXM4-40GB", 39.6), "dgx-a100-40gb");
  for (const char* other : {"NVIDIA GH200 144G HBM3e", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H20",
                            "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "Emulated GPU"}) {
    EXPECT_EQ(cluster_of(other, 79.6), "") << other;
  }
  EXPECT_EQ(cluster_of("NVIDIA H100 96GB HBM3", 93.6), "") << "another memory: another board";
}

}  // namespace
}  // namespace cuboid::launch
