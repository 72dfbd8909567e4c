// Oracle runs with all ranks on one GPU: the highest rungs that a single GPU reaches.
#include <random>

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

class OnOneGpu : public testing::TestWithParam<Layout> {
 protected:
  OnOneGpu() { g_on_gpu = true; }
  ~OnOneGpu() override { g_on_gpu = false; }
};

TEST_P(OnOneGpu, FollowsTheReference) {
  const Layout& layout = GetParam();
  const Expected expected = read_expected(layout.model);
  const test::TemporaryFolder folder;
  RunConfig run = oracle_run(layout);
  run.steps = 5;
  run.dump_grads = folder / "gradients.json";
  const Trace trained = trace(run, oracle_model(layout.model));
  ASSERT_EQ(trained.losses.size(), 5U);
  for (std::size_t s = 0; s < trained.losses.size(); ++s) {
    EXPECT_NEAR(trained.losses[s], expected.losses[s], kLoss * expected.losses[s]) << "loss of step " << s;
    EXPECT_NEAR(trained.grad_norms[s], expected.grad_norms[s], kNorm * expected.grad_norms[s]) << "norm of step " << s;
  }
  for (const auto& [name, norm] : read_norms(run.dump_grads)) {
    EXPECT_NEAR(norm, expected.first.gradients.at(name), kFirstGradient * expected.first.gradients.at(name)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Ladder, OnOneGpu, testing::ValuesIn(layouts()),
                         [](const auto& layout) { return name_of(layout.param); });

}  // namespace
}  // namespace cuboid::golden
