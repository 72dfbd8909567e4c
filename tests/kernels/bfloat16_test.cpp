// bfloat16 is a way to store numbers: a kernel must give what the float kernel gives for the same numbers, rounded
// once. For row and element kernels that is an equality of bits; products and attention have other orders of sums and
// further roundings, whose bounds are derived.
#include "kernels/common.h"
#include "kernels/cpu/gemm.h"

namespace cuboid::kernels {
namespace {

constexpr double kHalfUlp = 0x1p-8;  // largest relative error of rounding to 8 significant bits

// Numbers that bfloat16 holds exactly, in both types.
struct Pair {
  Tensor narrow, wide;
};
Pair pair(std::uint64_t seed, const Shape& shape, double scale = 1) {
  const Array from = normals<float>(seed, shape.elements(), scale);
  Pair made{tensor<BFloat16>(shape, from), device().empty(shape, DType::float32)};
  convert(device(), made.narrow, made.wide);
  return made;
}
Pair results(const Shape& shape) {
  return {device().zeros(shape, DType::bfloat16), device().zeros(shape, DType::float32)};
}

void expect_rounded(const Pair& y, const std::string& what) {
  const Tensor rounded = device().empty(y.wide.shape(), DType::bfloat16);
  convert(device(), y.wide, rounded);
  EXPECT_TRUE(same_bits(y.narrow, rounded)) << what;
}

// Runs f(inputs' member, outputs' member) for both types.
template <typename F>
void both(F f) {
  f(&Pair::narrow);
  f(&Pair::wide);
}

Tensor reals(const Shape& shape) {
  return device().zeros(shape, DType::float32);
}

TEST(BFloat16Kernels, Elementwise) {
  const Shape shape{5, 3, 77};
  const Pair a = pair(1, shape, 2), b = pair(2, shape), bias = pair(3, {77}), gate_up = pair(4, {5, 3, 154}, 2);
  const Dropout mask{.p = 0.3, .key = 11, .first_sample = 4, .rows = {.first = 2}};
  const auto check = [&](const char* what, const Shape& out, auto kernel) {
    const Pair y = results(out);
    both([&](auto m) { kernel(m, y.*m); });
    expect_rounded(y, what);
  };
  check("gelu", shape, [&](auto m, const Tensor& y) { gelu(device(), a.*m, y); });
  check("gelu_gradient", shape, [&](auto m, const Tensor& y) { gelu_gradient(device(), b.*m, a.*m, y); });
  check("swiglu", shape, [&](auto m, const Tensor& y) { swiglu(device(), gate_up.*m, y); });
  check("swiglu_gradient", gate_up.wide.shape(),
        [&](auto m, const Tensor& y) { swiglu_gradient(device(), b.*m, gate_up.*m, y); });
  check("geglu", shape, [&](auto m, const Tensor& y) { geglu(device(), gate_up.*m, y); });
  check("geglu_gradient", gate_up.wide.shape(),
        [&](auto m, const Tensor& y) { geglu_gradient(device(), b.*m, gate_up.*m, y); });
  check("add", shape, [&](auto m, const Tensor& y) { add(device(), a.*m, b.*m, y); });
  check("add_bias", shape, [&](auto m, const Tensor& y) { add_bias(device(), a.*m, bias.*m, y); });
  check("dropout", shape, [&](auto m, const Tensor& y) { dropout(device(), a.*m, mask, y); });
  check("dropout_add", shape, [&](auto m, const Tensor& y) { dropout_add(device(), a.*m, b.*m, mask, y); });
  check("scale", shape, [&](auto m, const Tensor& y) {
    device().copy(a.*m, y);
    scale(device(), y, 0.3);
  });
}

TEST(BFloat16Kernels, Norms) {
  const std::int64_t rows = 19, n = 83;
  const Pair x = pair(5, {rows, n}, 3), dy = pair(6, {rows, n}), weight = pair(7, {n}), bias = pair(8, {n});
  const Pair y = results({rows, n}), dx = results({rows, n}), rms = results({rows, n}), drms = results({rows, n});
  std::vector<Tensor> sums[2];
  both([&](auto m) {
    const Tensor mean = reals({rows}), rstd = reals({rows}), dweight = reals({n}), dbias = reals({n});
    layer_norm(device(), x.*m, weight.*m, bias.*m, 1e-5, y.*m, mean, rstd);
    layer_norm_input_gradient(device(), dy.*m, x.*m, weight.*m, mean, rstd, dx.*m);
    layer_norm_weight_gradient(device(), dy.*m, x.*m, mean, rstd, dweight, dbias);
    const Tensor rms_rstd = reals({rows}), drms_weight = reals({n});
    rms_norm(device(), x.*m, weight.*m, 1, 1e-6, rms.*m, rms_rstd);
    rms_norm_input_gradient(device(), dy.*m, x.*m, weight.*m, 1, rms_rstd, drms.*m);
    rms_norm_weight_gradient(device(), dy.*m, x.*m, rms_rstd, drms_weight);
    sums[m == &Pair::narrow] = {mean, rstd, dweight, dbias, rms_rstd, drms_weight};
  });
  expect_rounded(y, "layer_norm");
  expect_rounded(dx, "layer_norm_input_gradient");
  expect_rounded(rms, "rms_norm");
  expect_rounded(drms, "rms_norm_input_gradient");
  for (std::size_t i = 0; i < sums[0].size(); ++i) EXPECT_TRUE(same_bits(sums[0][i], sums[1][i])) << i;
}

TEST(BFloat16Kernels, HeadsAndEmbeddings) {
  const std::int64_t t = 7, b = 2, h = 3, k = 1, d = 6, c = (h + 2 * k) * d, vocabulary = 11;
  const Pair qkv = pair(9, {t, b, c}), table = pair(10, {vocabulary, c}), positions = pair(11, {t + 2, c});
  const Tensor cos = tensor<float>({t, d / 2}, normals<float>(12, t * d / 2));
  const Tensor sin = tensor<float>({t, d / 2}, normals<float>(13, t * d / 2));
  const Tensor tokens = int_tensor({t, b}, {0, 3, 3, 12, 5, 9, 10, 3, 8, 2, 1, 0, 7, 6});
  const Pair q = results({b, h, t, d}), kk = results({b, k, t, d}), v = results({b, k, t, d}),
             back = results({t, b, c});
  const Pair rows = results({t, b, c}), moved = results({t, b, c});
  Tensor dtable[2], dpositions[2];
  both([&](auto m) {
    split_heads(device(), qkv.*m, cos, sin, q.*m, kk.*m, v.*m);
    split_heads_gradient(device(), q.*m, kk.*m, v.*m, cos, sin, back.*m);
    embedding(device(), tokens, table.*m, 1, rows.*m);
    device().copy(qkv.*m, moved.*m);
    add_positions(device(), moved.*m, positions.*m, {.first = 2});
    dtable[m == &Pair::narrow] = reals({vocabulary, c});
    embedding_gradient(device(), tokens, qkv.*m, 1, dtable[m == &Pair::narrow]);
    dpositions[m == &Pair::narrow] = reals({t + 2, c});
    add_positions_gradient(device(), qkv.*m, {.first = 2}, dpositions[m == &Pair::narrow]);
  });
  for (const Pair* y : {&q, &kk, &v, &rows, &moved}) expect_rounded(*y, "forward");
  EXPECT_TRUE(same_bits(dtable[0], dtable[1]));
  EXPECT_TRUE(same_bits(dpositions[0], dpositions[1]));
  // The turn back starts from rounded heads: two roundings of numbers up to √2·|x|.
  const Array expected = values(back.wide);
  Tensor widened = reals({t, b, c});
  convert(device(), back.narrow, widened);
  double largest = 0;
  for (const double x : expected) largest = std::max(largest, std::abs(x));
  expect_within(values(widened), expected, Array(expected.size(), 4 * kHalfUlp * largest), "split_heads_gradient");
}

TEST(BFloat16Kernels, GradientOfLogitsIsRoundedOnce) {
  const std::int64_t rows = 5, n = 37;
  const Tensor logits = tensor<float>({rows, n}, normals<float>(14, rows * n, 3));
  const Tensor targets = int_tensor({rows}, {3, kIgnore, 36, 0, 40});
  const Tensor max = reals({rows}), sum = reals({rows}), at = reals({rows});
  cross_entropy_statistics(device(), logits, targets, 0, max, sum, at);
  const Pair y{device().empty({rows, n}, DType::bfloat16), device().clone(logits)};
  cross_entropy_gradient(device(), logits, targets, 0, max, sum, 0.25, y.narrow);
  cross_entropy_gradient(device(), y.wide, targets, 0, max, sum, 0.25, y.wide);
  expect_rounded(y, "dlogits");
}

// ---------------------------------------------------------------- products

struct Product {
  std::int64_t m, n, k;
};
constexpr Product kProducts[] = {{1, 1, 1}, {3, 5, 7}, {33, 65, 130}, {130, 31, 257}};

// Both ways of computing a product against double: a sum of k terms in float, and one rounding of the result.
void check_product(const Product& s, bool ta, bool tb) {
  const Pair a = pair(20, ta ? Shape{s.k, s.m} : Shape{s.m, s.k});
  const Pair b = pair(21, tb ? Shape{s.n, s.k} : Shape{s.k, s.n});
  const Pair bias = pair(22, {s.n});
  const Array as = values(a.wide), bs = values(b.wide), add = values(bias.wide);
  Array expected(size(s.m * s.n)), terms(expected.size());
  for (std::int64_t i = 0; i < s.m; ++i) {
    for (std::int64_t j = 0; j < s.n; ++j) {
      for (std::int64_t p = 0; p < s.k; ++p) {
        const double term = as[size(ta ? p * s.m + i : i * s.k + p)] * bs[size(tb ? j * s.k + p : p * s.n + j)];
        expected[size(i * s.n + j)] += term;
        terms[size(i * s.n + j)] += std::abs(term);
      }
    }
  }
  const std::string what = std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k) +
                           (ta ? " T" : " N") + (tb ? "T" : "N");
  const double depth_of_sum = static_cast<double>(s.k + 2) * kEps<float>;
  Array sums = expected, sums_bound(terms.size()), rounded = expected, rounded_bound(terms.size());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] += 0.5;
    sums_bound[i] = depth_of_sum * (terms[i] + 0.5);
    rounded[i] += add[i % size(s.n)];
    rounded_bound[i] = kHalfUlp * std::abs(rounded[i]) + 2 * depth_of_sum * (terms[i] + std::abs(add[i % size(s.n)]));
  }
  const Tensor c = tensor<float>({s.m, s.n}, Array(sums.size(), 0.5));
  matmul(device(), a.narrow, b.narrow, c, {ta, tb, true});
  expect_within(values(c), sums, sums_bound, what + " added in float");
  const Tensor y = device().zeros({s.m, s.n}, DType::bfloat16);
  matmul(device(), a.narrow, b.narrow, y, {ta, tb, false}, bias.narrow);
  const Tensor wide = reals({s.m, s.n});
  convert(device(), y, wide);
  expect_within(values(wide), rounded, rounded_bound, what + " rounded");

  const MatrixRef<BFloat16> left{a.narrow.data<BFloat16>(), a.narrow.dim(1), ta};
  const MatrixRef<BFloat16> right{b.narrow.data<BFloat16>(), b.narrow.dim(1), tb};
  const Tensor other = tensor<float>({s.m, s.n}, Array(sums.size(), 0.5));
  gemm_by_float(s.m, s.n, s.k, left, right, true, other.data<float>(), s.n);
  expect_within(values(other), sums, sums_bound, what + " by float");
  gemm_by_float(s.m, s.n, s.k, left, right, bias.narrow.data<BFloat16>(), y.data<BFloat16>());
  convert(device(), y, wide);
  expect_within(values(wide), rounded, rounded_bound, what + " by float, rounded");
}

TEST(BFloat16Kernels, Products) {
  for (const Product& s : kProducts) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) check_product(s, ta, tb);
    }
  }
}

// In bfloat16 itself the sum would stop at 256.
TEST(BFloat16Kernels, AThousandOnesAreAThousand) {
  const auto ones = [](const Shape& shape) { return tensor<BFloat16>(shape, Array(size(shape.elements()), 1.0)); };
  const Tensor weight = reals({2, 3}), bias = reals({3}), table = reals({1, 3});
  const Tensor token = int_tensor({1, 1}, {0});
  for (int i = 0; i < 1000; ++i) {
    matmul(device(), ones({1, 2}), ones({1, 3}), weight, {.transpose_a = true, .accumulate = true});
    add_column_sum(device(), ones({1, 3}), bias);
    embedding_gradient(device(), token, ones({1, 1, 3}), 0, table);
  }
  for (const Tensor& sum : {weight, bias, table}) EXPECT_EQ(values(sum), Array(size(sum.elements()), 1000.0));
  const Tensor narrow = device().zeros({2, 3}, DType::bfloat16);
  EXPECT_THROW(matmul(device(), ones({1, 2}), ones({1, 3}), narrow, {.transpose_a = true, .accumulate = true}),
               std::logic_error);
}

// ---------------------------------------------------------------- attention

double norm_of(const Array& x) {
  return std::sqrt(dot(x, x));
}

// ‖narrow - wide‖ relative to ‖wide‖.
double distance(const Pair& y) {
  const Tensor widened = reals(y.wide.shape());
  convert(device(), y.narrow, widened);
  Array difference = values(widened);
  const Array exact = values(y.wide);
  for (std::size_t i = 0; i < exact.size(); ++i) difference[i] -= exact[i];
  return norm_of(difference) / norm_of(exact);
}

// A result passes through few roundings (probabilities, score gradients, out, itself), each of at most half an ulp of
// numbers whose errors are independent: together less than four of them in norm.
TEST(BFloat16Kernels, Attention) {
  for (const double p : {0.0, 0.2}) {
    const std::int64_t b = 2, h = 4, k = 2, t = 131, d = 24;
    const Dropout mask{.p = p, .key = 5, .first_sample = 3};
    const Pair q = pair(30, {b, h, t, d}), kk = pair(31, {b, k, t, d}), v = pair(32, {b, k, t, d});
    const Pair dout = pair(33, {t, b, h * d}), out = results({t, b, h * d});
    const Pair dq = results({b, h, t, d}), dk = results({b, k, t, d}), dv = results({b, k, t, d});
    both([&](auto m) {
      const Tensor log_sum = reals({b, h, t});
      attention(device(), q.*m, kk.*m, v.*m, mask, out.*m, log_sum);
      attention_gradient(device(), dout.*m, q.*m, kk.*m, v.*m, out.*m, log_sum, mask, dq.*m, dk.*m, dv.*m);
    });
    for (const auto& [y, what] : {std::pair{&out, "out"}, {&dq, "dq"}, {&dk, "dk"}, {&dv, "dv"}}) {
      const double off = distance(*y);
      EXPECT_LT(off, 4 * kHalfUlp) << what << ", p " << p;
      EXPECT_GT(off, kHalfUlp / 16) << what << ": not rounded at all, p " << p;
    }
  }
}

}  // namespace
}  // namespace cuboid::kernels
