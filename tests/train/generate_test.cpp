// Text from a model: which token is chosen, and that the tokens do not depend on the grid or on how sequences are
// padded.
#include "cuboid/train/generate.h"

#include <cmath>

#include <gtest/gtest.h>

#include "cuboid/formats/hf_config.h"
#include "cuboid/train/weights.h"

#include "formats/files.h"

namespace cuboid {
namespace {

using Tokens = std::vector<std::int32_t>;

TEST(ChooseToken, TheLikeliestAndTheFirstOfEquals) {
  EXPECT_EQ(choose_token(std::vector<float>{-1, 3, 2, 3}, {}, 0), 1);
  // So near to zero a temperature leaves nothing to the others, whatever is drawn.
  for (int i = 0; i < 50; ++i) EXPECT_EQ(choose_token(std::vector<float>{-1, 3, 2}, {.temperature = 0.01}, i), 1);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(choose_token(std::vector<float>{-1, 3, 2}, {.temperature = 5, .top_p = 1e-9}, i), 1);
  }
}

TEST(ChooseToken, DrawsByProbability) {
  // 1/2, 1/8, 1/4, 1/8 at temperature 1; in 4000 draws a share is off by less than 5 deviations of at most 0.0079.
  const std::vector<float> logits = {std::log(4.0F), 0, std::log(2.0F), 0};
  const auto shares = [&](const TokenChoice& choice) {
    std::vector<double> share(4);
    for (int i = 0; i < 4000; ++i) share[static_cast<std::size_t>(choose_token(logits, choice, i))] += 1.0 / 4000;
    return share;
  };
  const auto expect_shares = [&](const TokenChoice& choice, const std::vector<double>& expected) {
    const auto made = shares(choice);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(made[i], expected[i], expected[i] == 0 ? 0 : 0.04) << i;
  };
  expect_shares({.temperature = 1}, {0.5, 0.125, 0.25, 0.125});
  // Squared at half the temperature: 16, 1, 4, 1 of 22.
  expect_shares({.temperature = 0.5}, {16 / 22.0, 1 / 22.0, 4 / 22.0, 1 / 22.0});
  // The likeliest that reach 3/4 are two; a little more takes the first of the equal ones.
  expect_shares({.temperature = 1, .top_p = 0.75}, {2 / 3.0, 0, 1 / 3.0, 0});
  expect_shares({.temperature = 1, .top_p = 0.76}, {0.5 / 0.875, 0.125 / 0.875, 0.25 / 0.875, 0});
  EXPECT_NE(shares({.temperature = 1}), shares({.temperature = 1, .seed = 1}));
}

class Generate : public testing::Test {
 protected:
  explicit Generate(const std::string& model = "llama-odd")
      : config_(load_model(test::oracle_path(model))), weights_(WeightFolder::open(test::oracle_path(model))) {}
  Tokens run(Tokens prompt, int tokens, const TokenChoice& choice = {}, int tp = 1, int pp = 1,
             std::int32_t end = -1) const {
    GenerateRequest request;
    request.grid = Grid({{tp, 1, 1, 1, pp}}, Grid::kDefaultOrder);
    request.prompt = std::move(prompt);
    request.tokens = tokens;
    request.choice = choice;
    request.end = end;
    request.deadline = 60;
    return generate(config_, request, [&](ParameterStore& store) { load_weights(weights_, config_, store); });
  }
  ModelConfig config_;
  WeightFolder weights_;
};

TEST_F(Generate, TheSameTokensOnEveryGrid) {
  const Tokens prompt = {3, 499, 17, 40};
  for (const TokenChoice& choice : {TokenChoice{}, TokenChoice{.temperature = 1.2, .top_p = 0.95, .seed = 9}}) {
    const Tokens one = run(prompt, 12, choice);
    EXPECT_EQ(one.size(), 12U);
    EXPECT_EQ(run(prompt, 12, choice, 2, 1), one);
    EXPECT_EQ(run(prompt, 12, choice, 1, 5), one);
    EXPECT_EQ(run(prompt, 12, choice, 2, 2), one);
  }
  EXPECT_NE(run(prompt, 12, {.temperature = 1.2, .seed = 9}), run(prompt, 12, {.temperature = 1.2, .seed = 10}));
}

// Going on from a longer prompt is the same as having got there, also where sequences grow past a multiple of 64.
TEST_F(Generate, PaddingIsNotSeen) {
  Tokens prompt;
  for (std::int32_t i = 0; i < 61; ++i) prompt.push_back(i * i % 501);
  const Tokens made = run(prompt, 6);
  for (std::size_t k : {std::size_t{2}, std::size_t{5}}) {
    Tokens longer = prompt;
    longer.insert(longer.end(), made.begin(), made.begin() + static_cast<std::ptrdiff_t>(k));
    EXPECT_EQ(run(longer, 1).front(), made[k]) << k;
  }
}

TEST_F(Generate, EndsAtTheEndToken) {
  const Tokens prompt = {5, 6};
  const Tokens made = run(prompt, 8);
  const Tokens ended = run(prompt, 8, {}, 1, 2, made[3]);
  const auto first = std::find(made.begin(), made.end(), made[3]);
  EXPECT_EQ(ended, Tokens(made.begin(), first + 1));
}

TEST_F(Generate, RefusesWhatCannotBe) {
  GenerateRequest request;
  request.grid = Grid({{5, 1, 1, 2, 1}}, Grid::kDefaultOrder);
  request.prompt = {501};
  request.choice = {.temperature = -1, .top_p = 2};
  Problems problems;
  check_generate(config_, request, problems);
  const std::string all = [&] {
    std::string text;
    for (const auto& reason : problems.reasons()) text += reason + "\n";
    return text;
  }();
  test::expect_mentions(
      all, {"--tp 5: 6 attention heads", "--dp 2: a sequence", "holds token 501", "--temperature -1", "--top-p 2"});
}

}  // namespace
}  // namespace cuboid
