// A short training run on grids of eight ranks with everything on: small enough for sanitizer builds.
#include <cmath>

#include "cuboid/formats/hf_config.h"
#include "cuboid/train/trainer.h"

#include "formats/files.h"

namespace cuboid {
namespace {

std::string some_text() {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * i % 97) + " of a text\n";
  return text;
}

/// Trains a model of two layers on bytes for three steps, with evaluation.
TrainResult train_on(const std::string& family, const AxisValues& degrees, bool sequence_parallel,
                     const test::TemporaryFolder& folder) {
  ModelConfig model;
  model.family = family;
  model.layers = 2;
  model.hidden = 24;
  model.heads = 4;
  model.kv_heads = family == "llama" ? 2 : 4;
  model.head_dim = 6;
  model.ffn = 40;
  model.vocab = 259;  // not divisible by 2
  model.positions = 16;
  model.attention_bias = model.attention_output_bias = model.mlp_bias = model.tied = family == "gpt2";
  RunConfig run;
  run.data.paths = {folder.write("text.txt", some_text())};
  run.data.order = DataOrder::shuffled;
  run.data.validation_fraction = 0.02;
  run.data.eval_every = 2;
  run.grid = Grid(degrees, Grid::kDefaultOrder);
  run.sequence_parallel = sequence_parallel;
  run.micro_batch = 1;
  run.global_batch = 6;
  run.seq_len = 16;
  run.steps = 3;
  run.seed = 3;
  run.dropout = 0.1;
  run.optimizer.lr = 0.01;
  run.optimizer.warmup_steps = 1;
  run.timeline = true;
  run.out = folder.path();
  run.deadline = 300;
  return train(run, model);
}

void expect_one_rank_agrees(const std::string& family, const AxisValues& degrees) {
  const test::TemporaryFolder folder;
  const TrainResult one = train_on(family, {{1, 1, 1, 1, 1}}, false, folder);
  const TrainResult grid = train_on(family, degrees, true, folder);
  EXPECT_EQ(grid.world, 8);
  EXPECT_EQ(grid.steps, 3);
  EXPECT_LT(one.final_loss, std::log(259.0));
  EXPECT_NEAR(grid.final_loss, one.final_loss, 1e-5 * one.final_loss);
  ASSERT_TRUE(one.validation_loss && grid.validation_loss);
  EXPECT_NEAR(*grid.validation_loss, *one.validation_loss, 1e-5 * *one.validation_loss);
  EXPECT_NE(test::contents(folder / "timeline.json").find("\"rank 7\""), std::string::npos);
}

TEST(GridSmoke, Gpt2) {
  expect_one_rank_agrees("gpt2", {{2, 1, 1, 2, 2}});
}

TEST(GridSmoke, Llama) {
  expect_one_rank_agrees("llama", {{2, 1, 1, 2, 2}});
}

TEST(GridSmoke, SequencesCutOverRanks) {
  expect_one_rank_agrees("llama", {{2, 2, 1, 1, 2}});
}

}  // namespace
}  // namespace cuboid
