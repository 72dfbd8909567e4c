// Embeddings, cross-entropy and optimizers.
#include <numeric>

#include "kernels/common.h"

namespace cuboid::kernels {
namespace {

// ---------------------------------------------------------------- embeddings

TEST(Embedding, RowsOfAPartOfTheTable) {
  const std::int64_t t = 5, b = 2, n = 300, vocabulary = 7, first = 3;
  const Array table = normals<float>(1, vocabulary * n);
  const std::vector<std::int32_t> ids = {3, 9, 2, 10, 0, 5, 5, 4, 11, 3};  // held: 3 to 9
  const Tensor tokens = int_tensor({t, b}, ids);
  const Tensor y = unset<float>({t, b, n});
  embedding(device(), tokens, tensor<float>({vocabulary, n}, table), first, y);
  for (std::size_t r = 0; r < ids.size(); ++r) {
    const std::int64_t row = ids[r] - first;
    for (std::int64_t i = 0; i < n; ++i) {
      const double expected = row >= 0 && row < vocabulary ? table[size(row * n + i)] : 0;
      ASSERT_EQ(y.data<float>()[size(static_cast<std::int64_t>(r) * n + i)], expected) << "token " << ids[r];
    }
  }

  const Array dy = normals<float>(2, t * b * n);
  const Array before = normals<float>(3, vocabulary * n);
  std::vector<float> expected(before.begin(), before.end());
  for (std::size_t r = 0; r < ids.size(); ++r) {  // ascending: exact equality
    const std::int64_t row = ids[r] - first;
    if (row < 0 || row >= vocabulary) continue;
    for (std::int64_t i = 0; i < n; ++i) {
      expected[size(row * n + i)] += static_cast<float>(dy[r * size(n) + size(i)]);
    }
  }
  expect_same_bits_on_threads(
      [&] {
        const Tensor dtable = tensor<float>({vocabulary, n}, before);
        embedding_gradient(device(), tokens, tensor<float>({t, b, n}, dy), first, dtable);
        EXPECT_EQ(values(dtable), Array(expected.begin(), expected.end()));
        return dtable;
      },
      "dtable");
}

TEST(Embedding, Positions) {
  const std::int64_t t = 4, b = 3, n = 37, positions = 9;
  const SequencePart rows{.first = 2, .gap_at = 3, .gap = 3};  // 2, 3, 4 and 8
  const Array x = normals<double>(4, t * b * n);
  const Array table = normals<double>(5, positions * n);
  const Tensor y = tensor<double>({t, b, n}, x);
  const Tensor pt = tensor<double>({positions, n}, table);
  add_positions(device(), y, pt, rows);
  const Tensor dtable = tensor<double>({positions, n}, table);
  add_positions_gradient(device(), tensor<double>({t, b, n}, x), rows, dtable);
  Array expected = table;
  for (std::int64_t i = 0; i < t * b * n; ++i) {
    const std::size_t row = size(rows.position(i / (b * n)) * n + i % n);
    ASSERT_EQ(y.data<double>()[i], x[size(i)] + table[row]);
    expected[row] += x[size(i)];
  }
  EXPECT_EQ(values(dtable), expected);
  EXPECT_THROW(add_positions(device(), y, pt, {.first = 6}), std::logic_error);
  EXPECT_THROW(add_positions_gradient(device(), y, {.first = -1}, pt), std::logic_error);
}

// ---------------------------------------------------------------- cross-entropy

struct LossCase {
  std::int64_t t, b, vocabulary;
};
constexpr LossCase kLossCases[] = {{1, 1, 1}, {3, 2, 5}, {5, 3, 33}, {2, 1, 1030}};

std::vector<std::int32_t> targets_of(const LossCase& s) {
  std::vector<std::int32_t> targets;
  for (std::int64_t r = 0; r < s.t * s.b; ++r) {
    targets.push_back(r % 4 == 2 ? kIgnore : static_cast<std::int32_t>((r * 7 + 3) % s.vocabulary));
  }
  return targets;
}

struct LossResult {
  Array losses;
  Array gradient;  // (N,V)
};
// Loss and gradient with the vocabulary cut into parts whose statistics are joined as ranks would.
template <typename T>
LossResult run_loss(const LossCase& s, const Array& logits, const std::vector<std::int32_t>& targets, double factor,
                    std::int64_t parts) {
  const std::int64_t rows = s.t * s.b;
  const Tensor ids = int_tensor({s.t, s.b}, targets);
  std::vector<Tensor> logit, max, sum, at_target;
  std::vector<std::int64_t> first;
  for (std::int64_t p = 0; p < parts; ++p) {
    first.push_back(s.vocabulary * p / parts);
    const std::int64_t n = s.vocabulary * (p + 1) / parts - first.back();
    Array part;
    for (std::int64_t i = 0; i < rows * n; ++i)
      part.push_back(logits[size(i / n * s.vocabulary + first.back() + i % n)]);
    logit.push_back(tensor<T>({rows, n}, part));
    for (auto* list : {&max, &sum, &at_target}) list->push_back(unset<T>({rows}));
    cross_entropy_statistics(device(), logit.back(), ids, first.back(), max.back(), sum.back(), at_target.back());
  }
  const Tensor row_max = device().clone(max[0]);
  for (const Tensor& m : max) {
    for (std::int64_t r = 0; r < rows; ++r) row_max.data<T>()[r] = std::max(row_max.data<T>()[r], m.data<T>()[r]);
  }
  const Tensor row_sum = device().zeros({rows}, dtype_of<T>);
  const Tensor target_logit = device().zeros({rows}, dtype_of<T>);
  for (std::size_t p = 0; p < size(parts); ++p) {
    rescale_sum(device(), max[p], row_max, sum[p]);
    add(device(), row_sum, sum[p], row_sum);
    add(device(), target_logit, at_target[p], target_logit);
  }
  const Tensor losses = unset<double>({s.b});
  cross_entropy_loss(device(), row_max, row_sum, target_logit, ids, losses);
  LossResult made{values(losses), Array(logits.size())};
  for (std::size_t p = 0; p < size(parts); ++p) {
    cross_entropy_gradient(device(), logit[p], ids, first[p], row_max, row_sum, factor, logit[p]);
    const Array part = values(logit[p]);
    const std::int64_t n = logit[p].dim(1);
    for (std::int64_t i = 0; i < rows * n; ++i) {
      made.gradient[size(i / n * s.vocabulary + first[p] + i % n)] = part[size(i)];
    }
  }
  return made;
}

TEST(CrossEntropy, MatchesTheReferenceWholeAndSplit) {
  const double factor = 0.37;
  for (const LossCase& s : kLossCases) {
    const Array logits = normals<float>(6, s.t * s.b * s.vocabulary, 4);
    const auto targets = targets_of(s);
    const Array expected = reference::cross_entropy(logits, targets, s.b);
    for (const std::int64_t parts : {1, 3}) {
      if (parts > s.vocabulary) continue;
      const LossResult exact = run_loss<double>(s, logits, targets, factor, parts);
      const LossResult single = run_loss<float>(s, logits, targets, factor, parts);
      // A row's loss is off by the relative error of its sum (exponents of |logit - max| below 40: their rounding, 2
      // ulp, the additions), the gradient by the same relative to p, plus the subtraction at the target.
      const double error = depth(s.vocabulary) + 40 + 8;
      expect_within(exact.losses, expected, Array(size(s.b), kEps<double> * 2 * error * static_cast<double>(s.t)),
                    "double loss");
      expect_within(single.losses, expected, Array(size(s.b), kEps<float> * error * static_cast<double>(s.t)), "loss");
      Array bound;
      for (const double g : exact.gradient) bound.push_back(kEps<float> * (2 * error * std::abs(g) + 4 * factor));
      expect_within(single.gradient, exact.gradient, bound, "gradient");
      if (s.vocabulary > 1) {
        expect_gradient(
            exact.gradient, logits,
            [&](const Array& x) {
              const Array losses = reference::cross_entropy(x, targets, s.b);
              return factor * std::accumulate(losses.begin(), losses.end(), 0.0);
            },
            "gradient");
      }
      for (std::size_t r = 0; r < targets.size(); ++r) {
        if (targets[r] != kIgnore) continue;
        for (std::int64_t i = 0; i < s.vocabulary; ++i) ASSERT_EQ(single.gradient[r * size(s.vocabulary) + size(i)], 0);
      }
    }
  }
}

TEST(CrossEntropy, EveryTargetIgnoredIsZeroAndNeverNan) {
  const LossCase s{2, 3, 37};
  const std::vector<std::int32_t> targets(6, kIgnore);
  // A row of equal logits, and one that would overflow exp without the maximum.
  Array logits(6 * 37, 0);
  std::fill_n(logits.begin() + 37, 37, 5e4);
  const LossResult r = run_loss<float>(s, logits, targets, 1.0 / 6, 1);
  EXPECT_EQ(r.losses, Array(3, 0));
  EXPECT_EQ(r.gradient, Array(logits.size(), 0));
}

TEST(CrossEntropy, HugeLogitsGiveFiniteLosses) {
  const LossCase s{1, 1, 40};
  Array logits(40, -1e4);
  logits[7] = 1e4;
  const LossResult hit = run_loss<float>(s, logits, {7}, 1, 1);
  EXPECT_NEAR(hit.losses[0], 0, 1e-6);
  EXPECT_EQ(hit.gradient[7], 0);
  const LossResult miss = run_loss<float>(s, logits, {8}, 1, 1);
  EXPECT_FLOAT_EQ(static_cast<float>(miss.losses[0]), 2e4F);
  EXPECT_FLOAT_EQ(static_cast<float>(miss.gradient[8]), -1);
}

TEST(CrossEntropy, TheMaximumIsFoundAtEveryColumn) {
  const std::int64_t n = 71;  // whole groups of OneLane's partial results and a rest
  Array logits(size(n * n), -2);
  for (std::int64_t r = 0; r < n; ++r) logits[size(r * n + r)] = -1;
  const Tensor max = unset<float>({n});
  const Tensor ids = int_tensor({n}, std::vector<std::int32_t>(size(n), 0));
  cross_entropy_statistics(device(), tensor<float>({n, n}, logits), ids, 0, max, unset<float>({n}), unset<float>({n}));
  EXPECT_EQ(values(max), Array(size(n), -1));
}

TEST(CrossEntropy, ANanLogitIsNotHidden) {
  const LossCase s{1, 1, 70};
  Array logits(70, 0);
  logits[33] = std::nan("");
  EXPECT_TRUE(std::isnan(run_loss<float>(s, logits, {3}, 1, 1).losses[0]));
}

TEST(CrossEntropy, BitsDependOnNeitherThreadsNorAddress) {
  const Array logits = normals<float>(7, 9 * 1501, 3);
  const Tensor ids = int_tensor({9}, {1, 5, 1500, kIgnore, 0, 7, 99, 3, 1400});
  const auto run = [&](bool moved) {
    const Tensor x = moved ? misaligned(tensor<float>({9, 1501}, logits)) : tensor<float>({9, 1501}, logits);
    const Tensor max = unset<float>({9});
    const Tensor sum = unset<float>({9});
    cross_entropy_statistics(device(), x, ids, 0, max, sum, unset<float>({9}));
    cross_entropy_gradient(device(), x, ids, 0, max, sum, 0.1, x);
    return x;
  };
  expect_same_bits_on_threads([&] { return run(false); }, "gradient");
  EXPECT_TRUE(same_bits(run(false), run(true)));
}

// ---------------------------------------------------------------- optimizer

Tensor no_squares() {
  return device().zeros({ExactSum::kWords}, DType::int64);
}

double value_of(const Tensor& words) {
  std::array<std::int64_t, ExactSum::kWords> numbers{};
  std::copy_n(words.data<std::int64_t>(), numbers.size(), numbers.begin());
  return ExactSum::from_words(numbers).value();
}

double squares_of(const Tensor& t) {
  const Tensor words = no_squares();
  add_squares(device(), t, words);
  return value_of(words);
}

TEST(AddSquares, DoNotDependOnHowTheTensorIsCut) {
  for (const std::int64_t n : {0, 1, 33, 64, 4097, 200001}) {
    const Array x = normals<float>(8, n);
    const double expected = dot(x, x);
    const Tensor t = tensor<float>({n}, x);
    const double whole = squares_of(t);
    // 64 additions in double a line, exact from there on; the reference adds n numbers.
    EXPECT_NEAR(whole, expected, static_cast<double>(n + 64) * kEps<double> * expected);
    const Threads threads(kSeveralThreads);
    EXPECT_EQ(squares_of(t), whole);
    for (const std::int64_t part : {64, 640, 6400}) {
      const Tensor sum = no_squares();
      std::vector<std::int64_t> starts;
      for (std::int64_t first = 0; first < n; first += part) starts.insert(starts.begin(), first);
      for (const std::int64_t first : starts) {  // from the last part to the first
        add_squares(device(), t.narrow(first, std::min(part, n - first)), sum);
      }
      EXPECT_EQ(value_of(sum), whole) << n << " elements in parts of " << part;
    }
  }
}

TEST(AddSquares, ReportWhatIsNotFinite) {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    Array x = normals<float>(8, 77);
    x[50] = bad;
    EXPECT_TRUE(std::isnan(squares_of(tensor<float>({77}, x))));
  }
}

template <typename T>
void check_adamw(std::int64_t n) {
  const AdamW options{.lr = 3e-2,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .eps = 1e-8,
                      .weight_decay = 0.1,
                      .bias_correction1 = 1 - std::pow(0.9, 3),
                      .bias_correction2 = 1 - std::pow(0.95, 3),
                      .gradient_scale = 0.7};
  const Array gradient = normals<T>(9, n);
  const Array weight = normals<T>(10, n);
  const Array m = normals<T>(11, n, 0.3);
  Array v = normals<T>(12, n);
  for (double& x : v) x = static_cast<T>(x * x);
  const Tensor w_t = tensor<T>({n}, weight);
  const Tensor m_t = tensor<T>({n}, m);
  const Tensor v_t = tensor<T>({n}, v);
  adamw(device(), options, tensor<T>({n}, gradient), w_t, m_t, v_t);
  Array w_new, m_new, v_new, w_bound, m_bound, v_bound;
  for (std::size_t i = 0; i < size(n); ++i) {
    const auto e = reference::adamw(options, gradient[i], {weight[i], m[i], v[i]});
    w_new.push_back(e.weight);
    m_new.push_back(e.m);
    v_new.push_back(e.v);
    const double eps = kEps<T>;
    m_bound.push_back(4 * eps * (std::abs(m[i]) + std::abs(gradient[i])));
    v_bound.push_back(6 * eps * (v[i] + gradient[i] * gradient[i]));
    // m may cancel; its error and those of a root and a quotient reach the weight times lr/(sqrt(v̂) + eps).
    const double step = options.lr / (std::sqrt(e.v / options.bias_correction2) + options.eps);
    w_bound.push_back(eps * std::abs(weight[i]) * 2 +
                      8 * step * (m_bound.back() + eps * std::abs(e.m)) / options.bias_correction1);
  }
  expect_within(values(w_t), w_new, w_bound, "weight");
  expect_within(values(m_t), m_new, m_bound, "m");
  expect_within(values(v_t), v_new, v_bound, "v");
}

TEST(AdamW, MatchesTheReference) {
  for (const std::int64_t n : {1, 35, 4099}) {
    check_adamw<float>(n);
    check_adamw<double>(n);
  }
}

TEST(Optimizers, RoundTheNewWeightsInTheSamePass) {
  const std::int64_t n = 4133;
  const Array gradient = normals<float>(15, n);
  const Array weight = normals<float>(16, n);
  const auto as = [&](DType dtype, const Tensor& w) {
    const Tensor all = device().empty({n}, dtype);
    convert(device(), w, all);
    return all;
  };
  const auto widened = [&](const Tensor& w) { return values(as(DType::float32, w)); };
  const Tensor alone = tensor<float>({n}, weight);
  const Tensor w = tensor<float>({n}, weight);
  const Tensor made = device().zeros({n}, DType::bfloat16);
  sgd(device(), 0.1, 0.02, 0.5, tensor<float>({n}, gradient), alone);
  sgd(device(), 0.1, 0.02, 0.5, tensor<float>({n}, gradient), w, made);
  EXPECT_EQ(values(w), values(alone));
  EXPECT_EQ(widened(made), widened(as(DType::bfloat16, w)));
  const AdamW options{.lr = 3e-2,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .eps = 1e-8,
                      .weight_decay = 0.1,
                      .bias_correction1 = 0.1,
                      .bias_correction2 = 0.05,
                      .gradient_scale = 0.7};
  const auto step = [&](const Tensor& weights, const Tensor& into) {
    adamw(device(), options, tensor<float>({n}, gradient), weights, device().zeros({n}, DType::float32),
          device().zeros({n}, DType::float32), into);
  };
  step(alone, {});
  step(w, made);
  EXPECT_EQ(values(w), values(alone));
  EXPECT_EQ(widened(made), widened(as(DType::bfloat16, w)));
}

TEST(AdamW, ZeroGradientAndStateOnlyDecays) {
  const Tensor w = tensor<float>({2}, {2, -4});
  const Tensor zero = device().zeros({2}, DType::float32);
  const AdamW options{.lr = 0.5,
                      .beta1 = 0.9,
                      .beta2 = 0.99,
                      .eps = 1e-8,
                      .weight_decay = 0.25,
                      .bias_correction1 = 0.1,
                      .bias_correction2 = 0.01,
                      .gradient_scale = 1};
  adamw(device(), options, zero, w, device().zeros({2}, DType::float32), device().zeros({2}, DType::float32));
  EXPECT_EQ(values(w), (Array{1.75, -3.5}));
}

TEST(Sgd, MatchesTheFormula) {
  const std::int64_t n = 4101;
  const Array gradient = normals<double>(13, n);
  const Array weight = normals<double>(14, n);
  const Tensor w = tensor<double>({n}, weight);
  sgd(device(), 0.1, 0.02, 0.5, tensor<double>({n}, gradient), w);
  for (std::size_t i = 0; i < size(n); ++i) {
    ASSERT_NEAR(w.data<double>()[i], weight[i] - 0.1 * (0.5 * gradient[i] + 0.02 * weight[i]),
                4 * kEps<double> * (std::abs(weight[i]) + std::abs(gradient[i])));
  }
}

}  // namespace
}  // namespace cuboid::kernels
