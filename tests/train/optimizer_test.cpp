#include "cuboid/train/optimizer.h"

#include <limits>
#include <map>

#include "tensors.h"

namespace cuboid {
namespace {

using test::index;
using test::Values;

/// A matrix that decays, a vector that does not, and a head tied to the matrix.
ParameterTable make_table() {
  ParameterInfo matrix;
  matrix.name = "matrix";
  matrix.shape = {7, 5};
  matrix.decay = true;
  ParameterInfo vector;
  vector.name = "vector";
  vector.shape = {11};
  ParameterInfo head = matrix;
  head.name = "head";
  head.tied_with = "matrix";
  return ParameterTable({matrix, vector, head});
}

/// One parameter by the papers' formulas, in double.
struct Reference {
  Values w, m, v;
  void adamw(const OptimizerConfig& c, double lr, double scale, bool decays, int t, const Values& gradient) {
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double g = scale * gradient[i];
      m[i] = c.beta1 * m[i] + (1 - c.beta1) * g;
      v[i] = c.beta2 * v[i] + (1 - c.beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(c.beta1, t));
      const double v_hat = v[i] / (1 - std::pow(c.beta2, t));
      w[i] -= lr * ((decays ? c.weight_decay : 0) * w[i] + m_hat / (std::sqrt(v_hat) + c.eps));
    }
  }
  void sgd(const OptimizerConfig& c, double lr, double scale, bool decays, const Values& gradient) {
    for (std::size_t i = 0; i < w.size(); ++i) {
      w[i] -= lr * (scale * gradient[i] + (decays ? c.weight_decay : 0) * w[i]);
    }
  }
};

void expect_reference(OptimizerKind kind, DType dtype) {
  const Device device;
  const ParameterTable table = make_table();
  ParameterStore store(device, table, {{0, 0, 1}}, 0, 1, {.dtype = dtype});
  OptimizerConfig config;
  config.kind = kind;
  config.beta2 = 0.97;
  config.eps = 1e-3;  // large enough to matter
  config.weight_decay = 0.3;
  Optimizer optimizer(device, config, store);
  std::map<std::string, Reference> references;
  for (const char* name : {"matrix", "vector"}) {
    const Parameter& p = *store.find(name);
    const Values start = test::random_values(name, p.value.elements());
    test::assign(p.value, start);
    references[name] = {start, Values(start.size()), Values(start.size())};
  }
  for (int t = 1; t <= 5; ++t) {
    const double lr = 0.1 / t;
    const double scale = 1 - 0.15 * t;
    for (auto& [name, reference] : references) {
      const Parameter& p = *store.find(name);
      const Values gradient = test::random_values(name + std::to_string(t), p.gradient.elements());
      test::assign(p.gradient, gradient);
      if (kind == OptimizerKind::adamw) {
        reference.adamw(config, lr, scale, name == "matrix", t, gradient);
      } else {
        reference.sgd(config, lr, scale, name == "matrix", gradient);
      }
    }
    // The tied head's gradient is a copy of the sum: it must not move the shared weights a second time.
    device.copy(store.find("matrix")->gradient, store.find("head")->gradient);
    optimizer.step(lr, scale);
  }
  const double eps =
      dtype == DType::float64 ? std::numeric_limits<double>::epsilon() : double{std::numeric_limits<float>::epsilon()};
  for (auto& [name, reference] : references) {
    // Five updates of at most 0.1·1.3 with a few roundings each, on weights below 2.
    test::expect_near_all(test::values_of(store.find(name)->value), reference.w, 5 * 8 * eps, name);
  }
}

TEST(Optimizer, AdamWIsItsFormula) {
  expect_reference(OptimizerKind::adamw, DType::float64);
  expect_reference(OptimizerKind::adamw, DType::float32);
}

TEST(Optimizer, SgdIsItsFormula) {
  expect_reference(OptimizerKind::sgd, DType::float64);
  expect_reference(OptimizerKind::sgd, DType::float32);
}

TEST(Optimizer, HoldsTwoMomentsAWeightAndNoneForSgdOrTiedWeights) {
  const ParameterTable table = make_table();
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd}) {
    const Device device;
    ParameterStore store(device, table, {{0, 0, 1}}, 0, 1);
    OptimizerConfig config;
    config.kind = kind;
    const Optimizer optimizer(device, config, store);
    EXPECT_EQ(device.account().live(Category::optimizer), kind == OptimizerKind::adamw ? 2 * 4 * (64 + 64) : 0)
        << "35 and 11 weights, each in a line of 64";
  }
}

TEST(LearningRate, WarmsUpThenFallsToItsEnd) {
  OptimizerConfig config;
  config.lr = 0.8;
  config.min_lr = 0.2;
  config.warmup_steps = 4;
  for (const LrSchedule schedule : {LrSchedule::constant, LrSchedule::cosine, LrSchedule::linear}) {
    config.lr_schedule = schedule;
    EXPECT_DOUBLE_EQ(learning_rate(config, 0, 24), 0.2) << "a quarter of lr: never zero";
    EXPECT_DOUBLE_EQ(learning_rate(config, 1, 24), 0.4);
    EXPECT_DOUBLE_EQ(learning_rate(config, 3, 24), 0.8);
    EXPECT_DOUBLE_EQ(learning_rate(config, 4, 24), 0.8);
    const bool constant = schedule == LrSchedule::constant;
    EXPECT_DOUBLE_EQ(learning_rate(config, 14, 24), constant ? 0.8 : 0.5) << "half way";
    EXPECT_DOUBLE_EQ(learning_rate(config, 24, 24), constant ? 0.8 : 0.2) << "the step after the last";
    for (int s = 4; s < 24; ++s) EXPECT_LE(learning_rate(config, s + 1, 24), learning_rate(config, s, 24));
  }
  config.lr_schedule = LrSchedule::linear;
  EXPECT_DOUBLE_EQ(learning_rate(config, 9, 24), 0.65);
  config.lr_schedule = LrSchedule::cosine;
  EXPECT_DOUBLE_EQ(learning_rate(config, 9, 24), 0.5 + 0.3 * std::sqrt(0.5));
}

TEST(LearningRate, WithoutWarmUpOrWithNothingElse) {
  OptimizerConfig config;
  config.lr = 0.8;
  config.lr_schedule = LrSchedule::cosine;
  EXPECT_DOUBLE_EQ(learning_rate(config, 0, 10), 0.8);
  EXPECT_DOUBLE_EQ(learning_rate(config, 0, 1), 0.8);
  config.warmup_steps = 10;
  EXPECT_DOUBLE_EQ(learning_rate(config, 4, 5), 0.4);
}

TEST(Clipping, ScalesOnlyWhatIsTooLong) {
  EXPECT_DOUBLE_EQ(clipping_factor(1.0, 4.0), 1.0 / (4.0 + 1e-6));
  EXPECT_DOUBLE_EQ(clipping_factor(2.0, 1.5), 1);
  EXPECT_DOUBLE_EQ(clipping_factor(1.0, 0.0), 1);
  EXPECT_DOUBLE_EQ(clipping_factor(0.0, 1e9), 1) << "0 means no clipping";
  EXPECT_DOUBLE_EQ(clipping_factor(1.0, std::numeric_limits<double>::infinity()), 1);
  EXPECT_DOUBLE_EQ(clipping_factor(1.0, std::nan("")), 1);
}

}  // namespace
}  // namespace cuboid
