// What a run tells and refuses; that it computes the right numbers is tests/golden.
#include "cuboid/train/trainer.h"

#include <nlohmann/json.hpp>

#include "cuboid/formats/hf_config.h"
#include "cuboid/models/registry.h"

#include "formats/files.h"

namespace cuboid {
namespace {

class Trainer : public testing::Test {
 protected:
  Trainer() {
    run_.data.paths = {test::oracle_path("gpt2-tiny/tokens.bin")};
    run_.micro_batch = 1;
    run_.global_batch = 6;
    run_.seq_len = 16;
    run_.steps = 4;
    run_.seed = 11;
  }
  void set_grid(int tp, int pp, int dp) { run_.grid = Grid({{tp, 1, 1, dp, pp}}, Grid::kDefaultOrder); }

  ModelConfig model_ = load_model(test::oracle_path("gpt2-tiny"));
  RunConfig run_;
  test::TemporaryFolder folder_;
};

TEST_F(Trainer, TellsWhatItDecidedAndEveryStep) {
  set_grid(1, 2, 2);
  run_.stage_layers = {3, 1};
  run_.optimizer.warmup_steps = 2;
  run_.optimizer.lr = 0.01;
  run_.data.validation_fraction = 0.01;
  run_.data.eval_every = 3;
  std::vector<std::string> events;
  std::vector<StepMetrics> steps;
  RunStart start;
  TrainEvents listener;
  listener.on_start = [&](const RunStart& s) {
    events.push_back("start");
    start = s;
  };
  listener.on_step = [&](const StepMetrics& m) {
    events.push_back("step " + std::to_string(m.step));
    steps.push_back(m);
  };
  std::vector<double> validation;
  listener.on_validation = [&](int step, double loss) {
    events.push_back("validation " + std::to_string(step));
    validation.push_back(loss);
  };
  const TrainResult result = train(run_, model_, listener);

  EXPECT_EQ(events, (std::vector<std::string>{"start", "step 0", "step 1", "step 2", "validation 2", "step 3",
                                              "validation 3"}));
  EXPECT_EQ(start.params, parameters_of(model_).total());
  EXPECT_EQ(start.world, 4);
  EXPECT_EQ(start.micro_batches, 3);
  EXPECT_EQ(start.stage_layers, (std::vector<int>{3, 1}));
  EXPECT_FALSE(start.stages_balanced);
  // 19,999 / 16 samples, 1 % of them for validation.
  EXPECT_EQ(start.train_samples + start.validation_samples, 1249);
  EXPECT_EQ(start.validation_samples, 12);

  for (const StepMetrics& m : steps) {
    EXPECT_EQ(m.tokens, 96);
    EXPECT_DOUBLE_EQ(m.lr, m.step == 0 ? 0.005 : 0.01);
    EXPECT_GT(m.grad_norm, 0);
    EXPECT_GT(m.step_seconds, 0);
    EXPECT_NEAR(m.tokens_per_second * m.step_seconds, 96, 1e-9);
    const double flops = flops_per_token(model_, 16).training() * 96;
    EXPECT_NEAR(m.tflops_per_rank * 1e12 * m.step_seconds * 4, flops, 1e-9 * flops);
    EXPECT_GE(m.bubble_fraction, 0);
    EXPECT_LT(m.bubble_fraction, 1);
    // Weights, gradients and two moments of the larger stage: all counted to the byte, but for 64-byte padding.
    const auto bytes = [&](Category c) { return m.peak_bytes[static_cast<std::size_t>(c)]; };
    EXPECT_EQ(bytes(Category::gradients), bytes(Category::parameters));
    EXPECT_LE(bytes(Category::optimizer), 2 * bytes(Category::parameters));
    const ParameterTable table = parameters_of(model_);
    std::int64_t first_stage = 0;
    for (int block = 0; block <= 3; ++block) first_stage += table.total_of_block(block);
    EXPECT_GE(bytes(Category::parameters), 4 * first_stage);
    EXPECT_LT(bytes(Category::parameters), 4 * first_stage + 64 * static_cast<std::int64_t>(table.rows().size()));
    EXPECT_GT(bytes(Category::activations), 0);
  }
  EXPECT_EQ(result.steps, 4);
  EXPECT_EQ(result.final_loss, steps.back().loss);
  ASSERT_TRUE(result.validation_loss.has_value());
  EXPECT_EQ(*result.validation_loss, validation.back());
  EXPECT_NE(validation.back(), validation.front());
  EXPECT_GT(result.tokens_per_second, 0);
  EXPECT_FALSE(result.nan_stop);
}

// 12 samples in batches of 8: the last is filled up with samples that do not count.
TEST_F(Trainer, ValidationCountsEverySampleOnceOnAnyGrid) {
  run_.data.validation_fraction = 0.01;
  run_.data.eval_every = 1;
  run_.global_batch = 8;
  run_.steps = 1;
  run_.optimizer.lr = 1e-12;  // the weights stay what they are
  run_.dropout = 0.5;         // and evaluation drops nothing
  const double one = *train(run_, model_).validation_loss;
  struct Degrees {
    int tp, pp, dp;
  };
  for (const auto [tp, pp, dp] : {Degrees{2, 1, 1}, Degrees{1, 3, 1}, Degrees{1, 1, 4}, Degrees{2, 2, 2}}) {
    set_grid(tp, pp, dp);
    EXPECT_NEAR(*train(run_, model_).validation_loss, one, 1e-5 * one) << tp << " " << pp << " " << dp;
  }
  // The mean over the last 12 samples, computed as training losses of a stream that consists of them.
  set_grid(1, 1, 1);
  const std::string tokens = test::contents(run_.data.paths.front());
  run_.data = {};
  run_.data.paths = {folder_.write("tail.bin", tokens.substr(2 * 16 * (1249 - 12), 2 * (12 * 16 + 1)))};
  run_.global_batch = 12;
  run_.dropout = 0;
  EXPECT_NEAR(train(run_, model_).final_loss, one, 1e-6 * one);
}

TEST_F(Trainer, StopsAtANumberThatIsNoneOnlyWhenAsked) {
  set_grid(1, 2, 1);
  run_.optimizer.kind = OptimizerKind::sgd;
  run_.optimizer.lr = 1e30;
  run_.optimizer.clip_grad = 0;
  const TrainResult all = train(run_, model_);
  EXPECT_EQ(all.steps, 4);
  EXPECT_FALSE(std::isfinite(all.final_loss));
  EXPECT_FALSE(all.nan_stop);
  run_.stop_on_nan = true;
  const TrainResult stopped = train(run_, model_);
  EXPECT_EQ(stopped.steps, 2);
  EXPECT_TRUE(stopped.nan_stop);
}

TEST_F(Trainer, RefusesWithAllReasonsBeforeItStarts) {
  set_grid(8, 5, 1);
  run_.seq_len = 65;
  run_.data.paths = {folder_ / "nothing.bin"};
  run_.weights = folder_ / "no-weights";
  run_.dump_grads = folder_ / "no/folder/gradients.json";
  bool started = false;
  TrainEvents listener;
  listener.on_start = [&](const RunStart&) { started = true; };
  const std::string reasons = test::refusal([&] { train(run_, model_, listener); });
  for (const char* words : {"--tp 8", "--pp 5", "--seq-len 65", "nothing.bin", "no-weights", "--dump-grads"}) {
    EXPECT_NE(reasons.find(words), std::string::npos) << words << " in\n" << reasons;
  }
  EXPECT_FALSE(started);
}

TEST_F(Trainer, TimelineHasALaneARankAndEveryAction) {
  set_grid(2, 2, 1);
  run_.steps = 2;
  run_.timeline = true;
  run_.out = folder_.path();
  train(run_, model_);
  const auto timeline = nlohmann::json::parse(test::contents(folder_ / "timeline.json"));
  std::map<int, int> forwards;
  std::map<int, int> steps;
  for (const auto& event : timeline.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    EXPECT_GE(event.at("ts").get<double>(), 0);
    EXPECT_GE(event.at("dur").get<double>(), 0);
    const int rank = event.at("tid");
    const std::string name = event.at("name");
    if (event.at("cat") == "compute" && name.find('F') != std::string::npos) ++forwards[rank];
    if (name.find("STEP") != std::string::npos) ++steps[rank];
  }
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(forwards[rank], 2 * 6) << "rank " << rank;
    EXPECT_EQ(steps[rank], 2) << "rank " << rank;
  }
}

}  // namespace
}  // namespace cuboid
