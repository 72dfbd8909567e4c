#include "cuboid/formats/run_file.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "cuboid/core/text.h"

#include "files.h"

namespace cuboid {
namespace {

using test::expect_mentions;
using test::refusal;

/// Any finite double, by its bits: subnormals, huge and tiny numbers included.
rc::Gen<double> finite() {
  return rc::gen::suchThat(
      rc::gen::map(rc::gen::arbitrary<std::uint64_t>(), [](std::uint64_t bits) { return std::bit_cast<double>(bits); }),
      [](double x) { return std::isfinite(x); });
}

/// Text with quotes, backslashes, control characters and more than ASCII.
rc::Gen<std::string> text() {
  return rc::gen::map(rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
                          "a", "B", " ", "/", "\"", "\\", "\n", "\t", "\x01", "\x7f", "#", "=", "'", "é", "𝄞", "[")),
                      [](const std::vector<std::string>& parts) { return join(parts, ""); });
}

RunConfig any_run() {
  using rc::gen::arbitrary;
  using rc::gen::element;
  RunConfig run;
  run.model = *text();
  run.weights = *text();
  run.data.paths = *rc::gen::container<std::vector<std::string>>(text());
  run.data.format = *element(DataFormat::automatic, DataFormat::text, DataFormat::bin);
  run.data.order = *element(DataOrder::sequential, DataOrder::shuffled);
  run.data.validation_fraction = *finite();
  run.data.eval_every = *arbitrary<int>();
  if (*arbitrary<bool>()) run.data.mask_token = *arbitrary<std::int64_t>();
  run.data.mask_file = *text();
  AxisValues degrees;
  for (const Axis axis : kAxes) degrees[axis] = *rc::gen::inRange(1, 5);
  run.grid = Grid(degrees, *element<std::string>("tp-cp-ep-dp-pp", "pp-dp-ep-cp-tp", "dp-tp-pp-cp-ep"));
  run.schedule = *text();
  run.virtual_stages = *arbitrary<int>();
  run.max_activations = *arbitrary<int>();
  run.stage_layers = *arbitrary<std::vector<int>>();
  run.balance = *element(Balance::flops, Balance::measured);
  run.sequence_parallel = *arbitrary<bool>();
  run.dtype = *element(DType::float32, DType::bfloat16);
  run.micro_batch = *arbitrary<int>();
  run.global_batch = *arbitrary<int>();
  run.seq_len = *arbitrary<int>();
  run.steps = *arbitrary<int>();
  run.seed = *element<std::uint64_t>(0, 7, (1ULL << 63) - 1, 1ULL << 63, ~0ULL);
  run.dropout = *finite();
  run.optimizer = {*element(OptimizerKind::adamw, OptimizerKind::sgd),
                   *finite(),
                   *finite(),
                   *arbitrary<int>(),
                   *element(LrSchedule::constant, LrSchedule::cosine, LrSchedule::linear),
                   *finite(),
                   *finite(),
                   *finite(),
                   *finite(),
                   *finite()};
  run.threads_per_rank = *arbitrary<int>();
  run.deadline = *finite();
  run.stop_on_nan = *arbitrary<bool>();
  run.timeline = *arbitrary<bool>();
  run.checkpoint_every = *arbitrary<int>();
  run.keep = *arbitrary<int>();
  run.async_save = *arbitrary<bool>();
  run.max_seconds = *finite();
  run.out = *text();
  run.dump_grads = *text();
  return run;
}

RC_GTEST_PROP(RunFile, WhatIsWrittenIsRead, ()) {
  const RunConfig run = any_run();
  RC_ASSERT(parse_run_file(write_run_file(run), "run.toml") == run);
}

TEST(RunFile, EmptyFileIsTheDefaults) {
  EXPECT_EQ(parse_run_file("", "run.toml"), RunConfig{});
}

TEST(RunFile, ExtremesAreExact) {
  RunConfig run;
  run.seed = std::numeric_limits<std::uint64_t>::max();
  run.optimizer.lr = std::numeric_limits<double>::denorm_min();
  run.optimizer.eps = -0.0;
  run.deadline = std::numeric_limits<double>::max();
  run.dropout = 0.1;
  run.stage_layers = {7, 8, 8, 7};
  const RunConfig back = parse_run_file(write_run_file(run), "run.toml");
  EXPECT_EQ(back, run);
  EXPECT_TRUE(std::signbit(back.optimizer.eps));
}

TEST(RunFile, KeysAreTheFlagsAndAreExplained) {
  RunConfig run;
  run.global_batch = 24;
  run.grid = Grid({{2, 1, 1, 3, 4}}, "tp-dp-pp");
  const std::string text = write_run_file(run);
  expect_mentions(text, {"\nglobal-batch = 24 ", "\nschedule = \"1f1b\"", "\ntp = 2 ", "\ndp = 3 ", "\npp = 4 ",
                         "\nlr = 0.001 ", "# samples a step, over all ranks", "\n# Process grid\n"});
}

TEST(RunFile, HandWritten) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("run.toml", R"(
    model = "gpt2-nano"  # a preset
    data = ["a.txt", 'b']
    tp = 2
    pp = 2
    order = "pp-tp"
    lr = 1
    mask-token = 0
    stage-layers = []
    data-order = "shuffled"
    stop-on-nan = true
    seed = "12345678901234567890"
  )");
  const RunConfig run = read_run_file(path);
  EXPECT_EQ(run.data.paths, (std::vector<std::string>{"a.txt", "b"}));
  EXPECT_EQ(run.grid.world(), 4);
  EXPECT_EQ(run.grid.order().substr(0, 5), "pp-tp");
  EXPECT_EQ(run.optimizer.lr, 1);
  EXPECT_EQ(run.data.mask_token, 0);
  EXPECT_EQ(run.seed, 12345678901234567890ULL);
  EXPECT_TRUE(run.stop_on_nan);
  EXPECT_EQ(run.global_batch, RunConfig{}.global_batch);
}

TEST(RunFile, AllFaultsAtOnce) {
  const std::string message = refusal([] {
    parse_run_file(R"(
global-bach = 8
steps = 2.5
seq-len = "128"
micro-batch = 4294967296
lr = nan
dropout = true
data = "a.txt"
stage-layers = [1, "2"]
optimizer = "adam"
data-format = 1
timeline = 1
seed = -1
mask-token = "x"
tp = 0
[model]
name = "x"
)",
                   "run.toml");
  });
  expect_mentions(message, {"run.toml: line 2: unknown key global-bach; the nearest is global-batch",
                            "run.toml: line 3: steps = 2.5: must be a whole number of 32 bits",
                            "line 4: seq-len = \"128\": must be a whole number", "line 5: micro-batch = 4294967296",
                            "line 6: lr = nan: must be a finite", "line 7: dropout = true: must be a finite number"});
  expect_mentions(message, {"data = \"a.txt\": must be an array", "stage-layers = \"2\": must be a whole",
                            "optimizer = \"adam\": must be \"adamw\" or \"sgd\"", "line 11: data-format = 1",
                            "timeline = 1: must be true or false", "seed = -1: must be a whole number from 0",
                            "mask-token = \"x\"", "--tp 0", "line 16: model = a table: must be a string"});
}

TEST(RunFile, SyntaxFaultsNameTheLine) {
  expect_mentions(refusal([] { parse_run_file("tp = 2\npp = \n", "run.toml"); }), {"run.toml: line 2: not valid TOML"});
  expect_mentions(refusal([] { parse_run_file("tp = 2\ntp = 3\n", "run.toml"); }), {"not valid TOML"});
  const test::TemporaryFolder folder;
  expect_mentions(refusal([&] { read_run_file(folder / "none.toml"); }), {"none.toml: cannot be opened"});
}

}  // namespace
}  // namespace cuboid
