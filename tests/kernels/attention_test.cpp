#include "kernels/common.h"

namespace cuboid::kernels {
namespace {

using reference::Heads;

// Sequences of one token, below, at, just above and far above a block of query rows; grouped and single key/value
// heads.
constexpr Heads kHeads[] = {{1, 2, 3, 1, 4},
                            {5, 3, 2, 2, 7},
                            {64, 1, 4, 2, 16},
                            {65, 2, 6, 3, 8},
                            {150, 1, 3, 3, 10},
                            // windows of one, longer than, as long as and just shorter than the sequence; whose edges
                            // fall inside blocks of queries and of keys, and that leave whole blocks out
                            {5, 2, 3, 1, 4, 1},
                            {7, 1, 2, 2, 5, 9},
                            {65, 1, 2, 1, 6, 65},
                            {66, 1, 3, 3, 4, 65},
                            {150, 1, 4, 2, 10, 37},
                            {201, 1, 2, 2, 3, 64},
                            {200, 1, 1, 1, 8, 1}};

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
  attention(device(), q, k, v, mask, r.out, r.log_sum, {.window = s.window});
  attention_gradient(device(), dout, q, k, v, r.out, r.log_sum, mask, r.dq, r.dk, r.dv, {.window = s.window});
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
         std::to_string(s.K) + " D " + std::to_string(s.D) + " window " + std::to_string(s.window) + " p " +
         std::to_string(mask.p);
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
  for (const Heads& s :
       {Heads{5, 3, 2, 2, 7}, Heads{70, 1, 4, 2, 6}, Heads{9, 2, 3, 1, 4, 3}, Heads{90, 1, 2, 1, 5, 20}}) {
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

TEST(Attention, AWindowAsLongAsTheSequenceChangesNoBit) {
  for (Heads s : {Heads{65, 2, 6, 3, 8}, Heads{150, 1, 3, 3, 10}}) {
    const Input in = input(s);
    const Result full = run<float>(s, in, kSome);
    for (const std::int64_t window : {s.T, s.T + 1, std::int64_t{4096}}) {
      s.window = window;
      const Result wide = run<float>(s, in, kSome);
      for (const auto member : {&Result::out, &Result::log_sum, &Result::dq, &Result::dk, &Result::dv}) {
        EXPECT_TRUE(same_bits(full.*member, wide.*member)) << name(s, kSome);
      }
    }
  }
}

// Keys that no query of a block sees are not read: NaN there changes nothing.
TEST(Attention, KeysOutsideTheWindowAreSkipped) {
  Heads s{200, 1, 1, 1, 4, 30};
  const Input in = input(s);
  const Tensor q = tensor<float>({1, 1, 200, 4}, in.q);
  const auto attend = [&](double old_key) {
    Array k = in.k;
    for (std::size_t i = 0; i < 4 * 96; ++i) k[i] = old_key;  // queries from 128 on see keys from 99 on
    const Tensor out = unset<float>({200, 1, 4});
    attention(device(), q, tensor<float>({1, 1, 200, 4}, k), tensor<float>({1, 1, 200, 4}, in.v), kNone, out,
              unset<float>({1, 1, 200}), {.window = s.window});
    return out.narrow(128, 72);
  };
  EXPECT_TRUE(same_bits(attend(0), attend(std::nan(""))));
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
  counted.account().reset_peaks();
  attention(counted, q, kv, kv, kNone, unset<float>({100, 1, 16}), unset<float>({1, 2, 100}), {.window = 10});
  EXPECT_LT(counted.account().peak(Category::workspace), peak) << "a window needs less";
}

TEST(Attention, RefusesSizesThatDoNotFit) {
  const auto zeros = [](Shape shape) { return device().zeros(std::move(shape), DType::float32); };
  const auto attend = [&](const Shape& q, const Shape& k, const Dropout& mask = {}, std::int64_t window = 0) {
    attention(device(), zeros(q), zeros(k), zeros(k), mask, zeros({5, 1, 12}), zeros({1, 3, 5}), {.window = window});
  };
  EXPECT_NO_THROW(attend({1, 3, 5, 4}, {1, 3, 5, 4}));
  EXPECT_THROW(attend({1, 3, 5, 4}, {1, 2, 5, 4}), std::logic_error);  // 3 heads over 2
  EXPECT_NO_THROW(attend({1, 3, 5, 4}, {1, 3, 6, 4}));                 // the first five of six
  EXPECT_THROW(attend({1, 3, 5, 4}, {1, 3, 4, 4}), std::logic_error);  // a query without a key of its own
  EXPECT_THROW(attend({1, 3, 5, 4}, {1, 3, 5, 4}, {.p = 0.1, .rows = {.first = 2}}), std::logic_error);
  EXPECT_THROW(attend({1, 3, 5, 4}, {1, 3, 5, 4}, {}, -1), std::logic_error);
}

// ---------------------------------------------------------------- parts of a sequence

// Lengths that two and three ranks can share; chunks shorter and longer than a block of queries; windows that reach
// into the chunk before, over several, and over none.
constexpr Heads kSharedHeads[] = {{12, 2, 3, 1, 4}, {24, 1, 4, 2, 5, 7}, {300, 1, 2, 1, 6}, {324, 2, 2, 2, 3, 100}};

// Rows of (outer, T, inner) at the part's positions.
Array rows_of(const Array& x, std::int64_t outer, std::int64_t length, const SequencePart& part, std::int64_t rows) {
  const auto inner = std::ssize(x) / (outer * length);
  Array taken;
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto from = x.begin() + (o * length + part.position(row)) * inner;
      taken.insert(taken.end(), from, from + inner);
    }
  }
  return taken;
}

template <typename T>
Result run_part(const Heads& s, const Input& in, const Dropout& mask, const SequencePart& part, std::int64_t rows) {
  const Shape q_shape{s.B, s.H, rows, s.D};
  const Shape k_shape{s.B, s.K, s.T, s.D};
  const Tensor q = tensor<T>(q_shape, rows_of(in.q, s.B * s.H, s.T, part, rows));
  const Tensor k = tensor<T>(k_shape, in.k);
  const Tensor v = tensor<T>(k_shape, in.v);
  const Tensor dout = tensor<T>({rows, s.B, s.H * s.D}, rows_of(in.dout, 1, s.T, part, rows));
  Result r{unset<T>(dout.shape()), unset<T>({s.B, s.H, rows}), unset<T>(q_shape), unset<T>(k_shape), unset<T>(k_shape)};
  attention(device(), q, k, v, mask, r.out, r.log_sum, {s.window, part});
  attention_gradient(device(), dout, q, k, v, r.out, r.log_sum, mask, r.dq, r.dk, r.dv, {s.window, part});
  return r;
}

Array plus(Array a, const Array& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

template <typename T>
void check_parts(const Heads& s, const Dropout& mask, int ranks) {
  const std::string what = name(s, mask) + " over " + std::to_string(ranks);
  const Input in = input(s);
  const Result whole = run<double>(s, in, mask);
  const Tolerance t = tolerance(s, in, mask, values(whole.out), 2 * kEps<T>);  // of either
  const std::int64_t rows = s.T / ranks;
  Array dk(in.k.size());
  Array dv(in.k.size());
  for (int rank = 0; rank < ranks; ++rank) {
    const SequencePart part = context_part(s.T, rank, ranks);
    const Result r = run_part<T>(s, in, mask, part, rows);
    const auto of = [&](const Array& x, std::int64_t outer) { return rows_of(x, outer, s.T, part, rows); };
    expect_within(values(r.out), of(values(whole.out), 1), of(t.out, 1), "out " + what);
    expect_within(values(r.log_sum), of(values(whole.log_sum), s.B * s.H), of(t.log_sum, s.B * s.H), "sum " + what);
    expect_within(values(r.dq), of(values(whole.dq), s.B * s.H), of(t.dq, s.B * s.H), "dq " + what);
    dk = plus(std::move(dk), values(r.dk));
    dv = plus(std::move(dv), values(r.dv));
  }
  expect_within(dk, values(whole.dk), t.dk, "dk " + what);
  expect_within(dv, values(whole.dv), t.dv, "dv " + what);
}

TEST(Attention, PartsOfASequenceMakeTheWhole) {
  for (const Heads& s : kSharedHeads) {
    for (const Dropout& mask : {kNone, kSome}) {
      for (const int ranks : {1, 2, 3}) {
        check_parts<double>(s, mask, ranks);
        check_parts<float>(s, mask, ranks);
      }
    }
  }
}

TEST(Attention, ContextRanksHaveEqualWorkAndWithAWindowTheLastMost) {
  std::vector<double> flops;
  const Device meta = Device::meta([&](const TracedKernel& kernel) { flops.push_back(kernel.flops); });
  const auto trace = [&](std::int64_t rows, const Causal& causal) {
    const Tensor q = meta.empty({2, 6, rows, 8}, DType::float32);
    const Tensor kv = meta.empty({2, 3, 96, 8}, DType::float32);
    attention(meta, q, kv, kv, kNone, meta.empty({rows, 2, 48}, DType::float32),
              meta.empty({2, 6, rows}, DType::float32), causal);
    return flops.back();
  };
  const double whole = trace(96, {});
  EXPECT_EQ(whole, 4.0 * 8 * 2 * 6 * (96 * 97 / 2));
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(trace(24, {0, context_part(96, rank, 4)}), whole / 4);
  double windowed = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const double share = trace(24, {17, context_part(96, rank, 4)});
    EXPECT_LE(share, trace(24, {17, context_part(96, 3, 4)})) << "the last rank has most: it is the one that is traced";
    windowed += share;
  }
  EXPECT_EQ(windowed, trace(96, {.window = 17}));
}

TEST(Attention, KeyGradientsAsSumsRoundToTheStoredOnes) {
  const Heads s{36, 1, 4, 2, 8};
  const Input in = input(s);
  const auto stored = [&](const Shape& shape, const Array& numbers) { return tensor<BFloat16>(shape, numbers); };
  const Tensor q = stored({1, 4, 36, 8}, in.q);
  const Tensor k = stored({1, 2, 36, 8}, in.k);
  const Tensor v = stored({1, 2, 36, 8}, in.v);
  const Tensor dout = stored({36, 1, 32}, in.dout);
  const Tensor out = unset<BFloat16>({36, 1, 32});
  const Tensor log_sum = unset<float>({1, 4, 36});
  attention(device(), q, k, v, kSome, out, log_sum);
  const Tensor dq = unset<BFloat16>(q.shape());
  const Tensor rounded_k = unset<BFloat16>(k.shape());
  const Tensor rounded_v = unset<BFloat16>(k.shape());
  attention_gradient(device(), dout, q, k, v, out, log_sum, kSome, dq, rounded_k, rounded_v);
  const Tensor sum_k = unset<float>(k.shape());
  const Tensor sum_v = unset<float>(k.shape());
  attention_gradient(device(), dout, q, k, v, out, log_sum, kSome, dq, sum_k, sum_v);
  for (const auto& [sum, rounded] : {std::pair(sum_k, rounded_k), std::pair(sum_v, rounded_v)}) {
    const Tensor now = unset<BFloat16>(k.shape());
    convert(device(), sum, now);
    EXPECT_TRUE(same_bits(now, rounded));
    const Tensor wide = unset<float>(k.shape());
    convert(device(), now, wide);
    EXPECT_FALSE(same_bits(wide, sum)) << "sums have more digits";
  }
}

TEST(Sequence, JoinsItsPartsInOrderAndCutsThemAgain) {
  const std::int64_t length = 12;
  Array numbers;  // (2,3,T,5): each element tells its place
  for (int i = 0; i < 2 * 3 * length * 5; ++i) numbers.push_back(i);
  for (const int ranks : {1, 2, 3}) {
    Array parts;
    for (int rank = 0; rank < ranks; ++rank) {
      const Array part = rows_of(numbers, 6, length, context_part(length, rank, ranks), length / ranks);
      parts.insert(parts.end(), part.begin(), part.end());
    }
    const Tensor cut = tensor<float>({ranks, 2, 3, length / ranks, 5}, parts);
    const Tensor whole = unset<float>({2, 3, length, 5});
    join_sequence(device(), cut, whole);
    EXPECT_EQ(values(whole), numbers);
    const Tensor again = unset<float>(cut.shape());
    cut_sequence(device(), whole, again);
    EXPECT_EQ(values(again), parts);
  }
  EXPECT_THROW(join_sequence(device(), unset<float>({2, 2, 3, 6, 5}), unset<float>({2, 3, 10, 5})), std::logic_error);
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

// Every q and k head is a row of an RMS norm, v passes.
template <typename T>
void check_head_norm(const Heads& s) {
  constexpr double kEpsilon = 1e-5;
  const std::int64_t width = (s.H + 2 * s.K) * s.D;
  const Array qkv = normals<T>(10, s.T * s.B * width);
  const Array wq = normals<T>(11, s.D);
  const Array wk = normals<T>(12, s.D);
  const Array dy = normals<T>(13, s.T * s.B * width);
  const auto norm = [&](const Array& x, const Array& q_weight, const Array& k_weight) {
    Array y = x;
    for (std::int64_t r = 0; r < s.T * s.B; ++r) {
      for (std::int64_t h = 0; h < s.H + s.K; ++h) {
        const auto at = static_cast<std::ptrdiff_t>(r * width + h * s.D);
        const Array head(x.begin() + at, x.begin() + at + s.D);
        const Array normed = reference::rms_norm(head, h < s.H ? q_weight : k_weight, kEpsilon);
        std::copy(normed.begin(), normed.end(), y.begin() + at);
      }
    }
    return y;
  };
  const Tensor x = tensor<T>({s.T, s.B, width}, qkv);
  const Tensor q_weight = tensor<T>({s.D}, wq);
  const Tensor k_weight = tensor<T>({s.D}, wk);
  const Tensor y = unset<T>(x.shape());
  const Tensor rstd = unset<T>({s.H + s.K, s.T * s.B});
  rms_norm_heads(device(), x, q_weight, k_weight, kEpsilon, s.H, s.K, y, rstd);
  const Array expected = norm(qkv, wq, wk);
  Array bound(expected.size());
  for (std::size_t i = 0; i < bound.size(); ++i) bound[i] = (depth(s.D) + 4) * kEps<T> * std::abs(expected[i]);
  expect_within(values(y), expected, bound, "heads' norms");
  if constexpr (std::is_same_v<T, double>) {
    const Tensor dx = unset<T>(x.shape());
    rms_norm_heads_input_gradient(device(), tensor<T>(x.shape(), dy), x, q_weight, k_weight, rstd, s.H, s.K, dx);
    const Tensor dwq = device().zeros({s.D}, dtype_of<T>);
    const Tensor dwk = device().zeros({s.D}, dtype_of<T>);
    rms_norm_heads_weight_gradient(device(), tensor<T>(x.shape(), dy), x, rstd, s.H, s.K, dwq, dwk);
    expect_gradient(
        values(dx), qkv, [&](const Array& v) { return dot(dy, norm(v, wq, wk)); }, "heads' inputs");
    expect_gradient(
        values(dwq), wq, [&](const Array& v) { return dot(dy, norm(qkv, v, wk)); }, "q's weight");
    expect_gradient(
        values(dwk), wk, [&](const Array& v) { return dot(dy, norm(qkv, wq, v)); }, "k's weight");
  }
}

TEST(Heads, QueriesAndKeysAreNormalised) {
  for (const Heads& s : {Heads{1, 1, 1, 1, 3}, Heads{5, 3, 4, 2, 6}, Heads{7, 2, 3, 1, 40}}) {
    check_head_norm<float>(s);
    check_head_norm<double>(s);
  }
  EXPECT_THROW(rms_norm_heads(device(), device().zeros({3, 1, 13}, DType::float32), {}, {}, 1e-5, 1, 1, {}, {}),
               std::logic_error);
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
