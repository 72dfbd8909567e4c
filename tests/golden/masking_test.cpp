// Targets left out of the loss: it is the sum over the targets that count, divided by their number in the global batch.
#include "formats/files.h"
#include "harness.h"

namespace cuboid::golden {
namespace {

constexpr int kT = 32, kB = 8;

class Masking : public testing::Test {
 protected:
  /// A run on the given tokens with targets left out where `keep` is zero, a byte a token.
  RunConfig masked_run(const Layout& layout, const std::vector<std::uint16_t>& tokens, const std::string& keep) const {
    RunConfig run = oracle_run(layout);
    run.steps = 1;
    run.data.paths = {folder_.write("tokens.bin", test::bytes_of(tokens))};
    run.data.mask_file = folder_.write("mask", keep);
    run.dump_grads = folder_ / "gradients.json";
    return run;
  }
  test::TemporaryFolder folder_;
};

TEST_F(Masking, AMaskFileGivesTheReferencesMaskedBatch) {
  for (const Layout& layout :
       {Layout{.model = "llama-odd"}, Layout{.model = "llama-odd", .tp = 2, .pp = 2, .dp = 2, .micro_batch = 1}}) {
    const ExpectedBatch expected = read_expected(layout.model).masked;
    std::vector<std::uint16_t> tokens = read_tokens(layout.model);
    tokens = {tokens.begin() + 20 * kB * kT, tokens.begin() + 21 * kB * kT + 1};
    std::string keep(tokens.size(), '\1');
    int left_out = 0;
    for (std::size_t b = 0; b < kB; ++b) {
      for (std::size_t t = 0; t < kT; ++t) {
        if (expected.targets[b][t] != -100) continue;
        keep[b * kT + t + 1] = '\0';
        ++left_out;
      }
    }
    ASSERT_EQ(kB * kT - left_out, 229);
    const RunConfig run = masked_run(layout, tokens, keep);
    const Trace trained = trace(run, oracle_model(layout.model));
    EXPECT_NEAR(trained.losses[0], expected.loss, 1e-5 * expected.loss) << name_of(layout);
    EXPECT_NEAR(trained.grad_norms[0], expected.grad_norm, 2e-5 * expected.grad_norm) << name_of(layout);
    const Norms gradients = read_norms(run.dump_grads);
    for (const auto& [name, norm] : expected.gradients) EXPECT_NEAR(gradients.at(name), norm, 2e-5 * norm) << name;
  }
}

TEST_F(Masking, ADataRankWithoutTargetsAddsNothing) {
  const Expected expected = read_expected("gpt2-tiny");
  const std::vector<std::uint16_t> tokens = read_tokens("gpt2-tiny");
  std::string keep(tokens.size(), '\1');
  for (std::size_t i = 4 * kT + 1; i <= kB * kT; ++i) keep[i] = '\0';  // all targets of sequences 4 … 7: data rank 1
  double loss = 0;
  for (std::size_t b = 0; b < 4; ++b) loss += expected.first.sums[b] / (4 * kT);
  std::vector<double> norms;
  for (const Layout& layout :
       {Layout{}, Layout{.dp = 2}, Layout{.pp = 2, .dp = 2, .micro_batch = 1}, Layout{.dp = 8, .micro_batch = 1}}) {
    const Trace trained = trace(masked_run(layout, tokens, keep), oracle_model("gpt2-tiny"));
    EXPECT_NEAR(trained.losses[0], loss, 1e-5 * loss) << name_of(layout);
    norms.push_back(trained.grad_norms[0]);
    EXPECT_NEAR(norms.back(), norms.front(), 2e-5 * norms.front()) << name_of(layout);
  }
  EXPECT_GT(norms.front(), expected.first.grad_norm) << "half the targets, so less is averaged out";
}

TEST_F(Masking, ABatchWithoutTargetsHasLossAndGradientZeroAndAWarning) {
  const std::vector<std::uint16_t> tokens = read_tokens("gpt2-tiny");
  for (const Layout& layout : {Layout{}, Layout{.tp = 2, .pp = 2, .dp = 2}}) {
    RunConfig run = masked_run(layout, tokens, std::string(tokens.size(), '\0'));
    run.optimizer.weight_decay = 0;
    testing::internal::CaptureStderr();
    const Trace trained = trace(run, oracle_model("gpt2-tiny"));
    const std::string messages = testing::internal::GetCapturedStderr();
    EXPECT_EQ(trained.losses[0], 0) << name_of(layout);
    EXPECT_EQ(trained.grad_norms[0], 0) << name_of(layout);
    EXPECT_NE(messages.find("warning: step 0: every target of the batch is masked"), std::string::npos) << messages;
    for (const auto& [name, norm] : read_norms(run.dump_grads)) EXPECT_EQ(norm, 0) << name;
    run.steps = 0;
    run.dump_grads.clear();
    EXPECT_EQ(trained.result.weights_hash, learn(run, oracle_model("gpt2-tiny"), {}).weights_hash) << "no weight moved";
  }
}

TEST_F(Masking, AMaskTokenLeavesOutItsTargets) {
  const std::vector<std::uint16_t> tokens = read_tokens("llama-tiny");
  const std::uint16_t id = tokens[40];
  std::string keep(tokens.size(), '\1');
  for (std::size_t i = 0; i < tokens.size(); ++i) keep[i] = tokens[i] == id ? '\0' : '\1';
  RunConfig run = masked_run({.model = "llama-tiny", .dp = 2}, tokens, keep);
  const Trace by_file = trace(run, oracle_model("llama-tiny"));
  run.data.mask_file.clear();
  run.data.mask_token = id;
  const Trace by_token = trace(run, oracle_model("llama-tiny"));
  EXPECT_EQ(by_token.losses, by_file.losses);
  EXPECT_EQ(by_token.result.weights_hash, by_file.result.weights_hash);
  run.data.mask_token.reset();
  EXPECT_NE(trace(run, oracle_model("llama-tiny")).losses, by_token.losses);
}

}  // namespace
}  // namespace cuboid::golden
