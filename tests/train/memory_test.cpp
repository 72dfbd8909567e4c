// What a run holds: weights, gradients and optimizer state to the byte; activations by what they must be proportional
// to; and limits, before the start and during the run.
#include "cuboid/train/memory.h"

#include "cuboid/formats/hf_config.h"
#include "cuboid/models/registry.h"
#include "cuboid/train/trainer.h"

#include "formats/files.h"

namespace cuboid {
namespace {

/// A model of sizes that divide by nothing they need not divide by.
ModelConfig some_model(const std::string& family, int layers) {
  ModelConfig model;
  model.name = "some " + family;
  model.family = family;
  model.layers = layers;
  model.hidden = 44;
  model.heads = 4;
  model.kv_heads = family == "llama" ? 2 : 4;
  model.head_dim = family == "llama" ? 10 : 11;
  model.ffn = 102;
  model.vocab = 211;
  model.positions = 64;
  model.attention_bias = model.attention_output_bias = model.mlp_bias = model.tied = family == "gpt2";
  return model;
}

class Memory : public testing::Test {
 protected:
  Memory() {
    std::string tokens;
    for (int i = 0; i < 2 * 6000; i += 2) tokens += {static_cast<char>(i * 7 % 211), '\0'};
    run_.data.paths = {folder_.write("tokens.bin", tokens)};
    run_.steps = 1;
    run_.seq_len = 24;
    run_.micro_batch = 1;
    run_.global_batch = 6;
    run_.deadline = 60;
  }
  void set_grid(int tp, int pp, int dp) { run_.grid = Grid({{tp, 1, 1, dp, pp}}, Grid::kDefaultOrder); }
  std::vector<MemoryUse> peaks(const ModelConfig& model) { return train(run_, model).rank_peaks; }
  /// Peak of a category of each rank.
  std::vector<std::int64_t> peaks(const ModelConfig& model, Category category) {
    std::vector<std::int64_t> bytes;
    for (const MemoryUse& use : peaks(model)) bytes.push_back(use[category]);
    return bytes;
  }

  test::TemporaryFolder folder_;
  RunConfig run_;
};

std::int64_t round_up(std::int64_t n, std::int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

struct Elements {
  std::int64_t values = 0;      // of parameters with values of their own
  std::int64_t gradients = 0;   // of all
  std::int64_t parameters = 0;  // how many there are
};

// What the chapter on memory says of a rank with each parameter in a bucket of its own: its shard's elements, or with
// `padded` those rounded up to 64, of the largest shard of the tensor group, and to a multiple of 64 · parts.
Elements elements_of(const ModelConfig& model, int first_block, int last_block, int tp_rank, int tp, int parts,
                     bool padded) {
  Elements all;
  const ParameterTable table = parameters_of(model);
  const auto here = [&](const ParameterInfo& info) { return info.block >= first_block && info.block < last_block; };
  for (const ParameterInfo& info : table.rows()) {
    if (!here(info)) continue;
    std::int64_t elements = shard_shape(info, tp_rank, tp).elements();
    if (padded) {
      for (int rank = 0; rank < tp; ++rank) elements = std::max(elements, shard_shape(info, rank, tp).elements());
      elements = round_up(round_up(elements, 64), 64 * parts);
    }
    all.gradients += elements;
    if (info.tied_with.empty() || !here(table.at(info.tied_with))) all.values += elements;
    ++all.parameters;
  }
  return all;
}

// 4P + 4P + 8P in float32 and 2P + 4P + 12P in bfloat16, each divided over the data axis as the stage says.
TEST_F(Memory, StateIsToTheByteWhatTheZeroStageSays) {
  struct Degrees {
    int tp, pp, dp;
  };
  for (const char* family : {"gpt2", "llama"}) {
    const ModelConfig model = some_model(family, 5);
    for (const auto [tp, pp, dp] : {Degrees{1, 1, 3}, Degrees{2, 2, 3}}) {
      set_grid(tp, pp, dp);
      run_.stage_layers = pp == 2 ? std::vector<int>{3, 2} : std::vector<int>{};
      for (const int zero : {0, 1, 2, 3}) {
        for (const DType dtype : {DType::float32, DType::bfloat16}) {
          SCOPED_TRACE(std::string(family) + " " + name_of(dtype) + ", ZeRO " + std::to_string(zero) + ", tp " +
                       std::to_string(tp));
          run_.zero = zero;
          run_.dtype = dtype;
          run_.bucket_bytes = 1;
          const int parts = zero > 0 ? dp : 1;
          const std::vector<MemoryUse> measured = peaks(model);
          for (int rank = 0; rank < run_.grid.world(); ++rank) {
            const AxisValues at = run_.grid.coordinate(rank);
            const int first = at[Axis::pp] == 0 ? 0 : 4;
            const int last = at[Axis::pp] == pp - 1 ? 7 : 4;
            const Elements p = elements_of(model, first, last, at[Axis::tp], tp, parts, true);
            const Elements bare = elements_of(model, first, last, at[Axis::tp], tp, parts, false);
            const std::int64_t shard = p.values / parts;
            const MemoryUse& use = measured[static_cast<std::size_t>(rank)];
            const bool half = dtype == DType::bfloat16;
            EXPECT_EQ(use[Category::parameters], (half ? 2 : 4) * (zero < 3 ? p.values : shard));
            EXPECT_EQ(use[Category::gradients], 4 * (zero < 2 ? p.gradients : p.gradients / parts));
            EXPECT_EQ(use[Category::optimizer], (half ? 12 : 8) * shard);
            // Padding: less than 64 · parts elements a parameter, and a row of the vocabulary where it is uneven.
            EXPECT_GE(p.values, bare.values);
            EXPECT_LE(p.values - bare.values, (64 * parts + 64) * p.parameters);
          }
          // In buckets of the usual size: what was predicted, and hardly any padding.
          run_.bucket_bytes = 4 << 20;
          const std::vector<MemoryUse> predicted = kept_memory(run_, model, plan_pipeline(run_, model));
          const std::vector<MemoryUse> bucketed = peaks(model);
          ASSERT_EQ(predicted.size(), bucketed.size());
          for (std::size_t rank = 0; rank < predicted.size(); ++rank) {
            for (const Category c : {Category::parameters, Category::gradients, Category::optimizer}) {
              EXPECT_EQ(bucketed[rank][c], predicted[rank][c]) << name_of(c) << " of rank " << rank;
            }
          }
        }
      }
    }
  }
}

TEST_F(Memory, SgdKeepsNoMoments) {
  const ModelConfig model = some_model("llama", 2);
  run_.optimizer.kind = OptimizerKind::sgd;
  EXPECT_EQ(peaks(model, Category::optimizer).front(), 0);
  run_.dtype = DType::bfloat16;
  const MemoryUse use = peaks(model).front();
  EXPECT_EQ(use[Category::optimizer], 2 * use[Category::parameters]) << "float32 masters alone";
  EXPECT_EQ(kept_memory(run_, model, plan_pipeline(run_, model)).front()[Category::optimizer],
            use[Category::optimizer]);
}

// 1F1B lets rank r of p hold p - r micro-batches: as much as a pass of GPipe with so many holds, and no more.
TEST_F(Memory, OneForwardOneBackwardHoldsAsManyMicroBatchesAsStagesFollow) {
  constexpr int kStages = 4;
  const ModelConfig model = some_model("gpt2", 16);
  set_grid(1, kStages, 1);
  run_.stage_layers = {4, 4, 4, 4};
  std::vector<std::vector<std::int64_t>> held;  // by micro-batches - 1, rank
  run_.schedule = "gpipe";
  for (run_.global_batch = 1; run_.global_batch <= kStages; ++run_.global_batch) {
    held.push_back(peaks(model, Category::activations));
  }
  run_.schedule = "1f1b";
  run_.global_batch = 9;
  const std::vector<std::int64_t> peak = peaks(model, Category::activations);
  for (std::size_t rank = 0; rank < kStages; ++rank) {
    const std::size_t micro_batches = kStages - rank;
    const auto expected = static_cast<double>(held[micro_batches - 1][rank]);
    EXPECT_NEAR(static_cast<double>(peak[rank]), expected, 0.02 * expected) << "rank " << rank;
    // Each micro-batch more costs the same.
    const auto worth = static_cast<double>(held[1][rank] - held[0][rank]);
    EXPECT_NEAR(static_cast<double>(held[3][rank] - held[2][rank]), worth, 0.02 * worth) << "rank " << rank;
    const double first = static_cast<double>(held[0][rank]);
    EXPECT_NEAR(static_cast<double>(peak[rank]), first + static_cast<double>(micro_batches - 1) * worth,
                0.02 * static_cast<double>(micro_batches) * worth)
        << "rank " << rank;
  }
}

// Full recompute: a layer more costs its input and nothing else; the rest is one layer's activations.
TEST_F(Memory, FullRecomputeKeepsOneLayerAndTheInputs) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    run_.dtype = dtype;
    const auto peak = [&](Recompute recompute, int layers) {
      run_.recompute = recompute;
      return peaks(some_model("llama", layers), Category::activations).front();
    };
    const std::int64_t input = run_.seq_len * run_.micro_batch * 44 * static_cast<std::int64_t>(size_of(dtype));
    const std::int64_t one = peak(Recompute::full, 1);
    EXPECT_EQ(peak(Recompute::full, 9) - one, 8 * input);
    const std::int64_t alone = peak(Recompute::none, 1);
    EXPECT_LE(one, alone + 2 * input) << "one layer's activations";
    EXPECT_GT(peak(Recompute::none, 9) - alone, 8 * 8 * input) << "of which there are many times its input";
    EXPECT_LT(peak(Recompute::selective, 9), peak(Recompute::none, 9));
  }
}

// Nothing of the size T × T: memory of a step is a line in T. A matrix of scores of one head alone would be a third of
// all at T = 1024.
TEST_F(Memory, GrowsLinearlyWithTheSequence) {
  ModelConfig model = some_model("gpt2", 1);
  model.positions = 1024;
  run_.global_batch = 1;
  const auto step = [&](int length) {
    run_.seq_len = length;
    const MemoryUse use = peaks(model).front();
    return static_cast<double>(use[Category::activations] + use[Category::workspace]);
  };
  const double at_256 = step(256);
  const double at_512 = step(512);
  const double at_1024 = step(1024);
  EXPECT_GT(at_1024, at_512);
  EXPECT_NEAR(at_1024 - at_512, 2 * (at_512 - at_256), 0.02 * at_1024);
}

// 1024 rows of 33,000 logits are 135 MB, or 68 MB on each of two ranks; chunks are of 256 rows or 32 MiB. Forward,
// backward, its halves apart, evaluation.
TEST_F(Memory, LogitsAreNeverWhole) {
  ModelConfig model = some_model("llama", 2);
  model.vocab = 33'000;
  model.hidden = 8;
  run_.seq_len = 512;
  run_.micro_batch = run_.global_batch = 2;
  run_.data.validation_fraction = 0.5;
  run_.data.eval_every = 1;
  for (const int tp : {1, 2}) {
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      set_grid(tp, 2, 1);
      run_.schedule = schedule;
      const std::int64_t logits = 4 * 1024 * (model.vocab / tp);
      const std::int64_t chunk = std::max<std::int64_t>(32 << 20, 4 * 256 * (model.vocab / tp));
      for (const MemoryUse& use : peaks(model)) {
        EXPECT_LT(use[Category::workspace], chunk + chunk / 20) << "tp " << tp << ", " << schedule;
        EXPECT_LT(use[Category::activations] + use[Category::communication], logits / 5) << "tp " << tp;
      }
    }
  }
}

// ---------------------------------------------------------------- limits

TEST_F(Memory, WhatCannotFitIsRefusedBeforeAnythingStarts) {
  const ModelConfig model = some_model("gpt2", 4);
  set_grid(1, 2, 2);
  run_.stage_layers = {1, 3};
  const std::vector<MemoryUse> kept = kept_memory(run_, model, plan_pipeline(run_, model));
  ASSERT_LT(kept.front().total, kept.back().total);
  run_.memory_limit = kept.back().total - 1;
  bool started = false;
  TrainEvents events;
  events.on_start = [&](const RunStart&) { started = true; };
  const std::string reason = test::refusal([&] { train(run_, model, events); });
  test::expect_mentions(reason, {"--memory-limit", "rank 2 needs", "activations come on top", "ranks 0-1", "ranks 2-3",
                                 "parameters", "gradients", "optimizer", "total"});
  EXPECT_FALSE(started);
  // Sharded it fits; and what is wrong besides is said with it.
  run_.zero = 1;
  run_.memory_limit = kept.back().total;
  EXPECT_EQ(train(run_, model).steps, 1);
  run_.memory_limit = 1000;
  run_.data.paths = {folder_ / "nothing.bin"};
  test::expect_mentions(test::refusal([&] { train(run_, model); }), {"--memory-limit 1000 B", "nothing.bin"});
}

// The limit lies between what is kept and what the step needs: activations pass it, on the rank that holds the most.
TEST_F(Memory, ARunThatPassesItsLimitEndsOnAllRanksWithTheTable) {
  const ModelConfig model = some_model("gpt2", 6);
  run_.seq_len = 64;
  run_.global_batch = 12;
  set_grid(1, 2, 2);
  const std::vector<MemoryUse> kept = kept_memory(run_, model, plan_pipeline(run_, model));
  const std::vector<MemoryUse> peak = peaks(model);
  const std::int64_t most_kept = std::max(kept.front().total, kept.back().total);
  const std::int64_t most = std::max(peak.front().total, peak.back().total);
  ASSERT_GT(most, most_kept + 100'000);
  run_.memory_limit = (most_kept + most) / 2;
  std::vector<std::string> reports;
  TrainEvents events;
  events.on_failure = [&](const std::vector<std::string>& told) { reports = told; };
  try {
    train(run_, model, events);
    ADD_FAILURE() << "the limit has not stopped it";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_status(), 3);
    test::expect_mentions(error.what(), {"rank ", "--memory-limit", " more for ", "do not fit", "held", "peak"});
  }
  EXPECT_EQ(reports.size(), 4U);
  run_.memory_limit = most + 100'000;  // a step's numbers are gathered after its peak
  EXPECT_EQ(train(run_, model).steps, 1);
}

}  // namespace
}  // namespace cuboid
