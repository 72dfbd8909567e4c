// Training in bfloat16: near the float32 reference, nearer to itself on other grids, and the same bits where float32
// has them; and what happens to a step whose numbers are not finite.
#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include "formats/files.h"
#include "harness.h"

namespace cuboid::golden {
namespace {

constexpr double kReference = 2e-2;  // of a loss, in nats: 8 bits of significand through 20 steps
constexpr double kGrids = 5e-3;      // between grids: other orders of sums, other places of rounding

RunConfig bfloat16_run(const Layout& layout) {
  RunConfig run = oracle_run(layout);
  run.dtype = DType::bfloat16;
  return run;
}

void expect_near(const std::vector<double>& losses, const std::vector<double>& expected, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t s = 0; s < losses.size(); ++s) {
    EXPECT_NEAR(losses[s], expected[s], tolerance) << what << ", step " << s;
  }
}

class BFloat16Training : public testing::TestWithParam<const char*> {};

TEST_P(BFloat16Training, FollowsTheReferenceAndItselfOnOtherGrids) {
  const std::string name = GetParam();
  const ModelConfig model = oracle_model(name);
  const Expected expected = read_expected(name);
  const Trace one = trace(bfloat16_run({.model = name}), model);
  expect_near(one.losses, expected.losses, kReference, "one rank");
  EXPECT_GT(std::abs(one.losses[0] - expected.losses[0]), 1e-6) << "computed in float32";

  for (const char* schedule : {"gpipe", "zb-h1", "interleaved-1f1b"}) {
    const Layout layout{.model = name, .pp = 2, .schedule = schedule};
    EXPECT_EQ(trace(bfloat16_run(layout), model).result.weights_hash, one.result.weights_hash) << name_of(layout);
  }
  const Layout others[] = {{.model = name, .tp = 2, .sequence_parallel = true},
                           {.model = name, .dp = 4, .micro_batch = 1, .zero = 2},
                           {.model = name, .cp = 4},
                           {.model = name, .tp = 2, .pp = 2, .dp = 2, .zero = 3}};
  for (const Layout& layout : others) {
    RunConfig run = bfloat16_run(layout);
    expect_near(trace(run, model).losses, one.losses, kGrids, name_of(layout));
    if (layout.pp == 1) continue;
    run.reduce_dtype = DType::bfloat16;
    expect_near(trace(run, model).losses, expected.losses, kReference, name_of(layout) + " reduced in bfloat16");
  }
}

INSTANTIATE_TEST_SUITE_P(Models, BFloat16Training, testing::Values("gpt2-tiny", "llama-tiny", "llama-odd"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(BFloat16Bits, ReductionsTravelInTheTypeAsked) {
  const ModelConfig model = oracle_model("llama-odd");
  for (const Layout& layout : {Layout{.model = "llama-odd", .tp = 2}, Layout{.model = "llama-odd", .dp = 2},
                               Layout{.model = "llama-odd", .cp = 2}}) {
    RunConfig run = bfloat16_run(layout);
    run.steps = 2;
    const std::string in_float = train(run, model).weights_hash;
    run.reduce_dtype = DType::bfloat16;
    EXPECT_NE(train(run, model).weights_hash, in_float) << name_of(layout);
  }
}

TEST(BFloat16Bits, ZeroStageAndRecomputationChangeNone) {
  const ModelConfig model = oracle_model("gpt2-tiny");
  for (const Layout& layout : {Layout{.model = "gpt2-tiny", .dp = 2}, Layout{.model = "gpt2-tiny", .cp = 2}}) {
    RunConfig run = bfloat16_run(layout);
    run.steps = 5;
    run.dropout = 0.1;
    const std::string hash = train(run, model).weights_hash;
    run.zero = 1;
    EXPECT_EQ(train(run, model).weights_hash, hash) << name_of(layout);
    for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
      run.recompute = recompute;
      EXPECT_EQ(train(run, model).weights_hash, hash) << name_of(layout);
    }
  }
}

// ---------------------------------------------------------------- numbers that are not finite

// A copy of the llama-tiny oracle in which element `at` of a tensor is infinite.
void poison(const test::TemporaryFolder& folder, const std::string& tensor, std::int64_t at) {
  std::ifstream in(oracle_folder("llama-tiny") + "/model.safetensors", std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto table = nlohmann::json::parse(bytes.substr(8, header));
  const auto begin = table.at(tensor).at("data_offsets").at(0).get<std::uint64_t>();
  const float infinity = std::numeric_limits<float>::infinity();
  std::memcpy(bytes.data() + 8 + header + begin + 4 * static_cast<std::uint64_t>(at), &infinity, sizeof infinity);
  folder.write("model.safetensors", bytes);
}

struct Skips {
  std::vector<int> skipped;  // after each step
  TrainResult result;
};
Skips skips_of(const RunConfig& run, const ModelConfig& model) {
  Skips made;
  TrainEvents events;
  events.on_step = [&](const StepMetrics& m) { made.skipped.push_back(m.skipped_steps); };
  made.result = train(run, model, events);
  return made;
}

class NotFinite : public testing::TestWithParam<DType> {};

// One token, in one sample of step 2 which data-parallel rank 1 of 2 and pipeline rank 0 read, meets an infinite row.
TEST_P(NotFinite, AllRanksSkipTheStepThatOneOfThemSpoils) {
  const ModelConfig model = oracle_model("llama-tiny");
  const test::TemporaryFolder folder;
  const auto rare = static_cast<std::uint16_t>(model.vocab - 1);
  std::vector<std::uint16_t> tokens = read_tokens("llama-tiny");
  for (auto& token : tokens) token = std::min<std::uint16_t>(token, rare - 1);
  tokens[(2 * 8 + 6) * 32 + 9] = rare;
  const std::string data(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size());
  poison(folder, "model.embed_tokens.weight", std::int64_t{rare} * model.hidden + 3);

  std::map<int, std::string> hash;  // by dp
  const Layout layouts[] = {{.model = "llama-tiny", .dp = 2},
                            {.model = "llama-tiny", .pp = 2, .dp = 2, .zero = 1},
                            {.model = "llama-tiny", .dp = 1},
                            {.model = "llama-tiny", .pp = 3, .schedule = "zb-h1"}};
  for (const Layout& layout : layouts) {
    RunConfig run = oracle_run(layout);
    run.dtype = GetParam();
    run.weights = folder.path();
    run.data.paths = {folder.write("tokens.bin", data)};
    run.steps = 4;
    const Skips skips = skips_of(run, model);
    EXPECT_EQ(skips.skipped, (std::vector<int>{0, 0, 1, 1})) << name_of(layout);
    EXPECT_EQ(skips.result.skipped_steps, 1);
    EXPECT_TRUE(std::isfinite(skips.result.final_loss)) << name_of(layout) << ": the weights are whole";
    const auto [first, is_new] = hash.try_emplace(layout.dp, skips.result.weights_hash);
    EXPECT_EQ(skips.result.weights_hash, first->second) << name_of(layout);
    run.stop_on_nan = true;
    EXPECT_EQ(train(run, model).steps, 3) << name_of(layout);
  }
}

TEST_P(NotFinite, AStageOfThePipelineThatIsSpoiltSkipsEveryStepEverywhere) {
  const ModelConfig model = oracle_model("llama-tiny");
  const test::TemporaryFolder folder;
  poison(folder, "model.layers.5.mlp.down_proj.weight", 7);
  RunConfig run = oracle_run({.model = "llama-tiny", .tp = 2, .pp = 2, .dp = 2});
  run.dtype = GetParam();
  run.weights = folder.path();
  run.steps = 3;
  const Skips skips = skips_of(run, model);
  EXPECT_EQ(skips.skipped, (std::vector<int>{1, 2, 3}));
  run.steps = 1;
  EXPECT_EQ(train(run, model).weights_hash, skips.result.weights_hash) << "no step has changed anything";
}

INSTANTIATE_TEST_SUITE_P(Types, NotFinite, testing::Values(DType::float32, DType::bfloat16),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

}  // namespace
}  // namespace cuboid::golden
