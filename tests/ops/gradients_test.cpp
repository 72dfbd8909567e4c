// Every differentiable operation against central differences in double: input and weight gradients, made apart (I, then
// W) and together (B).
#include <functional>
#include <limits>

#include "cuboid/ops/ops.h"

#include "tensors.h"

namespace cuboid {
namespace {

using test::index;
using test::Values;

/// An operation, its arguments' shapes and how to apply it.
struct OpCase {
  std::string name;
  std::vector<Shape> inputs;
  std::vector<Shape> parameters;
  std::function<Var(Tape&, const std::vector<Var>&, std::vector<Parameter>&)> apply;
};

void PrintTo(const OpCase& op, std::ostream* out) {
  *out << op.name;
}

/// The arguments of a case as numbers, and f = Σ c·op(arguments) with random c.
class Problem {
 public:
  explicit Problem(const OpCase& op) : op_(op) {
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      inputs_.push_back(test::random_values("input" + std::to_string(i), op.inputs[i].elements()));
    }
    for (std::size_t i = 0; i < op.parameters.size(); ++i) {
      weights_.push_back(test::random_values("parameter" + std::to_string(i), op.parameters[i].elements()));
    }
  }

  std::vector<Values>& inputs() { return inputs_; }
  std::vector<Values>& weights() { return weights_; }
  const Device& device() const { return device_; }

  std::vector<Parameter> make_parameters() const {
    std::vector<Parameter> made;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      made.push_back({nullptr, test::tensor_of(device_, op_.parameters[i], weights_[i]),
                      device_.zeros(op_.parameters[i], DType::float64)});
    }
    return made;
  }
  std::vector<Var> make_inputs(Tape& tape) const {
    std::vector<Var> made;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      made.push_back(tape.input(test::tensor_of(device_, op_.inputs[i], inputs_[i])));
    }
    return made;
  }
  Var apply(Tape& tape, const std::vector<Var>& inputs, std::vector<Parameter>& parameters) const {
    return op_.apply(tape, inputs, parameters);
  }
  static Values coefficients(std::int64_t n) { return test::random_values("coefficients", n); }

  struct Objective {
    double value;
    double magnitude;  // Σ |c·y|: what the sum's rounding errors are relative to
  };
  Objective evaluate() const {
    Tape tape(device_, Tape::Mode::forward_only);
    auto parameters = make_parameters();
    const Values y = test::values_of(apply(tape, make_inputs(tape), parameters).value());
    const Values c = coefficients(static_cast<std::int64_t>(y.size()));
    Objective sum{0, 0};
    for (std::size_t i = 0; i < y.size(); ++i) {
      sum.value += c[i] * y[i];
      sum.magnitude += std::abs(c[i] * y[i]);
    }
    return sum;
  }

 private:
  const OpCase& op_;
  Device device_;
  std::vector<Values> inputs_, weights_;
};

// Central differences of fourth order with step h: the truncation error is h⁴/30·|f⁽⁵⁾|, the rounding error
// 3·kRounding·eps·magnitude/(2h) where each value carries a relative error kRounding·eps. They balance near h =
// eps^(1/5); with fifth derivatives up to 1000 times the magnitude (norms of rows of a few elements) the sum stays
// below this.
const double kStep = std::pow(std::numeric_limits<double>::epsilon(), 0.2);  // 7.4e-4
double difference_tolerance(double magnitude) {
  constexpr double kRounding = 64;
  const double truncation = std::pow(kStep, 4) / 30 * 1000;
  const double rounding = 1.5 * kRounding * std::numeric_limits<double>::epsilon() / kStep;
  return (truncation + rounding) * magnitude;
}

void expect_derivatives(const Problem& problem, Values& argument, const Values& gradient, const std::string& what) {
  ASSERT_EQ(argument.size(), gradient.size()) << what;
  const double tolerance = difference_tolerance(problem.evaluate().magnitude);
  double largest = 0;
  for (std::size_t i = 0; i < argument.size(); ++i) {
    const double at = argument[i];
    const auto value = [&](double steps) {
      argument[i] = at + steps * kStep;
      const double f = problem.evaluate().value;
      argument[i] = at;
      return f;
    };
    const double derivative = (8 * (value(1) - value(-1)) - (value(2) - value(-2))) / (12 * kStep);
    ASSERT_NEAR(gradient[i], derivative, tolerance) << what << ", element " << i;
    largest = std::max(largest, std::abs(derivative));
  }
  // Otherwise the test could pass with a gradient of zero.
  EXPECT_GT(largest, 1000 * tolerance) << what;
}

class Gradients : public testing::TestWithParam<OpCase> {};

TEST_P(Gradients, AreTheDerivativesAndTheSameWholeOrSplit) {
  Problem problem(GetParam());
  auto parameters = problem.make_parameters();
  Tape split(problem.device());
  const auto inputs = problem.make_inputs(split);
  const Var y = problem.apply(split, inputs, parameters);
  ASSERT_TRUE(y.slot().wanted());
  const Values c = Problem::coefficients(y.value().elements());

  split.input_gradient(y.slot(), test::tensor_of(problem.device(), y.shape(), c));
  for (const auto& p : parameters) {
    for (const double g : test::values_of(p.gradient)) ASSERT_EQ(g, 0) << "I has touched a weight gradient";
  }
  std::vector<Tensor> input_gradients;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    input_gradients.push_back(split.gradient_of(inputs[i].slot()));
    ASSERT_TRUE(input_gradients.back().defined());
    ASSERT_EQ(input_gradients.back().shape(), inputs[i].shape());
    expect_derivatives(problem, problem.inputs()[i], test::values_of(input_gradients.back()),
                       "input " + std::to_string(i));
  }
  split.weight_gradient();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    expect_derivatives(problem, problem.weights()[i], test::values_of(parameters[i].gradient),
                       "parameter " + std::to_string(i));
  }

  auto again = problem.make_parameters();
  Tape whole(problem.device());
  const auto same_inputs = problem.make_inputs(whole);
  const Var z = problem.apply(whole, same_inputs, again);
  EXPECT_TRUE(test::same_bits(y.value(), z.value()));
  whole.backward(z.slot(), test::tensor_of(problem.device(), z.shape(), c));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_TRUE(test::same_bits(whole.gradient_of(same_inputs[i].slot()), input_gradients[i])) << "input " << i;
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(test::same_bits(again[i].gradient, parameters[i].gradient)) << "parameter " << i;
  }
}

constexpr std::int64_t kT = 5, kB = 2, kC = 6, kOut = 7, kV = 11, kF = 4;  // sizes pairwise different
constexpr std::int64_t kFirstRow = 3;                                      // of a table cut by rows

Tensor tokens(Tape& tape) {
  // Rows 3 … 13 are held: 2, 14 and 15 are not; 5 and 9 occur twice.
  return test::tokens_of(tape.device(), {kT, kB}, {5, 3, 14, 9, 13, 5, 2, 9, 15, 8});
}

const kernels::Dropout kMask{.p = 0.4, .key = 77, .first_sample = 6, .rows = {.first = 1}};

std::vector<OpCase> attention_cases() {
  std::vector<OpCase> cases;
  // Without and with rotation, dropout and grouped heads; T beyond one block of query rows is the kernels' own test.
  for (const bool rotary : {false, true}) {
    for (const bool drops : {false, true}) {
      const ops::AttentionShape heads{.heads = rotary ? 6 : 3, .kv_heads = rotary ? 2 : 3, .head_dim = 4};
      const std::int64_t width = (heads.heads + 2 * heads.kv_heads) * heads.head_dim;
      cases.push_back({std::string("attention") + (rotary ? "_rotary_grouped" : "") + (drops ? "_dropout" : ""),
                       {{kT, kB, width}},
                       {},
                       [=](Tape& t, const auto& x, auto&) {
                         ops::RopeTables rope;
                         if (rotary) rope = ops::rope_tables(t.device(), {1.0, 0.3}, {.first = 2}, kT, DType::float64);
                         kernels::Dropout mask;
                         if (drops) mask = {.p = 0.4, .key = 77, .first_sample = 6, .first_head = 2};
                         return ops::attention(t, x[0], heads, rope.cos, rope.sin, mask);
                       }});
    }
  }
  const ops::AttentionShape sliding{.heads = 4, .kv_heads = 2, .head_dim = 3, .window = 2};
  const std::int64_t width = (sliding.heads + 2 * sliding.kv_heads) * sliding.head_dim;
  cases.push_back({"attention_window", {{kT, kB, width}}, {}, [=](Tape& t, const auto& x, auto&) {
                     return ops::attention(t, x[0], sliding, {}, {}, {});
                   }});
  cases.push_back({"rms_norm_heads", {{kT, kB, width}}, {{3}, {3}}, [=](Tape& t, const auto& x, auto& p) {
                     return ops::rms_norm_heads(t, x[0], sliding, p[0], p[1], 1e-2);
                   }});
  return cases;
}

std::vector<OpCase> op_cases() {
  std::vector<OpCase> cases = {
      {"linear",
       {{kT, kB, kC}},
       {{kOut, kC}},
       [](Tape& t, const auto& x, auto& p) { return ops::linear(t, x[0], p[0], nullptr); }},
      {"linear_bias",
       {{kT, kB, kC}},
       {{kOut, kC}, {kOut}},
       [](Tape& t, const auto& x, auto& p) { return ops::linear(t, x[0], p[0], &p[1]); }},
      {"layer_norm",
       {{kT, kB, kC}},
       {{kC}, {kC}},
       [](Tape& t, const auto& x, auto& p) { return ops::layer_norm(t, x[0], p[0], p[1], 1e-2); }},
      {"rms_norm",
       {{kT, kB, kC}},
       {{kC}},
       [](Tape& t, const auto& x, auto& p) { return ops::rms_norm(t, x[0], p[0], 1e-2); }},
      {"rms_norm_of_one_plus_weight",
       {{kT, kB, kC}},
       {{kC}},
       [](Tape& t, const auto& x, auto& p) { return ops::rms_norm(t, x[0], p[0], 1e-2, 1.0); }},
      {"geglu", {{kT, kB, 2 * kF}}, {}, [](Tape& t, const auto& x, auto&) { return ops::geglu(t, x[0]); }},
      {"scale", {{kT, kB, kC}}, {}, [](Tape& t, const auto& x, auto&) { return ops::scale(t, x[0], -2.5); }},
      {"recompute",
       {{kT, kB, kC}},
       {{kC, kC}, {kC}},
       [](Tape& t, const auto& x, auto& p) {
         return ops::add(t, x[0], ops::recompute(t, x[0], [&p](Tape& inner, const Var& y) {
                           return ops::linear(inner, ops::gelu(inner, ops::rms_norm(inner, y, p[1], 1e-2)), p[0],
                                              nullptr);
                         }));
       }},
      {"gelu", {{kT, kB, kC}}, {}, [](Tape& t, const auto& x, auto&) { return ops::gelu(t, x[0]); }},
      {"swiglu", {{kT, kB, 2 * kF}}, {}, [](Tape& t, const auto& x, auto&) { return ops::swiglu(t, x[0]); }},
      {"add", {{kT, kB, kC}, {kT, kB, kC}}, {}, [](Tape& t, const auto& x, auto&) { return ops::add(t, x[0], x[1]); }},
      {"dropout", {{kT, kB, kC}}, {}, [](Tape& t, const auto& x, auto&) { return ops::dropout(t, x[0], kMask); }},
      {"dropout_add",
       {{kT, kB, kC}, {kT, kB, kC}},
       {},
       [](Tape& t, const auto& x, auto&) { return ops::dropout_add(t, x[0], x[1], kMask); }},
      {"dropout_add_without_dropout",
       {{kT, kB, kC}, {kT, kB, kC}},
       {},
       [](Tape& t, const auto& x, auto&) { return ops::dropout_add(t, x[0], x[1], {}); }},
      {"add_bias",
       {{kT, kB, kC}},
       {{kC}},
       [](Tape& t, const auto& x, auto& p) { return ops::add_bias(t, x[0], p[0]); }},
      {"embedding",
       {},
       {{kV, kC}},
       [](Tape& t, const auto&, auto& p) { return ops::embedding(t, tokens(t), p[0], kFirstRow); }},
      {"add_positions",
       {{kT, kB, kC}},
       {{kT + 4, kC}},
       [](Tape& t, const auto& x, auto& p) { return ops::add_positions(t, x[0], p[0], {.first = 3}); }},
      // Uses of one thing in several places: their gradients add up.
      {"value_used_twice",
       {{kT, kB, kC}},
       {{kC, kC}, {kC}},
       [](Tape& t, const auto& x, auto& p) {
         return ops::add(t, x[0], ops::linear(t, ops::rms_norm(t, x[0], p[1], 1e-2), p[0], nullptr));
       }},
      {"value_added_to_itself",
       {{kT, kB, kC}},
       {},
       [](Tape& t, const auto& x, auto&) {
         const Var y = ops::gelu(t, x[0]);
         return ops::add(t, y, y);
       }},
      {"parameter_used_twice",
       {{kT, kB, kC}},
       {{kC, kC}, {kC}},
       [](Tape& t, const auto& x, auto& p) {
         return ops::linear(t, ops::gelu(t, ops::linear(t, x[0], p[0], &p[1])), p[0], &p[1]);
       }},
      {"parameter_as_embedding_and_head",
       {},
       {{kV, kC}},
       [](Tape& t, const auto&, auto& p) {
         return ops::linear(t, ops::embedding(t, tokens(t), p[0], kFirstRow), p[0], nullptr);
       }},
      {"bias_on_a_value_used_again",
       {{kT, kB, kC}},
       {{kC}},
       [](Tape& t, const auto& x, auto& p) {
         const Var y = ops::gelu(t, x[0]);
         return ops::add(t, ops::add_bias(t, y, p[0]), y);
       }},
  };
  for (auto& made : attention_cases()) cases.push_back(std::move(made));
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Ops, Gradients, testing::ValuesIn(op_cases()), [](const auto& op) { return op.param.name; });

}  // namespace
}  // namespace cuboid
