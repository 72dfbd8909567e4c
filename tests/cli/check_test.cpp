// Start-up checks: what is refused, in which words, and that every reason is there.
#include "cuboid/train/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuboid/models/registry.h"

namespace cuboid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ModelConfig gpt2() {
  ModelConfig model;
  model.family = "gpt2";
  model.layers = 12;
  model.hidden = 768;
  model.heads = 12;
  model.kv_heads = 12;
  model.head_dim = 64;
  model.ffn = 3072;
  model.vocab = 50257;
  model.positions = 1024;
  return model;
}

ModelConfig llama(std::int64_t heads, std::int64_t kv_heads, std::int64_t ffn) {
  ModelConfig model = gpt2();
  model.family = "llama";
  model.heads = heads;
  model.kv_heads = kv_heads;
  model.ffn = ffn;
  return model;
}

struct Degrees {
  int tp = 1, pp = 1, dp = 1, cp = 1, ep = 1;
};

RunConfig run_on(Degrees d) {
  RunConfig run;
  run.model = "gpt2";
  run.data.paths = {"text"};
  run.grid = Grid({{d.tp, d.cp, d.ep, d.dp, d.pp}}, Grid::kDefaultOrder);
  run.global_batch = 4 * d.dp * d.ep;
  return run;
}

std::vector<std::string> reasons(const ModelConfig& model, const RunConfig& run) {
  Problems problems;
  check_run(model, run, problems);
  return problems.reasons();
}

TEST(CheckRun, AcceptsWhatFits) {
  for (int tp : {1, 2, 3, 4, 6, 12}) EXPECT_THAT(reasons(gpt2(), run_on({.tp = tp})), IsEmpty()) << tp;
  EXPECT_THAT(reasons(gpt2(), run_on({.tp = 3, .pp = 12, .dp = 5})), IsEmpty());
}

TEST(CheckRun, HeadsAgainstTensorDegree) {
  EXPECT_THAT(reasons(gpt2(), run_on({.tp = 8})),
              ElementsAre("--tp 8: 12 attention heads cannot be split over 8 ranks; use 1, 2, 3, 4, 6 or 12"));
}

// The usable values satisfy heads, key/value heads and MLP width together.
TEST(CheckRun, UsableTensorDegreesSatisfyEveryDimension) {
  EXPECT_THAT(usable_tensor_degrees(gpt2()), ElementsAre(1, 2, 3, 4, 6, 12));
  EXPECT_THAT(usable_tensor_degrees(llama(6, 2, 260)), ElementsAre(1, 2));                // 3 and 6 do not divide 260
  EXPECT_THAT(usable_tensor_degrees(llama(32, 4, 96)), ElementsAre(1, 2, 4, 8, 16, 32));  // replicated from 8 on
  EXPECT_THAT(usable_tensor_degrees(llama(12, 4, 24)), ElementsAre(1, 2, 4, 12));         // 3, 6: neither way
  ModelConfig bits = llama(8, 8, 8);
  bits.vocab = 3;
  EXPECT_THAT(usable_tensor_degrees(bits), ElementsAre(1, 2));
  const auto twelve = reasons(llama(12, 4, 26), run_on({.tp = 12}));
  ASSERT_EQ(twelve.size(), 1U);
  EXPECT_EQ(twelve[0], "--tp 12: an MLP of width 26 cannot be split over 12 ranks; use 1 or 2");
}

TEST(CheckRun, KeyValueHeadsAreCutOrReplicatedNeverSplit) {
  EXPECT_THAT(reasons(llama(32, 4, 96), run_on({.tp = 8})), IsEmpty());
  EXPECT_THAT(
      reasons(llama(12, 4, 24), run_on({.tp = 6})),
      ElementsAre("--tp 6: 4 key/value heads can neither be split over nor replicated on 6 ranks; use 1, 2, 4 or 12"));
}

TEST(CheckRun, WidthOfTheMlpIsCheckedItself) {  // not the fused gate and up, twice as wide
  EXPECT_THAT(reasons(llama(2, 2, 3), run_on({.tp = 2})),
              ElementsAre("--tp 2: an MLP of width 3 cannot be split over 2 ranks; use 1"));
}

TEST(CheckRun, VocabularyNeedsARowForEachRank) {
  ModelConfig model = llama(8, 8, 16);
  model.vocab = 7;
  EXPECT_THAT(reasons(model, run_on({.tp = 8})),
              ElementsAre("--tp 8: a vocabulary of 7 cannot be split over 8 ranks; use 1, 2 or 4"));
  model.vocab = 11;  // uneven is fine
  EXPECT_THAT(reasons(model, run_on({.tp = 8})), IsEmpty());
}

TEST(CheckRun, LayersAgainstStages) {
  EXPECT_THAT(reasons(gpt2(), run_on({.pp = 12})), IsEmpty());
  EXPECT_THAT(reasons(gpt2(), run_on({.pp = 13})),
              ElementsAre("--pp 13: 12 layers cannot fill 13 stages; use at most 12"));
}

TEST(CheckRun, StageLayers) {
  RunConfig run = run_on({.pp = 3});
  run.stage_layers = {5, 4, 3};
  EXPECT_THAT(reasons(gpt2(), run), IsEmpty());
  run.stage_layers = {7, 4};
  EXPECT_THAT(reasons(gpt2(), run), ElementsAre("--stage-layers 7,4: names 2 stages; --pp 3 makes 3",
                                                "--stage-layers 7,4: the sum is 11; the model has 12 layers"));
  run.stage_layers = {7, 0, 5};
  EXPECT_THAT(reasons(gpt2(), run), ElementsAre("--stage-layers 7,0,5: every stage needs at least one layer"));
}

TEST(CheckRun, Schedules) {
  RunConfig run = run_on({.pp = 2});
  for (const std::string name :
       {"gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "zb-h1", "zb-h2", "zb-v", "dualpipe-v"}) {
    run.schedule = name;
    EXPECT_THAT(reasons(gpt2(), run), IsEmpty()) << name;
  }
  run.schedule = "1f1";
  EXPECT_THAT(reasons(gpt2(), run),
              ElementsAre(HasSubstr("--schedule 1f1: no such schedule; did you mean 1f1b? There are gpipe, 1f1b, ")));
  run.schedule = "1f1b";
  run.virtual_stages = 2;
  EXPECT_THAT(reasons(gpt2(), run), ElementsAre("--virtual-stages 2: 1f1b has 1 stage a rank"));
}

TEST(CheckRun, SequenceLength) {
  RunConfig run = run_on({.tp = 4});
  run.seq_len = 130;
  EXPECT_THAT(reasons(gpt2(), run), IsEmpty());
  run.sequence_parallel = true;
  EXPECT_THAT(reasons(gpt2(), run),
              ElementsAre("--seq-len 130: --sequence-parallel splits it over 4 ranks; use 128 or 132"));
  run.seq_len = 3;
  EXPECT_THAT(reasons(gpt2(), run), ElementsAre("--seq-len 3: --sequence-parallel splits it over 4 ranks; use 4"));
  run.seq_len = 1028;
  EXPECT_THAT(reasons(gpt2(), run),
              ElementsAre("--seq-len 1028: the model has a learned embedding for 1024 positions; use at most 1024"));
  EXPECT_THAT(reasons(llama(12, 12, 3072), run), IsEmpty());  // rotary: a doubt, no fault
  EXPECT_THAT(doubts_about_run(llama(12, 12, 3072), run),
              ElementsAre("--seq-len 1028: the model's configuration was made for at most 1024 positions"));
  run.seq_len = 0;
  EXPECT_THAT(reasons(gpt2(), run), ElementsAre("--seq-len 0: must be at least 1"));
}

// Accepted exactly when dp x micro-batch x k = global batch for a whole k, for every small combination.
TEST(CheckRun, GlobalBatchIsNeverRounded) {
  for (int dp = 1; dp <= 5; ++dp) {
    for (int micro = 1; micro <= 4; ++micro) {
      for (int batch = 1; batch <= 24; ++batch) {
        RunConfig run = run_on({.dp = dp});
        run.micro_batch = micro;
        run.global_batch = batch;
        bool possible = false;
        for (int k = 1; k <= batch; ++k) possible |= dp * micro * k == batch;
        EXPECT_EQ(reasons(gpt2(), run).empty(), possible) << dp << " " << micro << " " << batch;
      }
    }
  }
  RunConfig run = run_on({.dp = 4});
  run.global_batch = 6;
  EXPECT_THAT(reasons(gpt2(), run),
              ElementsAre("--global-batch 6: must be a multiple of --dp 4 x --micro-batch 1 = 4; use 4 or 8"));
  run.global_batch = 2;
  EXPECT_THAT(reasons(gpt2(), run),
              ElementsAre("--global-batch 2: must be a multiple of --dp 4 x --micro-batch 1 = 4; use 4"));
}

TEST(CheckRun, RangesOfNumbers) {
  struct Case {
    double RunConfig::*plain;
    double OptimizerConfig::*optimizer;
    double value;
    const char* reason;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Case> cases = {
      {&RunConfig::dropout, nullptr, 1, "--dropout 1: must be at least 0 and less than 1"},
      {&RunConfig::dropout, nullptr, -0.1, "--dropout -0.1: must be at least 0 and less than 1"},
      {&RunConfig::deadline, nullptr, 0, "--deadline 0: must be more than 0"},
      {nullptr, &OptimizerConfig::lr, nan, "--lr nan: must be at least 0"},
      {nullptr, &OptimizerConfig::min_lr, 0.5, "--min-lr 0.5: exceeds --lr 0.001"},
      {nullptr, &OptimizerConfig::weight_decay, -1, "--weight-decay -1: must be at least 0"},
      {nullptr, &OptimizerConfig::beta1, 1, "--beta1 1: must be at least 0 and less than 1"},
      {nullptr, &OptimizerConfig::beta2, -2, "--beta2 -2: must be at least 0 and less than 1"},
      {nullptr, &OptimizerConfig::eps, 0, "--eps 0: must be more than 0"},
      {nullptr, &OptimizerConfig::clip_grad, -3, "--clip-grad -3: must be at least 0"},
  };
  for (const Case& c : cases) {
    RunConfig run = run_on({});
    (c.plain ? run.*c.plain : run.optimizer.*c.optimizer) = c.value;
    EXPECT_THAT(reasons(gpt2(), run), ElementsAre(c.reason));
  }
}

TEST(CheckRun, WhatThisVersionCannotDoIsRefusedNotIgnored) {
  RunConfig run = run_on({});
  run.dtype = DType::float64;
  run.reduce_dtype = DType::int32;
  EXPECT_THAT(reasons(gpt2(), run),
              ElementsAre("--dtype float64: use float32 or bfloat16", "--reduce-dtype int32: use float32 or bfloat16"));
  run = run_on({});
  run.reduce_dtype = DType::bfloat16;
  EXPECT_THAT(reasons(gpt2(), run), ElementsAre(HasSubstr("--reduce-dtype bfloat16: ")));
  run.dtype = DType::bfloat16;
  EXPECT_THAT(reasons(gpt2(), run), ElementsAre());
  EXPECT_THAT(reasons(gpt2(), run_on({.tp = 4, .pp = 4, .dp = 65})),
              ElementsAre("the grid has 1040 ranks (--tp 4 x --pp 4 x --dp 65); one process runs at most 1024"));
}

TEST(CheckRun, SequencesAgainstContextDegree) {
  RunConfig run = run_on({.tp = 3, .cp = 2});
  ModelConfig model = gpt2();
  run.seq_len = 48;
  EXPECT_THAT(reasons(model, run), ElementsAre());
  run.seq_len = 50;
  EXPECT_THAT(reasons(model, run), ElementsAre("--seq-len 50: --cp 2 cuts it into 4 chunks, two a rank; use 48 or 52"));
  run.sequence_parallel = true;
  EXPECT_THAT(reasons(model, run),
              ElementsAre("--seq-len 50: --cp 2 cuts it into 4 chunks, two a rank and --sequence-parallel splits a "
                          "rank's part over 3 ranks; use 48 or 60"));
  run.seq_len = 3;
  EXPECT_THAT(reasons(model, run), ElementsAre(HasSubstr("use 12")));
  EXPECT_THAT(
      reasons(model, run_on({.tp = 4, .pp = 4, .dp = 65, .cp = 2})),
      ElementsAre("the grid has 2080 ranks (--tp 4 x --pp 4 x --dp 65 x --cp 2); one process runs at most 1024"));
}

TEST(CheckRun, ExpertsAgainstExpertDegree) {
  ModelConfig mixtral = llama(12, 4, 24);
  mixtral.family = "mixtral";
  mixtral.experts = 8;
  mixtral.experts_per_token = 2;
  RunConfig run = run_on({.tp = 2, .dp = 3, .ep = 4});
  run.router_aux_loss = 0.02;
  run.router_z_loss = 0.001;
  EXPECT_THAT(reasons(mixtral, run), IsEmpty());
  EXPECT_THAT(reasons(mixtral, run_on({.ep = 3})),
              ElementsAre("--ep 3: 8 experts cannot be split over 3 ranks; use 1, 2, 4 or 8"));
  run.router_z_loss = -1;
  EXPECT_THAT(reasons(mixtral, run), ElementsAre("--router-z-loss -1: must be at least 0"));
  run.router_z_loss = 0.25;
  EXPECT_THAT(
      reasons(gpt2(), run),
      ElementsAre("--ep 4: a gpt2 has no experts to split; use 1, or --dp for more data ranks",
                  "--router-aux-loss 0.02: a gpt2 has no router", "--router-z-loss 0.25: a gpt2 has no router"));
  run = run_on({.dp = 3, .ep = 4});
  run.global_batch = 16;
  EXPECT_THAT(reasons(mixtral, run), ElementsAre("--global-batch 16: must be a multiple of --dp 3 x --ep 4 x "
                                                 "--micro-batch 1 = 12; use 12 or 24"));
}

TEST(CheckRun, DataAndOutputFlagsThatNeedOthers) {
  RunConfig run = run_on({});
  run.data.paths.clear();
  run.data.eval_every = 5;
  run.timeline = true;
  EXPECT_THAT(reasons(gpt2(), run),
              ElementsAre("--data: names no text or token file to train on",
                          "--eval-every 5: needs data to validate on; give --validation-fraction, such as 0.05",
                          "--timeline: writes into the folder of --out; give --out DIR"));
}

TEST(CheckRun, AllReasonsAtOnce) {
  RunConfig run = run_on({.tp = 8, .pp = 13, .dp = 2});
  run.global_batch = 7;
  run.seq_len = 2001;
  run.sequence_parallel = true;
  run.dropout = 2;
  run.steps = 0;
  const auto all = reasons(gpt2(), run);
  for (const char* flag : {"--tp 8", "--pp 13", "--global-batch 7", "--dropout 2", "--steps 0"}) {
    EXPECT_THAT(all, ::testing::Contains(HasSubstr(flag)));
  }
  EXPECT_EQ(all.size(), 7U);  // the sequence is wrong twice: for the ranks and for the positions
}

TEST(Doubts, AreNamedAndNoFaults) {
  RunConfig run = run_on({});
  EXPECT_THAT(doubts_about_run(gpt2(), run), IsEmpty());
  run.optimizer.warmup_steps = run.steps;
  run.optimizer.min_lr = run.optimizer.lr / 2;
  run.data.validation_fraction = 0.1;
  EXPECT_THAT(reasons(gpt2(), run), IsEmpty());
  EXPECT_THAT(doubts_about_run(gpt2(), run), ElementsAre(HasSubstr("--warmup-steps 10"), HasSubstr("--min-lr 0.0005"),
                                                         HasSubstr("--validation-fraction 0.1")));
}

TEST(Alternatives, Read) {
  EXPECT_EQ(alternatives({}), "");
  EXPECT_EQ(alternatives({3}), "3");
  EXPECT_EQ(alternatives({1, 2}), "1 or 2");
  EXPECT_EQ(alternatives({1, 2, 4}), "1, 2 or 4");
  EXPECT_EQ(alternatives({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}),
            "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …, 13 or 14");
}

TEST(CheckRun, AutoAndTheCapOnActivations) {
  RunConfig run = run_on({.pp = 4});
  run.schedule = "auto";
  EXPECT_THAT(reasons(gpt2(), run), IsEmpty());
  run.virtual_stages = 3;
  run.max_activations = 3;
  EXPECT_THAT(reasons(gpt2(), run), IsEmpty());
  run.max_activations = 2;
  EXPECT_THAT(reasons(gpt2(), run),
              ElementsAre("--max-activations 2: with 3 stages a rank, one micro-batch holds 3; use at least 3"));
  run.virtual_stages = 4;
  run.max_activations = 0;
  EXPECT_THAT(reasons(gpt2(), run),
              ElementsAre("--pp 4 x 4 stages a rank: 12 layers cannot fill 16 stages; use at most 3"));
  run.virtual_stages = -1;
  run.max_activations = -2;
  EXPECT_THAT(reasons(gpt2(), run), ElementsAre(HasSubstr("--max-activations -2"), HasSubstr("--virtual-stages -1")));
  // The cap holds for every schedule.
  run = run_on({.pp = 4});
  run.schedule = "gpipe";
  run.max_activations = 3;
  EXPECT_THAT(reasons(gpt2(), run), ElementsAre(HasSubstr("--schedule gpipe: rank 0: holds activations of 4 "
                                                          "micro-batches, 3 are allowed")));
  run.max_activations = 4;
  EXPECT_THAT(reasons(gpt2(), run), IsEmpty());
}

}  // namespace
}  // namespace cuboid
