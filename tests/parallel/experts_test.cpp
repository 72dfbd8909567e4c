// A layer of experts: its gradients against finite differences, and the same numbers whatever the ranks along the
// tensor and expert axes are and however unevenly tokens are spread.
#include <algorithm>
#include <numeric>

#include "cuboid/comm/ranks.h"
#include "cuboid/parallel/expert_parallel.h"
#include "cuboid/parallel/gradients.h"
#include "cuboid/parallel/groups.h"

#include "tensors.h"

namespace cuboid {
namespace {

using test::index;
using test::Values;

// Of a rank's micro-batch; all different.
constexpr std::int64_t kT = 4, kB = 3, kC = 6, kF = 8;

enum class Spread {
  random,
  one,      // all tokens to expert 1: the others idle
  without,  // never to expert 0 or the last
};

struct Experts {
  std::string name = {};
  std::int64_t experts = 8;
  std::int64_t per_token = 2;
  int tp = 1, ep = 1;
  bool sequence_parallel = false;
  Spread spread = Spread::random;
  double aux_factor = 0.3, z_factor = 0.05;
};

void PrintTo(const Experts& c, std::ostream* out) {
  *out << c.name;
}

ParameterTable table_of(const Experts& c) {
  std::vector<ParameterInfo> rows(1);
  rows[0].name = "router";
  rows[0].shape = {c.experts, kC};
  for (int e = 0; e < c.experts; ++e) {
    ParameterInfo gate_up;
    gate_up.name = "gate_up" + std::to_string(e);
    gate_up.shape = {2 * kF, kC};
    gate_up.split_dim = 0;
    gate_up.pieces = {{.name = "gate", .units = kF}, {.name = "up", .units = kF}};
    gate_up.expert = e;
    gate_up.experts = static_cast<int>(c.experts);
    ParameterInfo down = gate_up;
    down.name = "down" + std::to_string(e);
    down.shape = {kC, kF};
    down.split_dim = 1;
    down.pieces = {{.units = kF}};
    rows.push_back(gate_up);
    rows.push_back(down);
  }
  return ParameterTable(std::move(rows));
}

Values weights_of(const Experts& c, const ParameterInfo& info) {
  Values values = test::random_values(info.name, info.shape.elements());
  if (info.expert >= 0 || c.spread == Spread::random) return values;
  // Inputs are positive then: the sign of an expert's row decides.
  for (std::int64_t e = 0; e < c.experts; ++e) {
    const bool wanted = c.spread == Spread::one ? e == 1 : e != 0 && e != c.experts - 1;
    for (std::int64_t i = 0; i < kC; ++i) {
      double& w = values[index(e * kC + i)];
      w = (wanted ? 1 : -1) * (0.1 + std::abs(w));
    }
  }
  return values;
}

Values inputs_of(const Experts& c, int data_rank) {
  Values values = test::random_values("x" + std::to_string(data_rank), kT * kB * kC);
  if (c.spread != Spread::random) {
    for (double& x : values) x = std::abs(x);
  }
  return values;
}

Values output_gradients_of(int data_rank) {
  return test::random_values("dy" + std::to_string(data_rank), kT * kB * kC);
}

/// This rank's rows of (T,B,C).
Values own_rows(const Values& all, const TensorParallel& tp) {
  if (!tp.splits_sequence()) return all;
  const std::size_t part = all.size() / static_cast<std::size_t>(tp.size());
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(part) * tp.rank();
  return {begin, begin + static_cast<std::ptrdiff_t>(part)};
}

Var apply(Tape& tape, const Experts& c, const TensorParallel& tp, const ExpertParallel& ep, const ParameterStore& store,
          const Var& x, RouterReport& report) {
  std::vector<Parameter*> gate_up;
  std::vector<Parameter*> down;
  for (std::int64_t e = 0; e < c.experts; ++e) {
    if (e / (c.experts / ep.size()) != ep.rank()) continue;
    gate_up.push_back(store.find("gate_up" + std::to_string(e)));
    down.push_back(store.find("down" + std::to_string(e)));
  }
  const Routing routing =
      route(tape, tp, ep, x, *store.find("router"), c.per_token, [&](RouterReport made) { report = std::move(made); });
  Var h = dispatch(tape, tp, ep, x, routing);
  h = ops::swiglu(tape, expert_linear(tape, tp, h, routing, gate_up, ExpertSplit::column));
  h = expert_linear(tape, tp, h, routing, down, ExpertSplit::row);
  return combine(tape, tp, ep, h, routing);
}

void fill(const Experts& c, ParameterStore& store) {
  for (const Parameter* p : store.all()) {
    const Values global = weights_of(c, *p->info);
    Values shard(index(p->value.elements()));
    for (const cuboid::Run& run : shard_runs(*p->info, store.tp_rank(), store.tp_size())) {
      std::copy_n(global.begin() + run.global, run.count, shard.begin() + run.local);
    }
    test::assign(p->value, shard);
  }
}

/// What ranks compute, put together: by data rank and by parameter.
struct Results {
  std::vector<Values> outputs, input_gradients;
  std::map<std::string, Values> gradients;
  std::vector<std::int64_t> tokens;
  double norm = 0;
};

/// One rank: the data ranks' micro-batches one after the other.
Results reference(const Experts& c) {
  const Device device;
  const auto self = make_self_communicator(device);
  const TensorParallel tp{self.get()};
  const ExpertParallel ep{nullptr, nullptr, c.aux_factor, c.z_factor};
  const ParameterTable table = table_of(c);
  ParameterStore store(device, table, {{0, 0, 1}}, 0, 1, {.dtype = DType::float64});
  fill(c, store);
  Results results;
  results.tokens.assign(index(c.experts), 0);
  for (int d = 0; d < c.ep; ++d) {
    Tape tape(device);
    const Var x = tape.input(test::tensor_of(device, {kT, kB, kC}, inputs_of(c, d)));
    RouterReport report;
    const Var y = apply(tape, c, tp, ep, store, x, report);
    results.outputs.push_back(test::values_of(y.value()));
    tape.backward(y.slot(), test::tensor_of(device, y.shape(), output_gradients_of(d)));
    results.input_gradients.push_back(test::values_of(tape.gradient_of(x.slot())));
    for (std::size_t e = 0; e < report.tokens.size(); ++e) results.tokens[e] += report.tokens[e];
  }
  for (const Parameter* p : store.all()) results.gradients[p->info->name] = test::values_of(p->gradient);
  results.norm = gradient_norm(device, store, *self, *self);
  return results;
}

class ExpertLayers : public testing::TestWithParam<Experts> {};

TEST_P(ExpertLayers, EqualOneRank) {
  const Experts& c = GetParam();
  const Results one = reference(c);
  EXPECT_EQ(std::accumulate(one.tokens.begin(), one.tokens.end(), std::int64_t{0}), c.ep * kT * kB * c.per_token);
  if (c.spread == Spread::one) {
    EXPECT_EQ(one.tokens[1], c.ep * kT * kB);
  } else if (c.spread == Spread::without) {
    EXPECT_EQ(one.tokens.front() + one.tokens.back(), 0);
  }
  const ParameterTable table = table_of(c);
  constexpr double kTolerance = 1e-13;  // sums of at most some hundred terms of about 1, in double
  run_ranks(c.tp * c.ep, [&](RankContext& context) {
    const Device& device = context.device;
    const Groups groups(Grid({{c.tp, 1, c.ep, 1, 1}}, Grid::kDefaultOrder), *context.world);
    const TensorParallel tp{&groups.axis(Axis::tp), c.sequence_parallel};
    const ExpertParallel ep{&groups.axis(Axis::ep), nullptr, c.aux_factor, c.z_factor};
    const CopyGroups data(groups.data(), groups.axis(Axis::dp), ep.rank(), ep.size());
    ParameterStore store(device, table, {{0, 0, 1}}, tp.rank(), tp.size(), data, {.dtype = DType::float64});
    TensorPartialGradients partial(device, table, store, *tp.comm, c.sequence_parallel);
    GradientReduction reduction(device, store, 0);
    fill(c, store);
    const int d = groups.data().rank();
    Tape tape(device);
    tape.observe([&](Parameter& p) { reduction.ready(p, true); });
    const Shape rows = {tp.splits_sequence() ? kT / tp.size() : kT, kB, kC};
    const Var x = tape.input(test::tensor_of(device, rows, own_rows(inputs_of(c, d), tp)));
    RouterReport report;
    const Var y = apply(tape, c, tp, ep, store, x, report);
    ASSERT_EQ(y.shape(), rows);
    const auto at = static_cast<std::size_t>(d);
    test::expect_near_all(test::values_of(y.value()), own_rows(one.outputs[at], tp), 10 * kTolerance, "output");
    // I, then W: what zero-bubble schedules do.
    tape.input_gradient(y.slot(), test::tensor_of(device, rows, own_rows(output_gradients_of(d), tp)));
    test::expect_near_all(test::values_of(tape.gradient_of(x.slot())), own_rows(one.input_gradients[at], tp),
                          100 * kTolerance, "input gradient");
    tape.weight_gradient();
    reduction.finish(true);
    partial.reduce();
    for (const Parameter* p : store.all()) {
      const Values& global = one.gradients.at(p->info->name);
      Values expected(index(p->gradient.elements()));
      for (const cuboid::Run& run : shard_runs(*p->info, tp.rank(), tp.size())) {
        std::copy_n(global.begin() + run.global, run.count, expected.begin() + run.local);
      }
      test::expect_near_all(test::values_of(p->gradient), expected, 100 * kTolerance, p->info->name);
    }
    const auto self = make_self_communicator(device);
    EXPECT_NEAR(gradient_norm(device, store, *tp.comm, *self), one.norm, 1e-12 * one.norm);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Grids, ExpertLayers,
    testing::Values(Experts{.name = "tp2", .tp = 2}, Experts{.name = "tp2_sp", .tp = 2, .sequence_parallel = true},
                    Experts{.name = "ep2", .ep = 2}, Experts{.name = "ep4", .ep = 4},
                    Experts{.name = "ep8", .per_token = 3, .ep = 8}, Experts{.name = "tp2_ep2", .tp = 2, .ep = 2},
                    Experts{.name = "tp4_ep2_sp", .tp = 4, .ep = 2, .sequence_parallel = true},
                    Experts{.name = "all_idle_but_one", .experts = 4, .per_token = 1, .ep = 4, .spread = Spread::one},
                    Experts{.name = "all_idle_but_one_tp2_sp",
                            .experts = 4,
                            .per_token = 1,
                            .tp = 2,
                            .ep = 2,
                            .sequence_parallel = true,
                            .spread = Spread::one},
                    Experts{.name = "experts_without_tokens", .ep = 4, .spread = Spread::without},
                    Experts{.name = "every_token_to_all", .experts = 4, .per_token = 4, .ep = 2},
                    Experts{.name = "every_token_to_all_tp2", .experts = 4, .per_token = 4, .tp = 2, .ep = 4}),
    [](const auto& c) { return c.param.name; });

// Σ c·y, the load-balancing loss and the z-loss, as functions of the inputs and of every weight.
TEST(ExpertLayer, GradientsAreDerivatives) {
  const Experts c{.experts = 5, .per_token = 2};
  const Device device;
  const auto self = make_self_communicator(device);
  const TensorParallel tp{self.get()};
  const ExpertParallel ep{nullptr, nullptr, c.aux_factor, c.z_factor};
  const ParameterTable table = table_of(c);
  ParameterStore store(device, table, {{0, 0, 1}}, 0, 1, {.dtype = DType::float64});
  fill(c, store);
  const Tensor x = test::tensor_of(device, {kT, kB, kC}, inputs_of(c, 0));
  const Values coefficients = output_gradients_of(0);

  RouterReport report;
  const auto objective = [&] {
    Tape tape(device, Tape::Mode::forward_only);
    const Values y = test::values_of(apply(tape, c, tp, ep, store, Tape::constant(x), report).value());
    return std::inner_product(y.begin(), y.end(), coefficients.begin(), 0.0) + c.aux_factor * report.aux_loss() +
           c.z_factor * report.z_loss();
  };
  Tape tape(device);
  const Var input = tape.input(device.clone(x));
  const Var y = apply(tape, c, tp, ep, store, input, report);
  tape.backward(y.slot(), test::tensor_of(device, y.shape(), coefficients));
  const Tensor dx = tape.gradient_of(input.slot());

  // The choice of experts is a step: inputs are such that no token is near one.
  constexpr double kStep = 1e-5;
  const std::vector<std::int64_t> tokens = report.tokens;
  const auto check = [&](const Tensor& argument, const Tensor& gradient, const std::string& what) {
    double largest = 0;
    for (std::int64_t i = 0; i < argument.elements(); ++i) {
      double& at = argument.data<double>()[i];
      const double before = at;
      at = before + kStep;
      const double above = objective();
      ASSERT_EQ(report.tokens, tokens) << what << ": another choice";
      at = before - kStep;
      const double below = objective();
      at = before;
      const double derivative = (above - below) / (2 * kStep);
      // Truncation h²/6·|f‴| with third derivatives below 100, rounding of values of about 10.
      EXPECT_NEAR(gradient.data<double>()[i], derivative, 1e-8) << what << ", element " << i;
      largest = std::max(largest, std::abs(derivative));
    }
    EXPECT_GT(largest, 1e-3) << what;
  };
  check(x, dx, "x");
  for (const Parameter* p : store.all()) check(p->value, p->gradient, p->info->name);
}

TEST(ExpertLayer, AuxiliaryLossesAreOneWhenBalancedAndLargeWhenNot) {
  RouterReport report{.tokens = {6, 6, 6, 6}, .rows = 12, .probability_sums = {3, 3, 3, 3}};
  EXPECT_DOUBLE_EQ(report.aux_loss(), 1);
  report.tokens = {15, 9, 0, 0};
  EXPECT_DOUBLE_EQ(report.aux_loss(), 1) << "even probabilities";
  report.probability_sums = {8, 4, 0, 0};
  EXPECT_DOUBLE_EQ(report.aux_loss(), 4 * (15 * 8 + 9 * 4) / (24.0 * 12));
  report.squared_log_sums = 30;
  EXPECT_DOUBLE_EQ(report.z_loss(), 2.5);
}

// Experts' parameters are reduced over dp and cp and everything else over dp, ep and cp; ZeRO cuts them over the same
// ranks.
class ExpertStore : public testing::TestWithParam<int> {};

TEST_P(ExpertStore, BucketsLieWithTheirCopies) {
  const Experts c{.experts = 4};
  const ParameterTable table = table_of(c);
  const int cp = GetParam();
  run_ranks(8, [&](RankContext& context) {
    const Groups groups(Grid({{1, cp, 2, 4 / cp, 1}}, Grid::kDefaultOrder), *context.world);
    const int sample_rank = 2 * groups.at()[Axis::dp] + groups.at()[Axis::ep];
    EXPECT_EQ(groups.data().size(), 8 / cp);
    EXPECT_EQ(groups.data().rank(), sample_rank);
    EXPECT_EQ(groups.copies().rank(), cp * sample_rank + groups.at()[Axis::cp]);
    EXPECT_EQ(groups.expert_copies().rank(), cp * groups.at()[Axis::dp] + groups.at()[Axis::cp]);
    const CopyGroups data(groups.copies(), groups.expert_copies(), groups.at()[Axis::ep], 2);
    for (const int zero : {0, 1}) {
      ParameterStore store(context.device, table, {{0, 0, 1}}, 0, 1, data, {.zero = zero});
      std::int64_t counted = 0;
      for (const ParameterInfo& info : table.rows()) {
        const Parameter* p = store.find(info.name);
        ASSERT_EQ(p != nullptr, info.expert < 0 || info.expert / 2 == groups.at()[Axis::ep]) << info.name;
        if (!p) continue;
        const ParameterBucket& bucket = store.bucket_of(*p);
        EXPECT_EQ(bucket.layout.experts, info.expert >= 0);
        EXPECT_EQ(bucket.copies->size(), info.expert >= 0 ? 4 : 8);
        EXPECT_EQ(bucket.layout.parts, zero == 0 ? 1 : bucket.copies->size());
        if (store.counts(*p)) counted += store.owned(*p).count;
      }
      const Tensor all = context.device.zeros({1}, DType::int64);
      *all.data<std::int64_t>() = counted;
      all_reduce_in_place(store.copies(), all);
      EXPECT_EQ(*all.data<std::int64_t>(), table.total()) << "each element is counted once, ZeRO " << zero;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(ContextDegrees, ExpertStore, testing::Values(1, 2, 4));

}  // namespace
}  // namespace cuboid
