// Routing of tokens to experts, and the moves of their rows.
#include <numeric>

#include "kernels/common.h"

namespace cuboid::kernels {
namespace {

struct Routed {
  Tensor probabilities, experts, weights, log_sum;
};

template <typename T>
Routed routed(const Tensor& logits, std::int64_t k) {
  const std::int64_t rows = logits.dim(0);
  const Routed made{unset<T>(logits.shape()), device().empty({rows, k}, DType::int32), unset<T>({rows, k}),
                    unset<T>({rows})};
  route(device(), logits, made.probabilities, made.experts, made.weights, made.log_sum);
  return made;
}

// Exact in bfloat16.
Array half_normals(std::uint64_t seed, std::int64_t n) {
  Array made = normals<float>(seed, n);
  for (double& x : made) x = static_cast<float>(BFloat16(static_cast<float>(x)));
  return made;
}

std::vector<std::int32_t> ints(const Tensor& t) {
  return {t.data<std::int32_t>(), t.data<std::int32_t>() + t.elements()};
}

TEST(Route, IsSoftmaxThenTheLargestRenormalised) {
  const std::int64_t rows = 5, n = 37, k = 3;
  const Array x = normals<double>(1, rows * n, 4);
  const Routed made = routed<double>(tensor<double>({rows, n}, x), k);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto row = x.begin() + r * n;
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += std::exp(row[i]);
    EXPECT_NEAR(made.log_sum.data<double>()[r], std::log(sum), 1e-14 * depth(n));
    for (std::int64_t i = 0; i < n; ++i) {
      EXPECT_NEAR(made.probabilities.data<double>()[r * n + i], std::exp(row[i]) / sum, 1e-14);
    }
    std::vector<std::int32_t> order(size(n));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
    double chosen = 0;
    for (std::int64_t j = 0; j < k; ++j) chosen += std::exp(row[order[size(j)]]);
    for (std::int64_t j = 0; j < k; ++j) {
      EXPECT_EQ(made.experts.data<std::int32_t>()[r * k + j], order[size(j)]);
      EXPECT_NEAR(made.weights.data<double>()[r * k + j], std::exp(row[order[size(j)]]) / chosen, 1e-14);
    }
  }
}

TEST(Route, TakesTheLowerOfEqualsAndNeverOneTwice) {
  const Array x = {2, 7, 2, 7,  2,  // equals
                   0, 0, 0, 0,  0,  // all of them
                   5, 9, 1, -3, 2};
  const Routed made = routed<float>(tensor<float>({3, 5}, x), 3);
  EXPECT_EQ(ints(made.experts), (std::vector<std::int32_t>{1, 3, 0, 0, 1, 2, 1, 0, 4}));
  for (int j = 3; j < 6; ++j) EXPECT_FLOAT_EQ(made.weights.data<float>()[j], 1.0F / 3);
  // All k experts: weights are the probabilities.
  const Routed all = routed<float>(tensor<float>({3, 5}, x), 5);
  EXPECT_EQ(ints(all.experts), (std::vector<std::int32_t>{1, 3, 0, 2, 4, 0, 1, 2, 3, 4, 1, 0, 4, 2, 3}));
  EXPECT_FLOAT_EQ(all.weights.data<float>()[10], all.probabilities.data<float>()[11]);
}

TEST(Route, StandsLogitsThatOverflowAndThatAreNoNumbers) {
  const Routed large = routed<float>(tensor<float>({1, 3}, {2e30, -2e30, 1e30}), 2);
  EXPECT_EQ(ints(large.experts), (std::vector<std::int32_t>{0, 2}));
  EXPECT_EQ(values(large.weights), (Array{1, 0}));
  const Routed none = routed<float>(tensor<float>({1, 3}, Array(3, std::nan(""))), 2);
  EXPECT_EQ(ints(none.experts), (std::vector<std::int32_t>{0, 1})) << "valid all the same: the loss will tell";
  EXPECT_THROW(routed<float>(tensor<float>({1, 3}, {1, 2, 3}), 4), std::logic_error);
}

TEST(Route, GradientIsTheDerivative) {
  const std::int64_t rows = 3, n = 7, k = 2;
  const Array x = normals<double>(2, rows * n, 2);
  const Array dweights = normals<double>(3, rows * k);
  const Array slope = normals<double>(4, n);
  constexpr double kZ = 0.2;
  const auto loss = [&](const Array& at) {
    const Routed made = routed<double>(tensor<double>({rows, n}, at), k);
    double sum = dot(values(made.weights), dweights);
    const Array p = values(made.probabilities);
    for (std::size_t i = 0; i < p.size(); ++i) sum += p[i] * slope[i % size(n)];
    for (const double l : values(made.log_sum)) sum += kZ * l * l;
    return sum;
  };
  const Routed made = routed<double>(tensor<double>({rows, n}, x), k);
  const Tensor dlogits = unset<double>({rows, n});
  route_gradient(device(), tensor<double>({rows, k}, dweights), made.probabilities, made.experts, made.weights,
                 made.log_sum, tensor<double>({n}, slope), kZ, dlogits);
  expect_gradient(values(dlogits), x, loss, "dlogits");
}

TEST(SortByExpert, IsStableAndCountsEveryCopy) {
  const Tensor experts = int_tensor({4, 2}, {3, 0, 3, 1, 0, 3, 1, 0});
  const Tensor slot = int_tensor({4, 2}, std::vector<std::int32_t>(8, -1));
  const Tensor source = int_tensor({8}, std::vector<std::int32_t>(8, -1));
  EXPECT_EQ(sort_by_expert(device(), experts, 5, slot, source), (std::vector<std::int64_t>{3, 2, 0, 3, 0}));
  EXPECT_EQ(ints(slot), (std::vector<std::int32_t>{5, 0, 6, 3, 1, 7, 4, 2}));
  EXPECT_EQ(ints(source), (std::vector<std::int32_t>{0, 2, 3, 1, 3, 0, 1, 2}));
  EXPECT_THROW(sort_by_expert(device(), experts, 3, slot, source), std::logic_error);
}

TEST(Rows, AreGatheredAndCombined) {
  const std::int64_t rows = 3, k = 2, n = 70;
  const Array x = normals<double>(5, rows * k * n);
  const Array w = normals<double>(6, rows * k);
  const Array dy = normals<double>(7, rows * n);
  const std::vector<std::int32_t> slots = {4, 0, 1, 5, 3, 2};
  const Tensor slot = int_tensor({rows, k}, slots);
  const Tensor copies = tensor<double>({rows * k, n}, x);
  const Tensor gathered = unset<double>({rows * k, n});
  gather_rows(device(), copies, int_tensor({rows * k}, slots), gathered);
  const Tensor y = unset<double>({rows, n});
  combine_rows(device(), copies, slot, tensor<double>({rows, k}, w), y);
  const Tensor sum = unset<double>({rows, n});
  combine_rows(device(), copies, slot, {}, sum);
  const Tensor drows = unset<double>({rows * k, n});
  const Tensor dweights = unset<double>({rows, k});
  combine_rows_gradient(device(), tensor<double>({rows, n}, dy), copies, slot, tensor<double>({rows, k}, w), drows,
                        dweights);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < n; ++i) {
      double weighted = 0;
      double plain = 0;
      for (std::int64_t j = 0; j < k; ++j) {
        const double value = x[size(slots[size(r * k + j)] * n + i)];
        EXPECT_EQ(gathered.data<double>()[(r * k + j) * n + i], value);
        weighted += w[size(r * k + j)] * value;
        plain += value;
        EXPECT_EQ(drows.data<double>()[slots[size(r * k + j)] * n + i], w[size(r * k + j)] * dy[size(r * n + i)]);
      }
      EXPECT_NEAR(y.data<double>()[r * n + i], weighted, 1e-15 * 8);
      EXPECT_EQ(sum.data<double>()[r * n + i], plain);
    }
    for (std::int64_t j = 0; j < k; ++j) {
      const auto row = x.begin() + slots[size(r * k + j)] * n;
      const double expected = std::inner_product(row, row + n, dy.begin() + r * n, 0.0);
      EXPECT_NEAR(dweights.data<double>()[r * k + j], expected, 1e-15 * depth(n) * static_cast<double>(n));
    }
  }
}

// Partial sums arrive in float32 where activations are bfloat16.
TEST(Rows, OfBFloat16AreCombinedInFloatAndRoundedOnce) {
  const Array x = half_normals(8, 4 * 9);
  const Array w = normals<float>(9, 2 * 2);
  const Tensor slot = int_tensor({2, 2}, {0, 3, 2, 1});
  const Tensor weights = tensor<float>({2, 2}, w);
  const Tensor exact = unset<float>({2, 9});
  combine_rows(device(), tensor<float>({4, 9}, x), slot, weights, exact);
  const Tensor half = unset<BFloat16>({2, 9});
  combine_rows(device(), tensor<BFloat16>({4, 9}, x), slot, weights, half);
  for (std::int64_t i = 0; i < 18; ++i) {
    EXPECT_EQ(static_cast<float>(half.data<BFloat16>()[i]), static_cast<float>(BFloat16(exact.data<float>()[i])));
  }
  const Tensor dy = tensor<BFloat16>({2, 9}, half_normals(10, 18));
  Tensor drows[2], dweights[2];
  for (const bool wide : {false, true}) {
    drows[wide] = unset<BFloat16>({4, 9});
    dweights[wide] = unset<float>({2, 2});
    combine_rows_gradient(device(), dy, wide ? tensor<float>({4, 9}, x) : tensor<BFloat16>({4, 9}, x), slot, weights,
                          drows[wide], dweights[wide]);
  }
  EXPECT_TRUE(same_bits(drows[0], drows[1]));
  EXPECT_TRUE(same_bits(dweights[0], dweights[1]));
}

}  // namespace
}  // namespace cuboid::kernels
