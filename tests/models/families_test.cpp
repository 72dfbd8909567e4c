// Every family that the registry knows, built in or not, keeps the laws: nothing here names one. What a family offers
// for it is a small configuration (Model::tiny).
#include <cmath>

#include <gtest/gtest.h>

#include "cuboid/formats/checkpoint.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/models/registry.h"
#include "cuboid/train/convert.h"
#include "cuboid/train/replica.h"
#include "cuboid/train/trainer.h"

#include "formats/files.h"
#include "tensors.h"

namespace cuboid {
namespace {

constexpr int kSteps = 4;
constexpr int kSaved = 2;

struct Layout {
  int tp = 1, pp = 1, dp = 1;
  bool sequence_parallel = false;
  int zero = 0;
  std::string schedule = "1f1b";
  Recompute recompute = Recompute::none;
};
std::string name_of(const Layout& l) {
  return "tp" + std::to_string(l.tp) + " pp" + std::to_string(l.pp) + " dp" + std::to_string(l.dp) +
         (l.sequence_parallel ? " sp " : " ") + l.schedule + " zero" + std::to_string(l.zero);
}

struct Trained {
  std::vector<double> losses, grad_norms;
  std::string hash;
};

class Families : public testing::TestWithParam<std::string> {
 protected:
  Families() {
    config_.family = GetParam();
    config_ = model_of(config_).tiny();
    std::string bytes;
    for (const double number : test::random_values("tokens", 600)) {
      const auto token = static_cast<std::uint16_t>((number + 1) / 2 * static_cast<double>(config_.vocab));
      bytes += {static_cast<char>(token & 0xFF), static_cast<char>(token >> 8)};
    }
    data_ = folder_.write("tokens.bin", bytes);
  }

  RunConfig run_on(const Layout& l) const {
    RunConfig run;
    run.data.paths = {data_};
    run.grid = Grid({{l.tp, 1, 1, l.dp, l.pp}}, Grid::kDefaultOrder);
    run.sequence_parallel = l.sequence_parallel;
    run.zero = l.zero;
    run.schedule = l.schedule;
    run.recompute = l.recompute;
    run.micro_batch = 1;
    run.global_batch = 4;
    run.seq_len = 16;
    run.steps = kSteps;
    run.seed = 7;
    run.dropout = 0.1;
    run.optimizer.lr = 0.01;
    run.deadline = 60;
    return run;
  }

  Trained train_with(const RunConfig& run, const Checkpoint* from = nullptr) const {
    Trained made;
    TrainEvents events;
    events.on_step = [&](const StepMetrics& m) {
      made.losses.push_back(m.loss);
      made.grad_norms.push_back(m.grad_norm);
    };
    made.hash = train(run, config_, events, from).weights_hash;
    return made;
  }

  test::TemporaryFolder folder_;
  ModelConfig config_;
  std::string data_;
};

TEST_P(Families, HaveATinyConfigurationThatReadsBack) {
  EXPECT_EQ(config_.family, GetParam());
  EXPECT_EQ(read_hf_config(write_hf_config(config_), config_.name), config_);
  const auto degrees = usable_tensor_degrees(config_);
  EXPECT_TRUE(std::find(degrees.begin(), degrees.end(), 4) != degrees.end());
  EXPECT_GE(config_.layers, 3);
}

TEST_P(Families, OneHashOverPipelinesSchedulesAndRecompute) {
  const Trained one = train_with(run_on({}));
  for (const Layout& layout :
       {Layout{.pp = 3}, Layout{.pp = 2, .schedule = "zb-h1"}, Layout{.pp = 2, .schedule = "gpipe"},
        Layout{.recompute = Recompute::full}, Layout{.pp = 2, .recompute = Recompute::selective}}) {
    EXPECT_EQ(train_with(run_on(layout)).hash, one.hash) << name_of(layout);
  }
  RunConfig other = run_on({});
  other.seed = 8;
  EXPECT_NE(train_with(other).hash, one.hash);
}

TEST_P(Families, LossesAndNormsAgreeOverTensorAndDataAxes) {
  const Trained one = train_with(run_on({}));
  for (const Layout& layout :
       {Layout{.tp = 2}, Layout{.tp = 4, .sequence_parallel = true}, Layout{.dp = 2, .zero = 1}, Layout{.tp = 4},
        Layout{.tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .zero = 3}}) {
    const Trained other = train_with(run_on(layout));
    for (std::size_t s = 0; s < one.losses.size(); ++s) {
      EXPECT_NEAR(other.losses[s], one.losses[s], 1e-5 * one.losses[s]) << name_of(layout) << ", step " << s;
      EXPECT_NEAR(other.grad_norms[s], one.grad_norms[s], 1e-4 * one.grad_norms[s]) << name_of(layout);
    }
  }
}

TEST_P(Families, ACheckpointGoesOnOnAnotherGrid) {
  RunConfig saving = run_on({.tp = 2, .pp = 3, .dp = 2, .sequence_parallel = true, .zero = 2});
  saving.out = folder_ / "run";
  saving.checkpoint_every = kSaved;
  const Trained unbroken = train_with(saving);
  const Checkpoint saved = Checkpoint::open(saving.out + "/checkpoints/" + checkpoint_name(kSaved));
  for (const Layout& layout : {Layout{}, Layout{.tp = 4, .pp = 2}}) {
    const Trained resumed = train_with(run_on(layout), &saved);
    ASSERT_EQ(resumed.losses.size(), std::size_t{kSteps - kSaved});
    for (std::size_t s = 0; s < resumed.losses.size(); ++s) {
      const double loss = unbroken.losses[s + kSaved];
      EXPECT_NEAR(resumed.losses[s], loss, 1e-5 * loss) << name_of(layout);
    }
  }
}

TEST_P(Families, HuggingFaceExportAndImportChangeNoBit) {
  RunConfig saving = run_on({.tp = 2, .pp = 2});
  saving.out = folder_ / "run";
  saving.checkpoint_every = kSteps;
  const Trained trained = train_with(saving);
  export_hugging_face(Checkpoint::open(saving.out), folder_ / "hf");
  EXPECT_EQ(load_model(folder_ / "hf").family, GetParam());
  RunConfig still = run_on({});
  still.weights = folder_ / "hf";
  still.steps = 1;
  still.optimizer.lr = 0;
  EXPECT_EQ(train_with(still).hash, trained.hash);
}

// Along each parameter's own gradient the loss grows by that gradient's norm. In float32 a loss near 4 is known to
// about 4e-7 and a step of 0.02 leaves a third derivative's share of 7e-5: both are below 2e-4 on the scale of the
// slope.
TEST_P(Families, GradientsAreDerivatives) {
  RunConfig run = run_on({});
  run.dropout = 0;
  constexpr double kStep = 0.02;
  // Where a token may change its expert, the loss has a step and no slope: here it visits all of them.
  ModelConfig smooth = config_;
  smooth.experts_per_token = smooth.experts;
  const auto layout = plan_pipeline(run, smooth);
  run_ranks(1, [&](RankContext& context) {
    Replica replica(context, run, smooth, layout);
    ParameterStore& store = replica.parameters();
    store.initialize(run.seed);
    const auto read = [&](std::int64_t i, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
      for (std::size_t t = 0; t < inputs.size(); ++t) {
        const auto token = [&](std::size_t at) {
          return static_cast<std::int32_t>((at * at * 7 + static_cast<std::size_t>(i) * 11) %
                                           static_cast<std::size_t>(config_.vocab));
        };
        inputs[t] = token(t);
        targets[t] = token(t + 1);
      }
      return true;
    };
    std::vector<std::vector<float>> gradients;
    replica.train_batch(read, {}, 0, [&] {
      for (const Parameter* p : store.all())
        gradients.emplace_back(p->gradient.data<float>(), p->gradient.data<float>() + p->gradient.elements());
    });
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const Parameter& p = *store.all()[i];
      if (store.shares_values(p)) continue;
      const std::vector<float> values(p.value.data<float>(), p.value.data<float>() + p.value.elements());
      double square = 0;
      for (const float g : gradients[i]) square += double{g} * g;
      const double norm = std::sqrt(square);
      if (norm == 0) continue;
      const auto loss_at = [&](double step) {
        std::vector<float> moved = values;
        for (std::size_t e = 0; e < moved.size(); ++e) {
          moved[e] = static_cast<float>(moved[e] + step * gradients[i][e] / norm);
        }
        store.write_values(p, 0, std::ssize(moved), moved.data());
        return replica.evaluate_batch(read).mean();
      };
      const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
      store.write_values(p, 0, std::ssize(values), values.data());
      EXPECT_NEAR(slope, norm, 0.01 * norm + 2e-4) << p.info->name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Registry, Families, testing::ValuesIn(model_families()),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace cuboid
