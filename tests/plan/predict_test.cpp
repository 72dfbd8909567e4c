// A step's prediction: what must hold for any parameters, and the published runs as a whole, so that a change that
// makes the model worse is seen.
#include "cuboid/plan/predict.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <gtest/gtest.h>

#include "cuboid/formats/cluster_file.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/plan/validate.h"
#include "cuboid/train/check.h"

namespace cuboid {
namespace {

ModelConfig wide_model(int layers) {
  ModelConfig model = load_model("llama3-8b");
  model.layers = layers;
  return model;
}

RunConfig run_on(int tp, int pp, int dp) {
  RunConfig run;
  run.grid = Grid({{tp, 1, 1, dp, pp}}, Grid::kDefaultOrder);
  run.dtype = DType::bfloat16;
  run.reduce_dtype = DType::bfloat16;
  run.seq_len = 2048;
  run.micro_batch = 1;
  run.global_batch = 24 * dp;
  return run;
}

TEST(Prediction, CausesAddUpToTheStep) {
  Predictor predictor(wide_model(24), load_cluster("dgx-h100"));
  for (const char* schedule : {"1f1b", "interleaved-1f1b", "zb-h1"}) {
    RunConfig run = run_on(2, 4, 3);
    run.schedule = schedule;
    run.zero = 1;
    const StepPrediction p = predictor.predict(run);
    EXPECT_NEAR(p.seconds.total(), p.step_seconds, 1e-9 * p.step_seconds) << schedule;
    for (const double part : {p.seconds.compute, p.seconds.tp_comm, p.seconds.pp_comm, p.seconds.bubble}) {
      EXPECT_GT(part, 0) << schedule;
    }
    EXPECT_GT(p.hfu, 0.5 * p.mfu);
  }
}

// Four ranks on two cores: all that computes takes twice as long; on four as long as where each has its own.
TEST(Prediction, RanksShareCores) {
  Cluster cluster = load_cluster("cpu-local");
  RunConfig run;
  run.grid = Grid({{2, 1, 1, 2, 1}}, Grid::kDefaultOrder);
  run.seq_len = 64;
  run.global_batch = 6;
  const auto predicted = [&](int cores) {
    cluster.device.shared_cores = cores;
    return Predictor(load_model("gpt2-nano"), cluster).predict(run);
  };
  const StepPrediction own = predicted(0);
  const StepPrediction shared = predicted(2);
  EXPECT_EQ(predicted(4).step_seconds, own.step_seconds);
  EXPECT_NEAR(shared.step_seconds, 2 * own.step_seconds, 1e-9 * own.step_seconds);
  EXPECT_NEAR(shared.seconds.total(), shared.step_seconds, 1e-9 * own.step_seconds);
}

// Equal stages, no embedding or head to speak of, no transfers: the bubble of 1F1B is (p-1)/(m+p-1).
TEST(Prediction, BubbleOfEqualStages) {
  ModelConfig model = wide_model(8);
  model.vocab = 8;
  Cluster cluster = load_cluster("dgx-h100");
  cluster.levels[0].link_bandwidth = 1e18;
  cluster.levels[0].latency = 0;
  cluster.levels[0].half_bandwidth_bytes = 0;
  cluster.stack.optimizer_traffic = 0;
  cluster.stack.step_seconds = 0;
  cluster.stack.micro_batch_seconds = 0;
  Predictor predictor(model, cluster);
  const StepPrediction p = predictor.predict(run_on(1, 4, 1));
  EXPECT_EQ(p.stage_layers, (std::vector<int>{2, 2, 2, 2}));
  EXPECT_NEAR(p.bubble_fraction, 3.0 / 27, 2e-3);  // embedding and head are below 1 % of a stage
}

TEST(Prediction, ShardingMovesMemoryAndMessages) {
  Predictor predictor(wide_model(24), load_cluster("dgx-h100"));
  RunConfig run = run_on(1, 1, 8);
  std::vector<StepPrediction> by_zero;
  for (run.zero = 0; run.zero <= 3; ++run.zero) by_zero.push_back(predictor.predict(run));
  const auto& whole = by_zero[0].memory();
  EXPECT_DOUBLE_EQ(by_zero[1].memory().optimizer, whole.optimizer / 8);
  EXPECT_DOUBLE_EQ(by_zero[1].memory().gradients, whole.gradients);
  EXPECT_DOUBLE_EQ(by_zero[2].memory().gradients, whole.gradients / 8);
  EXPECT_DOUBLE_EQ(by_zero[2].memory().parameters, whole.parameters);
  EXPECT_DOUBLE_EQ(by_zero[3].memory().parameters, whole.parameters / 8);
  EXPECT_LT(by_zero[1].seconds.optimizer, by_zero[0].seconds.optimizer);
  EXPECT_GT(by_zero[3].seconds.dp_comm, by_zero[1].seconds.dp_comm);
}

TEST(Prediction, WhatDoesNotFitIsInfeasibleAndSaysWhere) {
  Predictor predictor(wide_model(32), load_cluster("dgx-a100-40gb"));
  const StepPrediction p = predictor.predict(run_on(1, 2, 4));
  EXPECT_FALSE(p.feasible);
  ASSERT_EQ(p.reasons.size(), 1U);
  EXPECT_NE(p.reasons[0].find("pipeline rank"), std::string::npos);
  EXPECT_NE(p.reasons[0].find("A100-SXM4-40GB has 39.6 GiB"), std::string::npos) << p.reasons[0];
}

// More activations are held by earlier stages of 1F1B, and time has the last word on when.
TEST(Prediction, MemoryOverTimeEndsWhereItBegan) {
  Predictor predictor(wide_model(24), load_cluster("dgx-h100"));
  const StepPrediction p = predictor.predict(run_on(2, 4, 1), {.spans = true});
  EXPECT_GT(p.ranks[0].memory.activations, p.ranks[2].memory.activations);
  for (const RankPrediction& rank : p.ranks) {
    ASSERT_EQ(rank.timeline.size(), 48U);  // F and B of 24 micro-batches
    for (std::size_t i = 1; i < rank.timeline.size(); ++i) EXPECT_LE(rank.timeline[i - 1].time, rank.timeline[i].time);
    const MemoryByCause& m = rank.memory;
    EXPECT_NEAR(rank.timeline.back().bytes, m.total() - m.activations, 1);
  }
}

TEST(Prediction, ContextParallelRanksShareTheWork) {
  Predictor predictor(wide_model(8), load_cluster("dgx-h100"));
  RunConfig one = run_on(1, 1, 1);
  one.seq_len = 32768;
  RunConfig four = one;
  four.grid = Grid({{1, 4, 1, 1, 1}}, Grid::kDefaultOrder);
  const StepPrediction whole = predictor.predict(one);
  const StepPrediction split = predictor.predict(four);
  EXPECT_NEAR(split.hfu * split.step_seconds * 4, whole.hfu * whole.step_seconds,
              1e-3 * whole.hfu * whole.step_seconds);
  EXPECT_LT(split.step_seconds, whole.step_seconds / 3);
}

TEST(Prediction, SixteenThousandDevicesTakeAMoment) {
  Predictor predictor(load_model("llama3.1-70b"), load_cluster("dgx-h100"));
  RunConfig run = run_on(8, 16, 128);
  run.schedule = "interleaved-1f1b";
  run.virtual_stages = 5;
  run.global_batch = 2048 * 2;
  run.zero = 1;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_GT(predictor.predict(run).mfu, 0.1);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), 1.0);
}

TEST(PublishedRuns, NamesEveryFault) {
  try {
    parse_published_runs(R"([{"id": "x", "source": {"title": "s"}, "hardware": {}, "measured": {"memory_gb": -1},
      "model": {"layers": 0, "hidden": "big", "heads": 4, "kv_heads": 4, "ffn": 8, "vocab": 9, "seq_len": 16},
      "parallel": {"tp": 1, "recompute": "some", "micro_batch": 1, "global_batch": 2, "order": "tp-pd"}}, 3])",
                         "f");
    FAIL();
  } catch (const Error& error) {
    const std::string why = error.what();
    for (const char* part : {"run 1: model: layers 0: must be", "model: hidden \"big\"", "measured: memory_gb -1",
                             "recompute some", "tp-pd", "run 2: must be an object"}) {
      EXPECT_NE(why.find(part), std::string::npos) << part << "\nin\n" << why;
    }
  }
}

TEST(PublishedRuns, ModelIsAsAccurateAsItIsSaidToBe) {
  const Validation v = validate(read_published_runs(CUBOID_PUBLISHED_RUNS));
  EXPECT_EQ(v.not_predicted, 0);
  EXPECT_EQ(v.step.runs, 353);
  EXPECT_LT(v.step.mean, 0.045);
  EXPECT_LT(std::abs(v.step.bias), 0.02);
  for (const auto& [source, summary] : v.by_source) {
    if (summary.runs >= 5) {
      EXPECT_LT(summary.mean, 0.08) << source;
    }
  }
  EXPECT_LT(v.memory.mean, 0.045);
  EXPECT_GE(v.memory_within, 98);
  EXPECT_EQ(v.called_infeasible, v.out_of_memory);
  EXPECT_GE(v.mean_spearman, 0.9);
  EXPECT_GE(std::count_if(v.sweeps.begin(), v.sweeps.end(), [](const Sweep& s) { return s.best_ranked <= 3; }), 15);
  // No run is off by more than 20 % without a written reason.
  for (const ValidatedRun& run : v.runs) {
    if (run.run.step_seconds && std::abs(run.error()) > 0.2) {
      EXPECT_NE(run.run.note, "") << run.run.id;
    }
  }
  EXPECT_NE(draw_validation_svg(v).find("353 published runs"), std::string::npos);
}

}  // namespace
}  // namespace cuboid
