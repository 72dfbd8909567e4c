// A training run on a 2 x 2 x 2 grid inside this process, small enough for the sanitizers: every kind of communication,
// dropout, validation, the timeline and the gradient dump.
#include <cmath>
#include <filesystem>

#include <gtest/gtest.h>

#include "cuboid/formats/hf_config.h"
#include "cuboid/train/trainer.h"

namespace cuboid {
namespace {

RunConfig small_run(const Grid& grid) {
  const std::string oracle = CUBOID_TEST_DATA "/oracle/llama-odd";
  RunConfig run;
  run.model = oracle;
  run.weights = oracle;
  run.data.paths = {oracle + "/tokens.bin"};
  run.data.validation_fraction = 0.01;
  run.data.eval_every = 2;
  run.grid = grid;
  run.sequence_parallel = true;
  run.global_batch = 6;
  run.seq_len = 20;
  run.steps = 3;
  run.dropout = 0.1;
  run.optimizer.lr = 0.01;
  return run;
}

struct Seen {
  int starts = 0;
  std::vector<double> losses, validations;
  TrainResult result;
};

Seen train_and_watch(const RunConfig& run) {
  Seen seen;
  const TrainEvents events{.on_start = [&](const RunStart&) { ++seen.starts; },
                           .on_step = [&](const StepMetrics& m) { seen.losses.push_back(m.loss); },
                           .on_validation = [&](int, double loss) { seen.validations.push_back(loss); }};
  seen.result = train(run, load_model(run.model), events);
  return seen;
}

TEST(GridTraining, TwoByTwoByTwoEqualsOneRank) {
  const Seen one = train_and_watch(small_run(Grid()));
  RunConfig run = small_run(Grid({{2, 1, 1, 2, 2}}, Grid::kDefaultOrder));
  const auto folder = std::filesystem::path(::testing::TempDir()) / "grid-training";
  std::filesystem::create_directories(folder);
  run.out = folder;
  run.timeline = true;
  run.dump_grads = folder / "grads.json";
  const Seen eight = train_and_watch(run);
  EXPECT_EQ(eight.starts, 1);
  EXPECT_EQ(eight.result.world, 8);
  ASSERT_EQ(one.losses.size(), 3U);
  ASSERT_EQ(eight.losses.size(), 3U);
  for (std::size_t s = 0; s < 3; ++s) EXPECT_NEAR(eight.losses[s], one.losses[s], 1e-5 * one.losses[s]);
  ASSERT_EQ(one.validations.size(), 2U);  // after step 2, and at the end
  ASSERT_EQ(eight.validations.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(eight.validations[i], one.validations[i], 1e-5 * one.validations[i]);
  EXPECT_GT(std::filesystem::file_size(folder / "timeline.json"), 0U);
  EXPECT_GT(std::filesystem::file_size(folder / "grads.json"), 0U);
  EXPECT_EQ(train_and_watch(run).result.weights_hash, eight.result.weights_hash);
}

}  // namespace
}  // namespace cuboid
