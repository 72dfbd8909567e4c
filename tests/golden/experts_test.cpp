// A model of experts learns the same on every grid, with dropout and the routers' own losses on: bit for bit over the
// pipeline axis, schedules, rank orders, ZeRO stages and recomputation; up to the order of sums over tp, dp and ep.
#include <cmath>

#include <gtest/gtest.h>

#include "harness.h"

namespace cuboid::golden {
namespace {

const std::string kModel = "mixtral-tiny";

RunConfig run_on(Layout layout, int steps = 5) {
  layout.model = kModel;
  RunConfig run = oracle_run(layout);
  run.weights.clear();
  run.seed = 77;
  run.dropout = 0.1;
  run.router_aux_loss = 0.05;
  run.router_z_loss = 0.01;
  run.steps = steps;
  return run;
}

std::string hash_of(const RunConfig& run) {
  return train(run, oracle_model(kModel)).weights_hash;
}

TEST(Experts, OneHashOverPipelinesSchedulesOrdersAndRecomputation) {
  const RunConfig one = run_on({.micro_batch = 1, .ep = 2});
  const std::string hash = hash_of(one);
  for (const Layout& layout : {Layout{.pp = 2, .schedule = "gpipe", .micro_batch = 1, .ep = 2},
                               Layout{.pp = 2, .schedule = "interleaved-1f1b", .micro_batch = 1, .ep = 2},
                               Layout{.pp = 4, .schedule = "zb-h2", .micro_batch = 1, .ep = 2},
                               Layout{.pp = 2, .schedule = "zb-v", .micro_batch = 1, .order = "pp-ep", .ep = 2},
                               Layout{.pp = 3, .micro_batch = 1, .order = "pp-tp-ep", .ep = 2}}) {
    EXPECT_EQ(hash_of(run_on(layout)), hash) << name_of(layout);
  }
  for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
    RunConfig run = run_on({.pp = 2, .schedule = "zb-h1", .micro_batch = 1, .ep = 2});
    run.recompute = recompute;
    EXPECT_EQ(hash_of(run), hash);
  }
  // The hash sees each of the routers' losses.
  RunConfig other = one;
  other.router_aux_loss = 0;
  EXPECT_NE(hash_of(other), hash);
  other = one;
  other.router_z_loss = 0;
  EXPECT_NE(hash_of(other), hash);
}

// With one micro-batch a step, as for a dense model. Dense parameters are cut over 4 ranks, experts' over 2.
TEST(Experts, OneHashOverZeroStages) {
  const Layout whole{.dp = 2, .ep = 2};
  const std::string hash = hash_of(run_on(whole));
  for (const int zero : {1, 2, 3}) {
    const Layout layout{.pp = 2, .dp = 2, .zero = zero, .ep = 2};
    RunConfig run = run_on(layout);
    run.bucket_bytes = 20'000;
    EXPECT_EQ(hash_of(run), hash) << name_of(layout);
  }
}

// AdamW hides the scale of gradients, which is where expert parallelism goes wrong: SGD without clipping shows it,
// tensor by tensor, the router's too.
TEST(Experts, SgdMovesEveryWeightAlikeOnEveryGrid) {
  const ModelConfig model = oracle_model(kModel);
  const auto learn_on = [&](const Layout& layout, int steps) {
    RunConfig run = run_on(layout, steps);
    run.optimizer.kind = OptimizerKind::sgd;
    run.optimizer.lr = 0.5;
    run.optimizer.clip_grad = 0;
    return learn(run, model, stream_reader(kModel, run.seq_len, run.global_batch));
  };
  constexpr int kSteps = 4;
  const Learned start = learn_on({}, 0);
  const Learned one = learn_on({}, kSteps);
  for (const Layout& layout : {Layout{.tp = 2, .sequence_parallel = true}, Layout{.dp = 2}, Layout{.ep = 2},
                               Layout{.ep = 4}, Layout{.tp = 2, .dp = 2, .zero = 2, .ep = 2},
                               Layout{.tp = 2, .pp = 2, .sequence_parallel = true, .schedule = "zb-h1", .ep = 2}}) {
    const Learned other = learn_on(layout, kSteps);
    for (std::size_t s = 0; s < kSteps; ++s) EXPECT_NEAR(other.losses[s], one.losses[s], 1e-5 * one.losses[s]);
    expect_near_weights(other, one, start, kSteps, name_of(layout));
  }
}

TEST(Experts, LoadIsCountedOnceOnEveryGrid) {
  const ModelConfig model = oracle_model(kModel);
  std::vector<ExpertLoad> loads;
  for (const Layout& layout : {Layout{}, Layout{.tp = 2, .pp = 2, .sequence_parallel = true, .ep = 2},
                               Layout{.tp = 2, .dp = 2}, Layout{.pp = 4, .ep = 4}}) {
    RunConfig run = run_on(layout, 1);
    run.recompute = layout.pp == 4 ? Recompute::full : Recompute::none;
    TrainEvents events;
    events.on_step = [&](const StepMetrics& m) { loads.push_back(m.experts); };
    train(run, model, events);
    const ExpertLoad& first = loads.front();
    const ExpertLoad& load = loads.back();
    EXPECT_EQ(load.tokens, first.tokens) << name_of(layout);
    EXPECT_EQ(load.max_over_mean, first.max_over_mean) << name_of(layout);
    EXPECT_NEAR(load.aux_loss, first.aux_loss, 1e-5 * first.aux_loss) << name_of(layout);
    EXPECT_NEAR(load.z_loss, first.z_loss, 1e-5 * first.z_loss) << name_of(layout);
  }
  std::int64_t copies = 0;
  for (const std::int64_t tokens : loads.front().tokens) copies += tokens;
  EXPECT_EQ(copies, std::int64_t{8} * 32 * model.experts_per_token * model.layers);
  EXPECT_GT(loads.front().max_over_mean, 1);
  EXPECT_GT(loads.front().aux_loss, 0.9 * static_cast<double>(model.layers));  // 1 a layer when balanced
}

TEST(Experts, AuxiliaryLossSpreadsTokens) {
  const ModelConfig model = oracle_model(kModel);
  std::vector<double> fullest;
  for (const double coefficient : {0.0, 1.0}) {
    RunConfig run = run_on({.ep = 2}, 30);
    run.router_aux_loss = coefficient;
    run.optimizer.lr = 3e-3;
    TrainEvents events;
    double last = 0;
    events.on_step = [&](const StepMetrics& m) { last = m.experts.max_over_mean; };
    train(run, model, events);
    fullest.push_back(last);
  }
  EXPECT_LT(fullest[1], fullest[0]);
}

// Where float32 and bfloat16 choose other experts for a token, its output jumps: near all the same.
TEST(Experts, BFloat16FollowsTheReferenceOnGrids) {
  const ModelConfig model = oracle_model(kModel);
  const Expected expected = read_expected(kModel);
  for (const Layout& layout :
       {Layout{.model = kModel}, Layout{.model = kModel, .tp = 2, .sequence_parallel = true, .zero = 2, .ep = 2},
        Layout{.model = kModel, .pp = 2, .schedule = "zb-h1", .ep = 4}}) {
    RunConfig run = oracle_run(layout);
    run.dtype = DType::bfloat16;
    const Trace trained = trace(run, model);
    for (std::size_t s = 0; s < trained.losses.size(); ++s) {
      EXPECT_NEAR(trained.losses[s], expected.losses[s], 2e-2) << name_of(layout) << ", step " << s;
    }
    EXPECT_GT(std::abs(trained.losses[0] - expected.losses[0]), 1e-6) << "computed in float32";
  }
}

}  // namespace
}  // namespace cuboid::golden
