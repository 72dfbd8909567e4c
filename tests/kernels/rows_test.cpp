// Norms, activations, additions and dropout. Gradients in double are compared with finite differences of the reference,
// gradients in float with those in double.
#include "kernels/body/math.h"
#include "kernels/common.h"

namespace cuboid::kernels {
namespace {

// Tests say how many threads they want. Otherwise one: on a busy machine OpenMP's barriers cost more than the kernels.
class OneThreadUnlessTold : public ::testing::Environment {
 public:
  void SetUp() override { omp_set_num_threads(1); }
};
const auto* const kOneThread = ::testing::AddGlobalTestEnvironment(new OneThreadUnlessTold);

struct Rows {
  std::int64_t count, length;
};
constexpr Rows kRows[] = {{1, 1}, {3, 2}, {5, 31}, {9, 32}, {8, 67}, {2, 769}};

// ---------------------------------------------------------------- norms

// Inputs of a norm with weights away from zero and a mean away from zero.
struct NormInput {
  Array x, weight, bias, dy;
};
NormInput norm_input(const Rows& r) {
  NormInput in{normals<float>(1, r.count * r.length), normals<float>(2, r.length, 0.5), normals<float>(3, r.length),
               normals<float>(4, r.count * r.length)};
  for (double& x : in.x) x = static_cast<float>(x + 3);
  return in;
}
constexpr double kNormEps = 1e-5;

struct LayerNormResult {
  Tensor y, mean, rstd, dx, dweight, dbias;
};
template <typename T>
LayerNormResult run_layer_norm(const Rows& r, const NormInput& in) {
  const Tensor x = tensor<T>({r.count, r.length}, in.x);
  const Tensor dy = tensor<T>({r.count, r.length}, in.dy);
  const Tensor weight = tensor<T>({r.length}, in.weight);
  LayerNormResult out{unset<T>(x.shape()),
                      unset<T>({r.count}),
                      unset<T>({r.count}),
                      unset<T>(x.shape()),
                      tensor<T>({r.length}, in.bias),
                      tensor<T>({r.length}, in.bias)};
  layer_norm(device(), x, weight, tensor<T>({r.length}, in.bias), kNormEps, out.y, out.mean, out.rstd);
  layer_norm_input_gradient(device(), dy, x, weight, out.mean, out.rstd, out.dx);
  layer_norm_weight_gradient(device(), dy, x, out.mean, out.rstd, out.dweight, out.dbias);
  return out;
}

// How far rounding may move a norm's results, per element, in units of ε: each is a handful of products whose factors
// carry the error of a row's sums. |h| is the normalised row with its cancellation: (|x| + mean|x|)·rstd.
struct NormTolerance {
  Array y, dx, dweight, dbias;
};
NormTolerance norm_tolerance(const Rows& r, const NormInput& in, const Array& rstd, double eps) {
  NormTolerance t{Array(in.x.size()), Array(in.x.size()), Array(size(r.length)), Array(size(r.length))};
  const double unit = 4 * depth(r.length) * eps;
  const auto n = static_cast<double>(r.length);
  const double over_rows = unit + static_cast<double>(r.count) * eps;
  for (std::int64_t c = 0; c < r.length; ++c) t.dweight[size(c)] = t.dbias[size(c)] = eps * std::abs(in.bias[size(c)]);
  for (std::int64_t row = 0; row < r.count; ++row) {
    const std::size_t at = size(row * r.length);
    double mean_x = 0;
    for (std::size_t i = 0; i < size(r.length); ++i) mean_x += std::abs(in.x[at + i]) / n;
    const auto h = [&](std::size_t i) { return (std::abs(in.x[at + i]) + mean_x) * rstd[size(row)]; };
    double mean_g = 0;
    double mean_gh = 0;
    for (std::size_t i = 0; i < size(r.length); ++i) {
      const double g = std::abs(in.dy[at + i] * in.weight[i]);
      mean_g += g / n;
      mean_gh += g * h(i) / n;
    }
    for (std::size_t i = 0; i < size(r.length); ++i) {
      const double g = std::abs(in.dy[at + i] * in.weight[i]);
      t.y[at + i] = unit * (h(i) * std::abs(in.weight[i]) + std::abs(in.bias[i]));
      t.dx[at + i] = unit * rstd[size(row)] * (g + mean_g + h(i) * mean_gh);
      t.dweight[i] += over_rows * std::abs(in.dy[at + i]) * h(i);
      t.dbias[i] += over_rows * std::abs(in.dy[at + i]);
    }
  }
  return t;
}

// The change that a weight gradient added to what was there.
Array added(const Tensor& gradient, const Array& before) {
  Array made = values(gradient);
  for (std::size_t i = 0; i < made.size(); ++i) made[i] -= before[i];
  return made;
}

TEST(LayerNorm, MatchesTheReference) {
  for (const Rows& r : kRows) {
    const NormInput in = norm_input(r);
    const auto exact = run_layer_norm<double>(r, in);
    const auto single = run_layer_norm<float>(r, in);
    const Array rstd = values(exact.rstd);
    const Array y = reference::layer_norm(in.x, in.weight, in.bias, kNormEps);
    const std::string what = std::to_string(r.count) + "x" + std::to_string(r.length);
    expect_within(values(exact.y), y, norm_tolerance(r, in, rstd, kEps<double>).y, "double y " + what);
    const NormTolerance t = norm_tolerance(r, in, rstd, kEps<float>);
    expect_within(values(single.y), y, t.y, "y " + what);
    expect_within(values(single.dx), values(exact.dx), t.dx, "dx " + what);
    expect_within(values(single.dweight), values(exact.dweight), t.dweight, "dweight " + what);
    expect_within(values(single.dbias), values(exact.dbias), t.dbias, "dbias " + what);
  }
}

TEST(LayerNorm, GradientsAreDerivatives) {
  for (const Rows& r : {Rows{4, 3}, Rows{5, 31}, Rows{8, 67}}) {
    const NormInput in = norm_input(r);
    const auto got = run_layer_norm<double>(r, in);
    expect_gradient(
        values(got.dx), in.x,
        [&](const Array& x) { return dot(in.dy, reference::layer_norm(x, in.weight, in.bias, kNormEps)); }, "dx");
    expect_gradient(
        added(got.dweight, in.bias), in.weight,
        [&](const Array& w) { return dot(in.dy, reference::layer_norm(in.x, w, in.bias, kNormEps)); }, "dweight");
    expect_gradient(
        added(got.dbias, in.bias), in.bias,
        [&](const Array& b) { return dot(in.dy, reference::layer_norm(in.x, in.weight, b, kNormEps)); }, "dbias");
  }
}

struct RmsNormResult {
  Tensor y, rstd, dx, dweight;
};
template <typename T>
RmsNormResult run_rms_norm(const Rows& r, const NormInput& in) {
  const Tensor x = tensor<T>({r.count, r.length}, in.x);
  const Tensor dy = tensor<T>({r.count, r.length}, in.dy);
  const Tensor weight = tensor<T>({r.length}, in.weight);
  RmsNormResult out{unset<T>(x.shape()), unset<T>({r.count}), unset<T>(x.shape()), tensor<T>({r.length}, in.bias)};
  rms_norm(device(), x, weight, 0, kNormEps, out.y, out.rstd);
  rms_norm_input_gradient(device(), dy, x, weight, 0, out.rstd, out.dx);
  rms_norm_weight_gradient(device(), dy, x, out.rstd, out.dweight);
  return out;
}

TEST(RmsNorm, MatchesTheReference) {
  for (const Rows& r : kRows) {
    const NormInput in = norm_input(r);
    const auto exact = run_rms_norm<double>(r, in);
    const auto single = run_rms_norm<float>(r, in);
    const Array rstd = values(exact.rstd);
    const Array y = reference::rms_norm(in.x, in.weight, kNormEps);
    const std::string what = std::to_string(r.count) + "x" + std::to_string(r.length);
    expect_within(values(exact.y), y, norm_tolerance(r, in, rstd, kEps<double>).y, "double y " + what);
    const NormTolerance t = norm_tolerance(r, in, rstd, kEps<float>);
    expect_within(values(single.y), y, t.y, "y " + what);
    expect_within(values(single.dx), values(exact.dx), t.dx, "dx " + what);
    expect_within(values(single.dweight), values(exact.dweight), t.dweight, "dweight " + what);
  }
}

TEST(RmsNorm, GradientsAreDerivatives) {
  for (const Rows& r : {Rows{4, 3}, Rows{5, 31}, Rows{8, 67}}) {
    const NormInput in = norm_input(r);
    const auto got = run_rms_norm<double>(r, in);
    expect_gradient(
        values(got.dx), in.x, [&](const Array& x) { return dot(in.dy, reference::rms_norm(x, in.weight, kNormEps)); },
        "dx");
    expect_gradient(
        added(got.dweight, in.bias), in.weight,
        [&](const Array& w) { return dot(in.dy, reference::rms_norm(in.x, w, kNormEps)); }, "dweight");
  }
}

TEST(Norms, BitsDependOnNeitherThreadsNorAddress) {
  const Rows r{37, 1301};
  const NormInput in = norm_input(r);
  const auto check = [&](auto member, const char* what) {
    expect_same_bits_on_threads([&] { return run_layer_norm<float>(r, in).*member; }, what);
  };
  check(&LayerNormResult::y, "y");
  check(&LayerNormResult::dx, "dx");
  check(&LayerNormResult::dweight, "dweight");
  expect_same_bits_on_threads([&] { return run_rms_norm<float>(r, in).dx; }, "rms dx");
  expect_same_bits_on_threads([&] { return run_rms_norm<float>(r, in).dweight; }, "rms dweight");

  const auto aligned = run_layer_norm<float>(r, in);
  const Tensor x = misaligned(tensor<float>({r.count, r.length}, in.x));
  const Tensor y = misaligned(x);
  layer_norm(device(), x, tensor<float>({r.length}, in.weight), tensor<float>({r.length}, in.bias), kNormEps, y,
             unset<float>({r.count}), unset<float>({r.count}));
  EXPECT_TRUE(same_bits(y, aligned.y));
}

// ---------------------------------------------------------------- elementwise

TEST(Exp, RelativeErrorIsWithinItsBound) {
  for (double x = -87; x <= 87; x += 3.7e-4) {
    const auto in = static_cast<float>(x);
    const double expected = std::exp(static_cast<double>(in));
    ASSERT_NEAR(body::exp(in), expected, 0.75 * kEps<float> * expected) << in;
  }
  EXPECT_EQ(body::exp(0.0F), 1);
  EXPECT_FLOAT_EQ(body::exp(-1e30F), body::exp(-87.0F));
  EXPECT_FLOAT_EQ(body::exp(1e30F), body::exp(87.0F));
  EXPECT_TRUE(std::isnan(body::exp(std::numeric_limits<float>::quiet_NaN())));
}

// Points on both sides of the bounds of gelu's clamp, and the plain range densely.
template <typename T>
Array activation_points() {
  Array points = {0, -0.0, 1e-20, -1e-20, 9.99, 10.01, -9.99, -10.01, 40, -40, 1e4, -1e4};
  for (double x = -12; x < 12; x += 0.0137) points.push_back(static_cast<T>(x));
  for (double& x : points) x = static_cast<T>(x);
  return points;
}

// Relative error of e^-a: 2 ulp and that of the rounded argument a; then three operations.
double sigmoid_error(double a, double eps) {
  return eps * (8 + 3 * std::abs(a));
}

template <typename T>
void check_gelu() {
  const Array x = activation_points<T>();
  const auto n = static_cast<std::int64_t>(x.size());
  const Array dy = normals<T>(5, n);
  const Tensor y = unset<T>({n});
  const Tensor dx = unset<T>({n});
  gelu(device(), tensor<T>({n}, x), y);
  gelu_gradient(device(), tensor<T>({n}, dy), tensor<T>({n}, x), dx);
  Array expected;
  Array tolerance;
  Array slope;
  Array slope_tolerance;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double u2 = 2 * 0.7978845608028654 * (x[i] + 0.044715 * x[i] * x[i] * x[i]);
    const double error = sigmoid_error(std::min(std::abs(u2), 88.0), kEps<T>);
    expected.push_back(reference::gelu(x[i]));
    // The reference's 1 + tanh cancels to double's ε for negative x; beyond the clamp the gate is not 0 but e^-87.
    const double floor = std::abs(x[i]) * (4 * kEps<double> + 1e-37);
    tolerance.push_back(error * std::abs(expected.back()) + floor);
    const double h = 1e-3;  // fourth-order difference: 1e-12 of derivatives that are of order 1, and rounding 1e-13·|x|
    slope.push_back(dy[i] *
                    (8 * (reference::gelu(x[i] + h) - reference::gelu(x[i] - h)) -
                     (reference::gelu(x[i] + 2 * h) - reference::gelu(x[i] - 2 * h))) /
                    (12 * h));
    slope_tolerance.push_back(std::abs(dy[i]) * (error * 4 + 1e-10 + 1e-12 * std::abs(x[i])));
  }
  expect_within(values(y), expected, tolerance, "gelu");
  expect_within(values(dx), slope, slope_tolerance, "gelu_gradient");
}

TEST(Gelu, MatchesTheReference) {
  check_gelu<float>();
  check_gelu<double>();
}

TEST(Gelu, HugeValuesStayFiniteAndNanStaysNan) {
  const Tensor x = tensor<float>({3}, {3e38, -3e38, std::nan("")});
  const Tensor y = unset<float>({3});
  const Tensor dx = tensor<float>({3}, {0, 0, 0});
  gelu(device(), x, y);
  gelu_gradient(device(), tensor<float>({3}, {1, 1, 1}), x, dx);
  EXPECT_FLOAT_EQ(y.data<float>()[0], 3e38F);
  EXPECT_NEAR(y.data<float>()[1], 0, 10);  // 3e38·e^-87
  EXPECT_TRUE(std::isnan(y.data<float>()[2]));
  EXPECT_FLOAT_EQ(dx.data<float>()[0], 1);
  EXPECT_NEAR(dx.data<float>()[1], 0, 1e-30);
  EXPECT_TRUE(std::isnan(dx.data<float>()[2]));
}

template <typename T>
void check_swiglu(const Rows& r) {
  const Array gate_up = normals<T>(6, r.count * 2 * r.length, 3);
  const Array dy = normals<T>(7, r.count * r.length);
  const Tensor in = tensor<T>({r.count, 2 * r.length}, gate_up);
  const Tensor y = unset<T>({r.count, r.length});
  const Tensor dgate_up = unset<T>(in.shape());
  swiglu(device(), in, y);
  swiglu_gradient(device(), tensor<T>({r.count, r.length}, dy), in, dgate_up);
  const Array expected = reference::swiglu(gate_up, r.length);
  Array tolerance;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double gate = gate_up[i / size(r.length) * size(2 * r.length) + i % size(r.length)];
    tolerance.push_back(sigmoid_error(gate, kEps<T>) * std::abs(expected[i]));
  }
  expect_within(values(y), expected, tolerance, "swiglu");
  if constexpr (std::is_same_v<T, double>) {
    expect_gradient(
        values(dgate_up), gate_up, [&](const Array& x) { return dot(dy, reference::swiglu(x, r.length)); }, "swiglu");
  } else {
    const Tensor exact = unset<double>(in.shape());
    swiglu_gradient(device(), tensor<double>({r.count, r.length}, dy), tensor<double>(in.shape(), gate_up), exact);
    Array gradient_tolerance(gate_up.size());
    for (std::size_t i = 0; i < dy.size(); ++i) {
      const std::size_t gate = i / size(r.length) * size(2 * r.length) + i % size(r.length);
      const double error = sigmoid_error(gate_up[gate], kEps<T>) * std::abs(dy[i]);
      gradient_tolerance[gate] = 2 * error * std::abs(gate_up[gate + size(r.length)]) * (1 + std::abs(gate_up[gate]));
      gradient_tolerance[gate + size(r.length)] = error * std::abs(gate_up[gate]);
    }
    expect_within(values(dgate_up), values(exact), gradient_tolerance, "swiglu_gradient");
  }
}

TEST(Swiglu, MatchesTheReference) {
  for (const Rows& r : kRows) {
    check_swiglu<float>(r);
    check_swiglu<double>(r);
  }
}

TEST(Elementwise, AddAndScaleAreExact) {
  const std::int64_t n = 4101;  // one chunk and a bit
  const Array a = normals<float>(8, n);
  const Array b = normals<float>(9, n);
  const Tensor at = tensor<float>({n}, a);
  const Tensor c = unset<float>({n});
  add(device(), at, tensor<float>({n}, b), c);
  add(device(), at, tensor<float>({n}, b), at);  // in place
  EXPECT_TRUE(same_bits(c, at));
  scale(device(), at, 0.3);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float sum = static_cast<float>(a[i]) + static_cast<float>(b[i]);
    ASSERT_EQ(c.data<float>()[i], sum);
    ASSERT_EQ(at.data<float>()[i], sum * 0.3F);
  }
  EXPECT_THROW(add(device(), at, tensor<float>({1}, {1}), c), std::logic_error);
  EXPECT_THROW(scale(device(), device().zeros({2}, DType::int32), 2), std::logic_error);
}

TEST(Elementwise, BiasIsAddedToEveryRow) {
  for (const Rows& r : kRows) {
    const Array x = normals<float>(18, r.count * r.length);
    const Array bias = normals<float>(19, r.length);
    const Tensor xt = tensor<float>({r.count, r.length}, x);
    const Tensor y = unset<float>(xt.shape());
    add_bias(device(), xt, tensor<float>({r.length}, bias), y);
    add_bias(device(), xt, tensor<float>({r.length}, bias), xt);  // in place
    EXPECT_TRUE(same_bits(xt, y));
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(y.data<float>()[i], static_cast<float>(x[i]) + static_cast<float>(bias[i % size(r.length)]));
    }
    EXPECT_THROW(add_bias(device(), xt, device().zeros({r.length + 1}, DType::float32), y), std::logic_error);
  }
}

TEST(Elementwise, BitsDependOnNeitherThreadsNorAddress) {
  const Array x = normals<float>(10, 5 * 2 * 1999, 3);
  const auto run = [&](bool moved) {
    const Tensor plain = tensor<float>({5, 2 * 1999}, x);
    const Tensor in = moved ? misaligned(plain) : plain;
    const Tensor y = unset<float>({5, 1999});
    swiglu(device(), in, y);
    gelu(device(), y, y);
    return y;
  };
  expect_same_bits_on_threads([&] { return run(false); }, "swiglu and gelu");
  EXPECT_TRUE(same_bits(run(false), run(true)));
}

// ---------------------------------------------------------------- dropout

// Exactly the definition: the factor of each element by one Philox block, computed alone.
template <typename T>
void check_dropout_rows(const Shape& shape, const Dropout& mask) {
  const Array x = normals<T>(11, shape.elements());
  const Array residual = normals<T>(12, shape.elements());
  const Tensor xt = tensor<T>(shape, x);
  const Tensor y = unset<T>(shape);
  const Tensor sum = tensor<T>(shape, residual);
  dropout(device(), xt, mask, y);
  dropout_add(device(), xt, sum, mask, sum);  // in place of the residual
  std::int64_t dropped = 0;
  for (std::int64_t i = 0; i < shape.elements(); ++i) {
    const std::int64_t column = i % shape[2];
    const std::int64_t b = i / shape[2] % shape[1];
    const std::int64_t t = i / (shape[2] * shape[1]);
    const T factor = static_cast<T>(reference::dropout_factor(mask, t, b, 0, column));
    dropped += factor == 0;
    const T in = static_cast<T>(x[size(i)]);
    ASSERT_EQ(y.data<T>()[i], in * factor) << "t " << t << ", b " << b << ", column " << column;
    // With or without a fused multiply-add.
    ASSERT_NEAR(sum.data<T>()[i], static_cast<T>(residual[size(i)]) + in * factor,
                kEps<T> * (std::abs(residual[size(i)]) + std::abs(in * factor)));
  }
  // Six standard deviations of a binomial.
  const auto n = static_cast<double>(shape.elements());
  EXPECT_NEAR(static_cast<double>(dropped), n * mask.p, 6 * std::sqrt(n * mask.p * (1 - mask.p)) + 1);
}

TEST(Dropout, IsTheDocumentedFunctionOfPosition) {
  const std::int64_t far = (std::int64_t{5} << 32) + 7;  // a sample whose upper half is used
  for (const std::int64_t columns : {1, 3, 4, 63, 64, 70, 131}) {
    check_dropout_rows<float>({5, 3, columns},
                              {.p = 0.1, .key = 0x123456789abcdefULL, .first_sample = far, .rows = {.first = 11}});
    check_dropout_rows<double>({2, 1, columns}, {.p = 0.75, .key = 99, .first_sample = 3, .rows = {.first = 1}});
  }
  check_dropout_rows<float>({3, 2, 65}, {.p = 1e-12, .key = 1});      // one word of 2³² drops
  check_dropout_rows<float>({3, 2, 65}, {.p = 1 - 1e-12, .key = 1});  // all but none
}

TEST(Dropout, ZeroProbabilityIsTheIdentity) {
  const Shape shape{3, 2, 7};
  const Tensor x = tensor<float>(shape, normals<float>(13, 42));
  const Tensor y = unset<float>(shape);
  dropout(device(), x, {.p = 0, .key = 5}, y);
  EXPECT_TRUE(same_bits(x, y));
  dropout_add(device(), x, x, {.p = 0, .key = 5}, y);
  for (int i = 0; i < 42; ++i) ASSERT_EQ(y.data<float>()[i], 2 * x.data<float>()[i]);
}

TEST(Dropout, SlicesDrawWhatTheWholeDraws) {
  const Shape shape{6, 4, 37};
  const Tensor x = tensor<float>(shape, Array(size(shape.elements()), 1.0));
  const Dropout mask{.p = 0.4, .key = 8, .first_sample = 20, .rows = {.first = 0}};
  const Tensor whole = unset<float>(shape);
  dropout(device(), x, mask, whole);
  Dropout half = mask;
  half.rows = {.first = 3};
  const Tensor second = unset<float>({3, 4, 37});
  dropout(device(), x.narrow(3, 3), half, second);
  EXPECT_TRUE(same_bits(second, whole.narrow(3, 3)));
  expect_same_bits_on_threads(
      [&] {
        const Tensor y = unset<float>(shape);
        dropout(device(), x, mask, y);
        return y;
      },
      "dropout");
}

TEST(Dropout, RefusesProbabilitiesOutsideZeroToOne) {
  const Tensor x = device().zeros({1, 1, 4}, DType::float32);
  EXPECT_THROW(dropout(device(), x, {.p = 1}, x), std::logic_error);
  EXPECT_THROW(dropout(device(), x, {.p = -0.1}, x), std::logic_error);
  EXPECT_THROW(dropout(device(), x, {.p = std::nan("")}, x), std::logic_error);
  EXPECT_THROW(dropout(device(), x.reshape({4}), {.p = 0.1}, x), std::logic_error);
}

}  // namespace
}  // namespace cuboid::kernels
