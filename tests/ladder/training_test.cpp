// Oracle runs: with all ranks on one GPU, and with a GPU a rank.
#include <filesystem>

#include "cuboid/runtime/gpus.h"

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
      {.model = "llama-odd", .micro_batch = 8},
      {.model = "llama-odd", .tp = 2, .micro_batch = 4},
      {.model = "llama-odd", .pp = 2, .schedule = "1f1b"},
      {.model = "llama-odd", .dp = 2, .micro_batch = 4},
      {.model = "llama-odd", .tp = 2, .pp = 2, .dp = 2, .schedule = "zb-h1", .zero = 3},
  };
}

class OnGpus : public testing::TestWithParam<Layout> {
 protected:
  ~OnGpus() override { g_gpus = Gpus::none; }
};

void follow_the_reference(const Layout& layout) {
  const Expected expected = read_expected(layout.model);
  const test::TemporaryFolder folder;
  RunConfig run = oracle_run(layout);
  run.steps = 4;
  run.dump_grads = folder / "gradients.json";
  const Trace trained = trace(run, oracle_model(layout.model));
  ASSERT_EQ(trained.losses.size(), 4U);
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
  const int ranks = GetParam().tp * GetParam().pp * GetParam().dp;
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

TEST(OnGpusRequest, AProfileOfTheCpuIsRefused) {
  RunConfig run = oracle_run({.model = "gpt2-tiny", .pp = 2});
  run.balance = Balance::measured;
  try {
    train(run, oracle_model("gpt2-tiny"), {}, nullptr, {.gpus = {0, 0}});
    ADD_FAILURE() << "the CPU's times decided a GPU's stages";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    EXPECT_NE(std::string(error.what()).find("--balance measured"), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Ladder, OnGpus, testing::ValuesIn(layouts()),
                         [](const auto& layout) { return name_of(layout.param); });

}  // namespace
}  // namespace cuboid::golden
