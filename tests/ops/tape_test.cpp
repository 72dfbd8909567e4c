// The tape's promises: what is called when, what is kept until when, and what may be overwritten.
#include <array>

#include "cuboid/ops/ops.h"

#include "tensors.h"

namespace cuboid {
namespace {

constexpr std::int64_t kT = 3, kB = 2, kIn = 5, kHidden = 7, kOut = 4;

class TapeTest : public testing::Test {
 protected:
  Parameter parameter(const std::string& name, const Shape& shape) {
    const Tensor value = device_.empty(shape, DType::float64, Category::parameters);
    test::assign(value, test::random_values(name, shape.elements()));
    return {nullptr, value, device_.zeros(shape, DType::float64, Category::gradients)};
  }
  Tensor random(const std::string& name, const Shape& shape) {
    return test::tensor_of(device_, shape, test::random_values(name, shape.elements()));
  }
  std::int64_t live() const { return device_.account().live(Category::activations); }
  static std::int64_t bytes(std::int64_t columns) { return kT * kB * columns * 8; }

  Device device_;
};

TEST_F(TapeTest, ObserverHearsOfAParameterOnceAfterItsLastUse) {
  Parameter shared = parameter("shared", {kIn, kIn});
  Parameter bias = parameter("bias", {kIn});
  Parameter first = parameter("first", {kIn});
  for (const bool whole : {true, false}) {
    Tape tape(device_);
    std::vector<const Parameter*> heard;
    std::vector<test::Values> gradients;
    tape.observe([&](Parameter& p) {
      heard.push_back(&p);
      gradients.push_back(test::values_of(p.gradient));
    });
    Var x = tape.input(random("x", {kT, kB, kIn}));
    x = ops::rms_norm(tape, x, first, 1e-5);
    x = ops::linear(tape, x, shared, &bias);
    x = ops::gelu(tape, x);
    x = ops::linear(tape, x, shared, nullptr);
    if (whole) {
      tape.backward(x.slot(), random("dy", x.shape()));
    } else {
      tape.input_gradient(x.slot(), random("dy", x.shape()));
      EXPECT_TRUE(heard.empty()) << "no weight gradient has been added yet";
      tape.weight_gradient();
    }
    // The second use of `shared` in backward order is the first in forward order.
    ASSERT_EQ(heard, (std::vector<const Parameter*>{&shared, &bias, &first}));
    const std::array<const Parameter*, 3> order = {&shared, &bias, &first};
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_EQ(gradients[i], test::values_of(order[i]->gradient)) << "told before the sum was complete";
    }
  }
}

TEST_F(TapeTest, GradientsAddUpOverMicroBatches) {
  Parameter weight = parameter("weight", {kOut, kIn});
  Parameter norm = parameter("norm", {kIn});
  const auto run = [&](const std::string& name) {
    Tape tape(device_);
    const Var x = tape.input(random(name, {kT, kB, kIn}));
    const Var y = ops::linear(tape, ops::rms_norm(tape, x, norm, 1e-5), weight, nullptr);
    tape.backward(y.slot(), random("dy", y.shape()));
  };
  const auto gradients_of = [&](std::initializer_list<const char*> micro_batches) {
    std::vector<test::Values> made;
    for (Parameter* p : {&weight, &norm}) test::assign(p->gradient, test::Values(test::index(p->gradient.elements())));
    for (const char* name : micro_batches) run(name);
    for (Parameter* p : {&weight, &norm}) made.push_back(test::values_of(p->gradient));
    return made;
  };
  const auto one = gradients_of({"a"});
  const auto other = gradients_of({"b"});
  const auto both = gradients_of({"a", "b"});
  for (std::size_t i = 0; i < both.size(); ++i) {
    test::Values sum = one[i];
    for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += other[i][j];
    // Sums of 2·T·B products below 4 in another order.
    test::expect_near_all(both[i], sum, 4.0 * 4 * kT * kB * kT * kB * 2.3e-16, "parameter " + std::to_string(i));
  }
}

TEST_F(TapeTest, ForwardOnlyRecordsAndKeepsNothing) {
  Parameter up = parameter("up", {kHidden, kIn});
  Parameter down = parameter("down", {kOut, kHidden});
  Tape tape(device_, Tape::Mode::forward_only);
  EXPECT_FALSE(tape.recording());
  Var x = tape.input(random("x", {kT, kB, kIn}));
  EXPECT_FALSE(x.slot().wanted());
  x = ops::linear(tape, x, up, nullptr);
  x = ops::gelu(tape, x);
  x = ops::linear(tape, x, down, nullptr);
  EXPECT_FALSE(x.slot().wanted());
  EXPECT_EQ(live(), bytes(kOut)) << "only the result lives";
  for (const double g : test::values_of(up.gradient)) EXPECT_EQ(g, 0);
}

TEST_F(TapeTest, NothingIsRecordedForDataAlone) {
  Tape tape(device_);
  Var x = Tape::constant(random("x", {kT, kB, kIn}));
  x = ops::gelu(tape, x);
  EXPECT_FALSE(x.slot().wanted());
  EXPECT_EQ(live(), bytes(kIn)) << "gelu's input is not kept";
}

TEST_F(TapeTest, NoInputGradientWhereNoneIsWanted) {
  Parameter weight = parameter("weight", {kOut, kIn});
  Tape tape(device_);
  const Var x = Tape::constant(random("x", {kT, kB, kIn}));
  const Var y = ops::linear(tape, x, weight, nullptr);
  device_.account().reset_peaks();
  const std::int64_t before = live();
  tape.backward(y.slot(), random("dy", y.shape()));
  EXPECT_EQ(device_.account().peak(Category::activations), before + bytes(kOut)) << "no (T,B,in) tensor was made";
  EXPECT_THROW(tape.gradient_of(x.slot()), std::logic_error);
}

TEST_F(TapeTest, MemoryIsFreedAtItsLastUse) {
  Parameter up = parameter("up", {kHidden, kIn});
  Parameter down = parameter("down", {kOut, kHidden});
  Tape tape(device_);
  Slot input, output;
  {
    Var x = tape.input(random("x", {kT, kB, kIn}));
    input = x.slot();
    x = ops::linear(tape, x, up, nullptr);
    x = ops::gelu(tape, x);
    x = ops::linear(tape, x, down, nullptr);
    output = x.slot();
  }
  // x for `up`, gelu's input and output; the result itself is needed by nobody.
  EXPECT_EQ(live(), bytes(kIn) + 2 * bytes(kHidden));
  tape.input_gradient(output, random("dy", {kT, kB, kOut}));
  // Kept for W: both linear inputs and both output gradients. Gelu's input is gone. Besides, the input's gradient.
  EXPECT_EQ(live(), (bytes(kIn) + bytes(kHidden)) + (bytes(kHidden) + bytes(kOut)) + bytes(kIn));
  Tensor dx = tape.gradient_of(input);
  EXPECT_FALSE(tape.gradient_of(input).defined()) << "it is handed out once";
  tape.weight_gradient();
  EXPECT_EQ(live(), bytes(kIn)) << "only the gradient handed out";
  dx = Tensor();
  EXPECT_EQ(live(), 0);
}

TEST_F(TapeTest, AttentionFreesItsInputsWithI) {
  Parameter weight = parameter("weight", {4, 8});
  const ops::AttentionShape heads{.heads = 2, .kv_heads = 1, .head_dim = 4};
  Tape tape(device_);
  Slot input, output;
  {
    Var x = tape.input(random("x", {kT, kB, 16}));
    input = x.slot();
    x = ops::attention(tape, x, heads, {}, {}, {});
    x = ops::linear(tape, x, weight, nullptr);
    output = x.slot();
  }
  const std::int64_t context = bytes(8);
  EXPECT_EQ(live(), context + bytes(16) + bytes(2)) << "context, q k v in place of the projection, log sums";
  tape.input_gradient(output, random("dy", {kT, kB, 4}));
  EXPECT_EQ(live(), context + bytes(4) + bytes(16)) << "for W: context and dy; and the input's gradient";
  tape.gradient_of(input);
  tape.weight_gradient();
  EXPECT_EQ(live(), 0);
}

TEST_F(TapeTest, ContributionsDoNotOverwriteWhatOthersRead) {
  Parameter weight = parameter("weight", {kIn, kIn});
  Tape tape(device_);
  const Var x = tape.input(random("x", {kT, kB, kIn}));
  // The residual's gradient dy is shared: with the deferred weight gradient, and with the sum into x's slot.
  const Var y = ops::add(tape, ops::linear(tape, x, weight, nullptr), x);
  const Tensor dy = random("dy", y.shape());
  const test::Values before = test::values_of(dy);
  tape.input_gradient(y.slot(), dy);
  EXPECT_EQ(test::values_of(dy), before);
  const test::Values dx = test::values_of(tape.gradient_of(x.slot()));
  tape.weight_gradient();
  const test::Values w = test::values_of(weight.value);
  const test::Values dw = test::values_of(weight.gradient);
  const test::Values in = test::values_of(x.value());
  for (std::int64_t i = 0; i < kIn; ++i) {
    for (std::int64_t j = 0; j < kIn; ++j) {
      double sum = 0;
      for (std::int64_t n = 0; n < kT * kB; ++n) sum += before[test::index(n * kIn + i)] * in[test::index(n * kIn + j)];
      EXPECT_NEAR(dw[test::index(i * kIn + j)], sum, 1e-14);
    }
  }
  for (std::int64_t n = 0; n < kT * kB; ++n) {
    for (std::int64_t j = 0; j < kIn; ++j) {
      double sum = before[test::index(n * kIn + j)];
      for (std::int64_t i = 0; i < kIn; ++i) sum += before[test::index(n * kIn + i)] * w[test::index(i * kIn + j)];
      EXPECT_NEAR(dx[test::index(n * kIn + j)], sum, 1e-14);
    }
  }
}

TEST_F(TapeTest, AResultThatNobodyUsedIsAMistake) {
  Tape tape(device_);
  const Var x = tape.input(random("x", {kT, kB, kIn}));
  const Var y = ops::gelu(tape, x);
  ops::gelu(tape, x);
  EXPECT_THROW(tape.backward(y.slot(), random("dy", y.shape())), std::logic_error);
}

}  // namespace
}  // namespace cuboid
