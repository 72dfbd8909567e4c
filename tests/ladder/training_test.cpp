// Oracle runs: with all ranks on one GPU, and with a GPU a rank.
#include <filesystem>

#include "cuboid/formats/checkpoint.h"
#include "cuboid/runtime/gpus.h"
#include "cuboid/train/memory.h"

#include "formats/files.h"
#include "golden/gpu.h"
#include "golden/harness.h"

namespace cuboid::golden {
namespace {

// Those of data/oracle/README.md for a float32 program.
constexpr double kLoss = 1e-5;
constexpr double kNorm = 1e-4;
constexpr double kFirstGradient = 2e-5;

std::vector<Layout> layouts() {
  return {
      {.model = "gpt2-tiny", .micro_batch = 4},
      {.model = "gpt2-tiny", .tp = 2, .sequence_parallel = true, .micro_batch = 4},
      {.model = "gpt2-tiny", .pp = 2, .schedule = "zb-h1"},
      {.model = "gpt2-tiny", .dp = 2, .micro_batch = 4, .zero = 1},
      {.model = "gpt2-tiny", .tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .zero = 2},
      {.model = "gpt2-tiny", .pp = 2, .cp = 2},
      {.model = "llama-odd", .tp = 2, .cp = 2, .sequence_parallel = true, .zero = 1},
      {.model = "llama-odd", .micro_batch = 8},
      {.model = "llama-odd", .tp = 2, .micro_batch = 4},
      {.model = "llama-odd", .pp = 2, .schedule = "1f1b"},
      {.model = "llama-odd", .dp = 2, .micro_batch = 4},
      {.model = "llama-odd", .tp = 2, .pp = 2, .dp = 2, .schedule = "zb-h1", .zero = 3},
      {.model = "mixtral-tiny", .micro_batch = 8},
      {.model = "mixtral-tiny", .tp = 2, .sequence_parallel = true, .micro_batch = 4},
      {.model = "mixtral-tiny", .micro_batch = 4, .ep = 2},
      {.model = "mixtral-tiny", .tp = 2, .pp = 2, .schedule = "zb-h1", .zero = 1, .ep = 2},
  };
}

class OnGpus : public testing::TestWithParam<Layout> {
 protected:
  ~OnGpus() override { g_gpus = Gpus::none; }
};

// ThreadSanitizer multiplies the time, and sees in the second step what it would see in a fourth.
#if defined(__SANITIZE_THREAD__)
constexpr int kSteps = 2;
#else
constexpr int kSteps = 4;
#endif

void follow_the_reference(const Layout& layout, int steps = kSteps) {
  const Expected expected = read_expected(layout.model);
  const test::TemporaryFolder folder;
  RunConfig run = oracle_run(layout);
  run.steps = steps;
  run.dump_grads = folder / "gradients.json";
  const Trace trained = trace(run, oracle_model(layout.model));
  ASSERT_EQ(std::ssize(trained.losses), steps);
  for (std::size_t s = 0; s < trained.losses.size(); ++s) {
    EXPECT_NEAR(trained.losses[s], expected.losses[s], kLoss * expected.losses[s]) << "loss of step " << s;
    EXPECT_NEAR(trained.grad_norms[s], expected.grad_norms[s], kNorm * expected.grad_norms[s]) << "norm of step " << s;
  }
  for (const auto& [name, norm] : read_norms(run.dump_grads)) {
    EXPECT_NEAR(norm, expected.first.gradients.at(name), kFirstGradient * expected.first.gradients.at(name)) << name;
  }
}

TEST_P(OnGpus, SharedByAllRanks) {
  g_gpus = Gpus::shared;
  follow_the_reference(GetParam());
}

TEST_P(OnGpus, OneARank) {
  const int ranks = GetParam().tp * GetParam().pp * GetParam().dp * GetParam().ep * GetParam().cp;
  if (static_cast<int>(find_gpus().gpus.size()) < ranks) GTEST_SKIP() << "needs " << ranks << " GPUs";
  if (ranks == 1) GTEST_SKIP() << "one rank shares its GPU with nobody";
  g_gpus = Gpus::own;
  follow_the_reference(GetParam());
}

// Weights drawn from the seed, dropout on: what the oracle does not have.
TEST(Layer, GradientsAreThoseOfTheCpu) {
  for (const char* name : {"gpt2-tiny", "llama-odd"}) {
    ModelConfig model = oracle_model(name);
    model.layers = 1;
    const test::TemporaryFolder folder;
    RunConfig run = oracle_run({.model = name, .micro_batch = 4});
    run.weights.clear();
    run.dropout = 0.1;
    run.steps = 1;
    std::vector<Trace> traces;
    std::vector<Norms> gradients;
    for (const Gpus gpus : {Gpus::none, Gpus::shared}) {
      g_gpus = gpus;
      run.dump_grads = folder / "gradients.json";
      traces.push_back(trace(run, model));
      gradients.push_back(read_norms(run.dump_grads));
      std::filesystem::remove(run.dump_grads);
    }
    g_gpus = Gpus::none;
    EXPECT_NEAR(traces[1].losses.at(0), traces[0].losses.at(0), kLoss * traces[0].losses.at(0)) << name;
    ASSERT_EQ(gradients[1].size(), gradients[0].size());
    for (const auto& [parameter, norm] : gradients[0]) {
      EXPECT_NEAR(gradients[1].at(parameter), norm, kFirstGradient * norm) << name << ", " << parameter;
    }
  }
}

TEST(OnGpusRequest, WhatIsTheCpusIsRefused) {
  RunConfig run = oracle_run({.model = "gpt2-tiny", .pp = 2});
  run.balance = Balance::measured;
  run.threads_per_rank = 3;
  try {
    train(run, oracle_model("gpt2-tiny"), {}, nullptr, {.gpus = {0, 0}});
    ADD_FAILURE() << "the CPU's times decided a GPU's stages";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    EXPECT_NE(std::string(error.what()).find("--balance measured"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("--threads-per-rank 3"), std::string::npos) << error.what();
  }
}

// What surrounds the steps: dropout, recomputation, validation, timelines, checkpoints written in the background; and
// going on on another grid with the same bits.
TEST(OnGpusRun, SavesAndGoesOn) {
  const test::TemporaryFolder folder;
  const auto train_on = [&](const Layout& layout, const std::string& out, const Checkpoint* from) {
    RunConfig run = oracle_run(layout);
    run.steps = 4;
    run.dropout = 0.1;
    run.recompute = Recompute::selective;
    run.data.validation_fraction = 0.1;
    run.data.eval_every = 2;
    run.timeline = run.async_save = true;
    run.checkpoint_every = 2;
    run.out = folder / out;
    const std::vector<int> gpus(static_cast<std::size_t>(run.grid.world()), 0);
    return train(run, oracle_model(layout.model), {}, from, {.gpus = gpus});
  };
  const TrainResult whole = train_on({.pp = 2, .schedule = "zb-h1"}, "whole", nullptr);
  const Checkpoint saved = Checkpoint::open(folder / "whole/checkpoints/" + checkpoint_name(2));
  EXPECT_TRUE(saved.verify().empty());
  const TrainResult resumed = train_on({}, "resumed", &saved);
  EXPECT_EQ(resumed.first_step, 2);
  EXPECT_EQ(resumed.weights_hash, whole.weights_hash);
  ASSERT_TRUE(whole.validation_loss && resumed.validation_loss);
  EXPECT_EQ(*resumed.validation_loss, *whole.validation_loss);
  EXPECT_TRUE(std::filesystem::exists(folder / "whole/timeline.json"));
}

// What is kept from step to step is the same on every device, to the byte.
TEST(OnGpusMemory, StateIsCountedByCategory) {
  RunConfig run = oracle_run({.model = "gpt2-tiny", .dp = 2, .zero = 1});
  run.dtype = DType::bfloat16;
  run.steps = 1;
  const ModelConfig model = oracle_model("gpt2-tiny");
  const std::vector<MemoryUse> kept = kept_memory(run, model, plan_pipeline(run, model));
  const std::vector<MemoryUse> peaks = train(run, model, {}, nullptr, {.gpus = {0, 0}}).rank_peaks;
  ASSERT_EQ(peaks.size(), 2U);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (const Category c : {Category::parameters, Category::gradients, Category::optimizer}) {
      EXPECT_EQ(peaks[rank][c], kept[rank][c]) << name_of(c) << " of rank " << rank;
    }
    EXPECT_GT(peaks[rank][Category::activations], 0);
  }
  // The limit counts what is on the GPU.
  run.memory_limit = kept.front().total + 1000;
  try {
    train(run, model, {}, nullptr, {.gpus = {0, 0}});
    ADD_FAILURE() << "the limit has not stopped it";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_status(), 3);
    EXPECT_NE(std::string(error.what()).find("--memory-limit"), std::string::npos) << error.what();
  }
}

// What ranks keep must fit in the GPU that they share, whatever the machine has.
TEST(OnGpusRequest, ModelsThatDoNotFitInTheGpusAreRefused) {
  ModelConfig model = oracle_model("gpt2-tiny");
  const auto gpus = find_gpus().gpus;
  ASSERT_FALSE(gpus.empty());
  const double bytes_a_layer = 16.0 * 12 * 4096 * 4096;
  model.hidden = 4096;
  model.ffn = 4 * model.hidden;
  model.head_dim = static_cast<int>(model.hidden) / static_cast<int>(model.heads);
  // All of it twice fits in no GPU; once in its own, each rank's does.
  model.layers = static_cast<int>(0.6 * static_cast<double>(gpus.front().memory_bytes) / bytes_a_layer);
  RunConfig run = oracle_run({.model = "gpt2-tiny", .dp = 2, .micro_batch = 4});
  run.weights.clear();
  const PipelineLayout layout = plan_pipeline(run, model);
  const auto reasons_with = [&](std::vector<int> on) {
    Problems problems;
    check_memory(run, model, layout, {.gpus = std::move(on)}, problems);
    return problems.reasons();
  };
  ASSERT_EQ(reasons_with({0, 0}).size(), 1U);
  EXPECT_NE(reasons_with({0, 0}).front().find("of GPU 0 (" + gpus.front().name), std::string::npos)
      << reasons_with({0, 0}).front();
  if (gpus.size() < 2) GTEST_SKIP() << "the rest needs 2 GPUs";
  EXPECT_TRUE(reasons_with({0, 1}).empty()) << reasons_with({0, 1}).front();
}

// All that is asked of GPUs, over all 20 steps. By hand: it takes minutes on the emulation.
std::vector<Layout> all_layouts() {
  std::vector<Layout> all;
  for (const char* model : {"gpt2-tiny", "llama-odd", "mixtral-tiny"}) {
    const bool experts = std::string_view(model) == "mixtral-tiny";
    all.push_back({.model = model, .micro_batch = 4});
    all.push_back({.model = model, .tp = 2, .micro_batch = 4});
    if (experts) all.push_back({.model = model, .micro_batch = 4, .ep = 2});
    all.push_back({.model = model, .cp = 4, .micro_batch = 4});
    all.push_back({.model = model, .tp = 2, .pp = 2, .cp = 2, .sequence_parallel = true, .zero = 3});
    for (const char* schedule : {"1f1b", "zb-h1"}) all.push_back({.model = model, .pp = 2, .schedule = schedule});
    for (const int zero : {0, 1, 2, 3}) {
      all.push_back({.model = model, .dp = 2, .zero = zero});
      for (const char* schedule : {"1f1b", "zb-h1"}) {
        const bool sp = zero % 2 == 1;
        all.push_back({.model = model,
                       .tp = 2,
                       .pp = 2,
                       .dp = experts ? 1 : 2,
                       .sequence_parallel = sp,
                       .schedule = schedule,
                       .zero = zero,
                       .ep = experts ? 2 : 1});
      }
    }
  }
  return all;
}

class AllOnGpus : public OnGpus {};

TEST_P(AllOnGpus, FollowTheReference) {
  const int ranks = GetParam().tp * GetParam().pp * GetParam().dp * GetParam().ep * GetParam().cp;
  const bool enough = static_cast<int>(find_gpus().gpus.size()) >= ranks;
  for (const Gpus gpus : {Gpus::shared, Gpus::own}) {
    if (gpus == Gpus::own && (ranks == 1 || !enough)) continue;
    g_gpus = gpus;
    follow_the_reference(GetParam(), 20);
  }
}

INSTANTIATE_TEST_SUITE_P(DISABLED_All, AllOnGpus, testing::ValuesIn(all_layouts()),
                         [](const auto& layout) { return name_of(layout.param); });
INSTANTIATE_TEST_SUITE_P(Ladder, OnGpus, testing::ValuesIn(layouts()),
                         [](const auto& layout) { return name_of(layout.param); });

}  // namespace
}  // namespace cuboid::golden
