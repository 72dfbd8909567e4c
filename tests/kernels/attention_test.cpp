#include "kernels/common.h"

namespace cuboid::kernels {
namespace {

using reference::Heads;

// Sequences of one token, below, at, just above and far above a block of query rows; grouped and single key/value
// heads.
constexpr Heads kHeads[] = {{1, 2, 3, 1, 4}, {5, 3, 2, 2, 7}, {64, 1, 4, 2, 16}, {65, 2, 6, 3, 8}, {150, 1, 3, 3, 10}};

const Dropout kNone{};
const Dropout kSome{.p = 0.2, .key = 77, .first_sample = (std::int64_t{1} << 33) + 5, .first_head = 6};

struct Input {
  Array q, k, v, dout;
};
Input input(const Heads& s) {
  return {normals<float>(1, s.B * s.H * s.T * s.D), normals<float>(2, s.B * s.K * s.T * s.D),
          normals<float>(3, s.B * s.K * s.T * s.D), normals<float>(4, s.T * s.B * s.H * s.D)};
}

struct Result {
  Tensor out, log_sum, dq, dk, dv;
};
template <typename T>
Result run(const Heads& s, const Input& in, const Dropout& mask, bool moved = false) {
  const Shape q_shape{s.B, s.H, s.T, s.D};
  const Shape k_shape{s.B, s.K, s.T, s.D};
  const auto place = [&](const Tensor& t) { return moved ? misaligned(t) : t; };
  const Tensor q = place(tensor<T>(q_shape, in.q));
  const Tensor k = place(tensor<T>(k_shape, in.k));
  const Tensor v = place(tensor<T>(k_shape, in.v));
  const Tensor dout = place(tensor<T>({s.T, s.B, s.H * s.D}, in.dout));
  Result r{place(unset<T>(dout.shape())), unset<T>({s.B, s.H, s.T}), unset<T>(q_shape), unset<T>(k_shape),
           unset<T>(k_shape)};
  attention(device(), q, k, v, mask, r.out, r.log_sum);
  attention_gradient(device(), dout, q, k, v, r.out, r.log_sum, mask, r.dq, r.dk, r.dv);
  return r;
}

// Bounds of rounding, per element. A score of D products is off by at most (D+2)·ε/2·Σ|q||k|/√D, an exponential by that
// (twice: numerator, and log-sum) plus 2 ulp, a sum over T by T·ε/2; everything after is products of such factors, so a
// result is off by its value in magnitudes times the sum of the factors' errors.
struct Tolerance {
  Array out, log_sum, dq, dk, dv;
};
Tolerance tolerance(const Heads& s, const Input& in, const Dropout& mask, const Array& out, double eps) {
  Tolerance t{Array(in.dout.size()), Array(size(s.B * s.H * s.T)), Array(in.q.size()), Array(in.k.size()),
              Array(in.k.size())};
  const double scale = 1 / std::sqrt(static_cast<double>(s.D));
  for (std::int64_t row = 0; row < s.B * s.H * s.T; ++row) {
    const std::int64_t at = row % s.T;
    const std::int64_t h = row / s.T % s.H;
    const std::int64_t b = row / (s.T * s.H);
    const std::size_t q_row = size(row * s.D);
    const std::size_t out_row = size(((at * s.B + b) * s.H + h) * s.D);
    const std::size_t kv_head = size((b * s.K + h / (s.H / s.K)) * s.T * s.D);
    const auto visible = reference::attention_probabilities(s, in.q, in.k, b, h, at);
    double score = 0;  // largest Σ|q||k|/√D of the row
    for (std::size_t j = 0; j < visible.p.size(); ++j) {
      double sum = 0;
      for (std::size_t d = 0; d < size(s.D); ++d) sum += std::abs(in.q[q_row + d] * in.k[kv_head + j * size(s.D) + d]);
      score = std::max(score, sum * scale);
    }
    double delta = 0;
    for (std::size_t d = 0; d < size(s.D); ++d) delta += std::abs(in.dout[out_row + d] * out[out_row + d]);
    const auto length = static_cast<double>(s.T);
    const auto dim = static_cast<double>(s.D);
    const double error = eps * (2 * (dim + 2) * (score + 1) + 2 * length + 16);
    t.log_sum[size(row)] = eps * ((dim + 2) * (score + 1) + length + 8 + std::abs(visible.log_sum));
    for (std::size_t j = 0; j < visible.p.size(); ++j) {
      const double m = mask.p > 0 ? reference::dropout_factor(mask, at, b, h, static_cast<std::int64_t>(j)) : 1;
      const double p = visible.p[j];
      double dp = 0;
      for (std::size_t d = 0; d < size(s.D); ++d) {
        const double v = std::abs(in.v[kv_head + j * size(s.D) + d]);
        dp += std::abs(in.dout[out_row + d]) * v;
        t.out[out_row + d] += error * p * m * v;
        t.dv[kv_head + j * size(s.D) + d] += error * p * m * std::abs(in.dout[out_row + d]);
      }
      // out itself, and so delta, carries the error of the forward pass.
      const double ds = 2 * error * p * (dp * m + delta) * scale;
      for (std::size_t d = 0; d < size(s.D); ++d) {
        t.dq[q_row + d] += ds * std::abs(in.k[kv_head + j * size(s.D) + d]);
        t.dk[kv_head + j * size(s.D) + d] += ds * std::abs(in.q[q_row + d]);
      }
    }
  }
  return t;
}

std::string name(const Heads& s, const Dropout& mask) {
  return "T " + std::to_string(s.T) + " B " + std::to_string(s.B) + " H " + std::to_string(s.H) + " K " +
         std::to_string(s.K) + " D " + std::to_string(s.D) + " p " + std::to_string(mask.p);
}

TEST(Attention, MatchesTheReference) {
  for (const Heads& s : kHeads) {
    const Input in = input(s);
    Array log_sum;
    for (std::int64_t row = 0; row < s.B * s.H * s.T; ++row) {
      log_sum.push_back(
          reference::attention_probabilities(s, in.q, in.k, row / (s.T * s.H), row / s.T % s.H, row % s.T).log_sum);
    }
    for (const Dropout& mask : {kNone, kSome}) {
      const Array out = reference::attention(s, in.q, in.k, in.v, mask);
      const Result exact = run<double>(s, in, mask);
      const Result single = run<float>(s, in, mask);
      const Tolerance tight = tolerance(s, in, mask, out, kEps<double>);
      expect_within(values(exact.out), out, tight.out, "double out " + name(s, mask));
      expect_within(values(exact.log_sum), log_sum, tight.log_sum, "double log_sum " + name(s, mask));
      const Tolerance t = tolerance(s, in, mask, out, kEps<float>);
      expect_within(values(single.out), out, t.out, "out " + name(s, mask));
      expect_within(values(single.log_sum), log_sum, t.log_sum, "log_sum " + name(s, mask));
      expect_within(values(single.dq), values(exact.dq), t.dq, "dq " + name(s, mask));
      expect_within(values(single.dk), values(exact.dk), t.dk, "dk " + name(s, mask));
      expect_within(values(single.dv), values(exact.dv), t.dv, "dv " + name(s, mask));
    }
  }
}

TEST(Attention, GradientsAreDerivatives) {
  for (const Heads& s : {Heads{5, 3, 2, 2, 7}, Heads{70, 1, 4, 2, 6}}) {
    const Input in = input(s);
    for (const Dropout& mask : {kNone, kSome}) {
      const Result r = run<double>(s, in, mask);
      const auto loss = [&](const Array& q, const Array& k, const Array& v) {
        return dot(in.dout, reference::attention(s, q, k, v, mask));
      };
      expect_gradient(
          values(r.dq), in.q, [&](const Array& x) { return loss(x, in.k, in.v); }, "dq " + name(s, mask));
      expect_gradient(
          values(r.dk), in.k, [&](const Array& x) { return loss(in.q, x, in.v); }, "dk " + name(s, mask));
      expect_gradient(
          values(r.dv), in.v, [&](const Array& x) { return loss(in.q, in.k, x); }, "dv " + name(s, mask));
    }
  }
}

TEST(Attention, LargeScoresDoNotOverflow) {
  const Heads s{9, 1, 2, 1, 4};
  Input in = input(s);
  for (double& q : in.q) q *= 1000;
  const Result r = run<float>(s, in, kNone);
  for (const double x : values(r.out)) ASSERT_TRUE(std::isfinite(x));
  for (const double x : values(r.dq)) ASSERT_TRUE(std::isfinite(x));
}

TEST(Attention, BitsDependOnNeitherThreadsNorAddress) {
  const Heads s{131, 3, 4, 2, 16};
  const Input in = input(s);
  for (const auto member : {&Result::out, &Result::log_sum, &Result::dq, &Result::dk, &Result::dv}) {
    expect_same_bits_on_threads([&] { return run<float>(s, in, kSome).*member; }, "attention");
    EXPECT_TRUE(same_bits(run<float>(s, in, kSome).*member, run<float>(s, in, kSome, true).*member));
  }
}

TEST(Attention, AllHeadsAtOnceOrSplitDrawTheSameMask) {
  const Heads all{20, 1, 4, 4, 8};
  const Heads half{20, 1, 2, 2, 8};
  const Input in = input(all);
  const Result whole = run<float>(all, in, kSome);
  Dropout mask = kSome;
  mask.first_head += 2;
  const auto upper = [](const Array& x) {
    return Array(x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  };
  const Result part = run<float>(half, {upper(in.q), upper(in.k), upper(in.v), upper(in.dout)}, mask);
  for (std::int64_t t = 0; t < 20; ++t) {
    for (int d = 0; d < 16; ++d)
      ASSERT_EQ(part.out.data<float>()[t * 16 + d], whole.out.data<float>()[t * 32 + 16 + d]);
  }
}

TEST(Attention, WorkspaceIsCountedAndReturned) {
  const Heads s{100, 1, 2, 1, 8};
  const Device counted;
  const auto make = [&](const Shape& shape) { return tensor<float>(shape, normals<float>(5, shape.elements())); };
  const Tensor q = make({1, 2, 100, 8});
  const Tensor kv = make({1, 1, 100, 8});
  attention(counted, q, kv, kv, kNone, unset<float>({100, 1, 16}), unset<float>({1, 2, 100}));
  EXPECT_EQ(counted.account().live(Category::workspace), 0);
  const std::int64_t peak = counted.account().peak(Category::workspace);
  EXPECT_GT(peak, 0);
  EXPECT_LT(peak, omp_get_max_threads() * s.T * s.T * 4);  // less than one score matrix a thread
}

TEST(Attention, RefusesSizesThatDoNotFit) {
  const auto zeros = [](Shape shape) { return device().zeros(std::move(shape), DType::float32); };
  const auto attend = [&](const Shape& q, const Shape& k, const Dropout& mask = {}) {
    attention(device(), zeros(q), zeros(k), zeros(k), mask, zeros({5, 1, 12}), zeros({1, 3, 5}));
  };
  EXPECT_NO_THROW(attend({1, 3, 5, 4}, {1, 3, 5, 4}));
  EXPECT_THROW(attend({1, 3, 5, 4}, {1, 2, 5, 4}), std::logic_error);  // 3 heads over 2
  EXPECT_THROW(attend({1, 3, 5, 4}, {1, 3, 6, 4}), std::logic_error);
  EXPECT_THROW(attend({1, 3, 5, 4}, {1, 3, 5, 4}, {.p = 0.1, .first_row = 2}), std::logic_error);
}

// ---------------------------------------------------------------- heads

template <typename T>
void check_split(const Heads& s, bool rotated) {
  const std::int64_t n = s.T * s.B * (s.H + 2 * s.K) * s.D;
  const Array qkv = normals<T>(6, n);
  Array angles;
  Array cosines;
  Array sines;
  for (std::int64_t i = 0; rotated && i < s.T * (s.D / 2); ++i) {
    angles.push_back(0.1 * static_cast<double>(i * i % 61));
    cosines.push_back(std::cos(angles.back()));
    sines.push_back(std::sin(angles.back()));
  }
  const Tensor cos = rotated ? tensor<T>({s.T, s.D / 2}, cosines) : Tensor{};
  const Tensor sin = rotated ? tensor<T>({s.T, s.D / 2}, sines) : Tensor{};
  const Tensor fused = tensor<T>({s.T, s.B, (s.H + 2 * s.K) * s.D}, qkv);
  const Tensor q = unset<T>({s.B, s.H, s.T, s.D});
  const Tensor k = unset<T>({s.B, s.K, s.T, s.D});
  const Tensor v = unset<T>({s.B, s.K, s.T, s.D});
  split_heads(device(), fused, cos, sin, q, k, v);
  const double bound = rotated ? 16 * kEps<T> : 0;  // two products of factors below 4 in magnitude and rounded angles
  const auto check = [&](const Tensor& t, std::int64_t first, std::int64_t heads, const Array& turn, const char* what) {
    expect_within(values(t), reference::split_heads(s, qkv, first, heads, turn),
                  Array(size(t.elements()), turn.empty() ? 0 : bound), what);
  };
  check(q, 0, s.H, angles, "q");
  check(k, s.H, s.K, angles, "k");
  check(v, s.H + s.K, s.K, {}, "v");

  // The gradient is the transpose: <split(x), (dq,dk,dv)> = <x, gradient(dq,dk,dv)>.
  const Array dq = normals<T>(7, q.elements());
  const Array dk = normals<T>(8, k.elements());
  const Array dv = normals<T>(9, v.elements());
  const Tensor dqkv = unset<T>(fused.shape());
  split_heads_gradient(device(), tensor<T>(q.shape(), dq), tensor<T>(k.shape(), dk), tensor<T>(v.shape(), dv), cos, sin,
                       dqkv);
  const double left = dot(values(q), dq) + dot(values(k), dk) + dot(values(v), dv);
  EXPECT_NEAR(left, dot(qkv, values(dqkv)), 16 * kEps<T> * static_cast<double>(n));
  if (!rotated) {
    const Tensor back = unset<T>(fused.shape());
    split_heads_gradient(device(), q, k, v, cos, sin, back);
    EXPECT_TRUE(same_bits(back, fused));
  }
}

TEST(Heads, SplitRotatesQueriesAndKeys) {
  for (const Heads& s : {Heads{1, 1, 1, 1, 2}, Heads{5, 3, 4, 2, 6}, Heads{7, 2, 3, 1, 40}}) {
    check_split<float>(s, false);
    check_split<float>(s, true);
    check_split<double>(s, true);
  }
  check_split<float>({3, 2, 2, 1, 5}, false);  // an odd head dim
}

TEST(Heads, RefusesHalfARotation) {
  const auto zeros = [](Shape shape) { return device().zeros(std::move(shape), DType::float32); };
  const auto split = [&](const Tensor& cos, const Tensor& sin) {
    split_heads(device(), zeros({3, 1, 12}), cos, sin, zeros({1, 1, 3, 4}), zeros({1, 1, 3, 4}), zeros({1, 1, 3, 4}));
  };
  EXPECT_NO_THROW(split({}, {}));
  EXPECT_THROW(split(zeros({3, 2}), {}), std::logic_error);
  EXPECT_THROW(split(zeros({2, 2}), zeros({2, 2})), std::logic_error);
}

}  // namespace
}  // namespace cuboid::kernels
