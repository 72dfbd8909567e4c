// What is learned does not depend on the grid: bit for bit over the pipeline axis, schedules, rank orders and repeated
// runs; up to the order of sums over the tensor and data axes. Dropout is on: its masks belong to global positions.
#include <cmath>

#include <gtest/gtest.h>

#include "harness.h"

namespace cuboid::golden {
namespace {

RunConfig dropout_run(const Layout& layout, int steps = 20) {
  RunConfig run = oracle_run(layout);
  run.weights.clear();  // also the initial weights are the grid's business
  run.seed = 1234;
  run.dropout = 0.1;
  run.steps = steps;
  return run;
}

std::string hash_of(const RunConfig& run) {
  return train(run, oracle_model(run.model.substr(run.model.rfind('/') + 1))).weights_hash;
}

class Invariance : public testing::TestWithParam<const char*> {};

TEST_P(Invariance, OneHashOverPipelinesSchedulesAndRuns) {
  const std::string model = GetParam();
  const RunConfig one = dropout_run({.model = model});
  const std::string hash = hash_of(one);
  EXPECT_EQ(hash.size(), 16U);
  EXPECT_EQ(hash_of(one), hash) << "a second run";
  for (const char* schedule : {"gpipe", "1f1b"}) {
    for (const int pp : {1, 2, 3, 4}) {
      const Layout layout{.model = model, .pp = pp, .schedule = schedule};
      EXPECT_EQ(hash_of(dropout_run(layout)), hash) << name_of(layout);
    }
  }
  const int layers = static_cast<int>(oracle_model(model).layers);
  const Layout uneven{.model = model, .pp = 2, .stage_layers = {layers - 1, 1}};
  EXPECT_EQ(hash_of(dropout_run(uneven)), hash) << name_of(uneven);

  // The hash is no constant: it sees the seed, and that dropout was on.
  RunConfig other = one;
  other.seed = 1235;
  EXPECT_NE(hash_of(other), hash);
  other = one;
  other.dropout = 0;
  EXPECT_NE(hash_of(other), hash);
}

TEST_P(Invariance, OneHashOverRankOrdersAndPipelinesOfASplitModel) {
  const std::string model = GetParam();
  const Layout flat{.model = model, .tp = 2, .dp = 2};
  const std::string hash = hash_of(dropout_run(flat));
  for (const char* order : {"tp-dp-pp", "pp-dp-tp", "dp-pp-tp"}) {
    const Layout layout{.model = model, .tp = 2, .pp = 2, .dp = 2, .order = order};
    EXPECT_EQ(hash_of(dropout_run(layout)), hash) << name_of(layout);
  }
  const std::string cut = hash_of(dropout_run({.model = model, .cp = 2}));
  EXPECT_NE(cut, hash) << "sums over parts of sequences round differently";
  for (const char* order : {"cp-pp", "pp-cp"}) {
    const Layout layout{.model = model, .pp = 2, .cp = 2, .schedule = "gpipe", .order = order};
    EXPECT_EQ(hash_of(dropout_run(layout)), cut) << name_of(layout);
  }
  const Layout gpipe{.model = model, .tp = 2, .pp = 3, .dp = 2, .schedule = "gpipe", .order = "dp-tp-pp"};
  EXPECT_EQ(hash_of(dropout_run(gpipe)), hash) << name_of(gpipe);
}

TEST_P(Invariance, LossesAgreeOverTensorAndDataAxes) {
  const std::string model = GetParam();
  const Trace one = trace(dropout_run({.model = model}), oracle_model(model));
  for (const Layout& layout :
       {Layout{.model = model, .tp = 2}, Layout{.model = model, .tp = 2, .sequence_parallel = true},
        Layout{.model = model, .dp = 2}, Layout{.model = model, .dp = 4}, Layout{.model = model, .cp = 4},
        Layout{.model = model, .tp = 2, .cp = 2, .sequence_parallel = true},
        Layout{.model = model, .tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true}}) {
    const Trace other = trace(dropout_run(layout), oracle_model(model));
    for (std::size_t s = 0; s < one.losses.size(); ++s) {
      EXPECT_NEAR(other.losses[s], one.losses[s], 1e-5 * one.losses[s]) << name_of(layout) << ", step " << s;
    }
  }
}

// AdamW hides the scale of gradients: SGD without clipping shows it, tensor by tensor.
TEST_P(Invariance, SgdMovesEveryWeightAlike) {
  const std::string model = GetParam();
  const auto sgd_run = [&](const Layout& layout, int steps) {
    RunConfig run = dropout_run(layout, steps);
    run.optimizer.kind = OptimizerKind::sgd;
    run.optimizer.lr = 0.5;
    run.optimizer.clip_grad = 0;
    return run;
  };
  const auto learn_on = [&](const Layout& layout, int steps) {
    const RunConfig run = sgd_run(layout, steps);
    return learn(run, oracle_model(model), stream_reader(model, run.seq_len, run.global_batch));
  };
  constexpr int kSteps = 5;
  const Learned start = learn_on({.model = model}, 0);
  const Learned one = learn_on({.model = model}, kSteps);
  for (const Layout& layout :
       {Layout{.model = model, .tp = 2}, Layout{.model = model, .pp = 2, .schedule = "gpipe"},
        Layout{.model = model, .dp = 2}, Layout{.model = model, .micro_batch = 8},
        Layout{.model = model, .dp = 8, .micro_batch = 1},
        Layout{.model = model, .tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .micro_batch = 1},
        Layout{.model = model, .dp = 2, .zero = 3}, Layout{.model = model, .dp = 2, .cp = 2, .zero = 2}}) {
    const Learned other = learn_on(layout, kSteps);
    expect_near_weights(other, one, start, kSteps, name_of(layout));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Invariance, testing::Values("gpt2-tiny", "llama-odd"),
                         [](const auto& model) { return std::string(model.param) == "gpt2-tiny" ? "gpt2" : "llama"; });

// With one micro-batch a step, sharded optimizer states, gradients and weights give the very bits of whole ones.
TEST_P(Invariance, OneHashOverZeroStages) {
  const std::string model = GetParam();
  const Layout whole{.model = model, .dp = 4};
  const std::string hash = hash_of(dropout_run(whole, 6));
  for (const int zero : {1, 2, 3}) {
    const Layout layout{.model = model, .pp = 2, .dp = 4, .zero = zero};
    EXPECT_EQ(hash_of(dropout_run(layout, 6)), hash) << name_of(layout);
  }
  // The ranks of both axes share out the parameters.
  const std::string cut = hash_of(dropout_run({.model = model, .dp = 4, .cp = 2}, 3));
  EXPECT_EQ(hash_of(dropout_run({.model = model, .dp = 4, .cp = 2, .zero = 1}, 3)), cut);
}

TEST(FewMicroBatches, FillAPipelineOfFourStages) {
  for (const int micro_batch : {8, 4}) {  // one and two micro-batches
    const std::string hash = hash_of(dropout_run({.micro_batch = micro_batch}, 4));
    for (const char* schedule : {"gpipe", "1f1b"}) {
      const Layout layout{.pp = 4, .schedule = schedule, .micro_batch = micro_batch};
      EXPECT_EQ(hash_of(dropout_run(layout, 4)), hash) << name_of(layout);
    }
  }
}

}  // namespace
}  // namespace cuboid::golden
