#include <thread>

#include "kernels/common.h"

namespace cuboid::kernels {
namespace {

struct Case {
  std::int64_t m, n, k;
};
constexpr Case kCases[] = {{1, 1, 1}, {1, 5, 3}, {7, 1, 17}, {33, 31, 65}, {3, 129, 70}, {130, 67, 2}, {64, 48, 257}};

Array magnitudes(Array x) {
  for (double& value : x) value = std::abs(value);
  return x;
}

// Every rounding error of an inner product, in any order of summation, is below (k+1)·ε/2 of the product of magnitudes
// (Higham, Accuracy and Stability of Numerical Algorithms, 3.1); bias and c are two more terms.
template <typename T>
void check_matmul(const Case& s, MatMul options, bool with_bias) {
  const Array a = normals<T>(1, s.m * s.k);
  const Array b = normals<T>(2, s.k * s.n);
  const Array c = normals<T>(3, s.m * s.n);
  const Array bias = normals<T>(4, s.n);
  Array expected = reference::matmul(a, b, s.m, s.n, s.k, options);
  Array tolerance = reference::matmul(magnitudes(a), magnitudes(b), s.m, s.n, s.k, options);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double added = options.accumulate ? c[i] : 0;
    const double offset = with_bias ? bias[i % size(s.n)] : 0;
    expected[i] += added + offset;
    tolerance[i] = static_cast<double>(s.k + 3) * kEps<T> * (tolerance[i] + std::abs(added) + std::abs(offset));
  }
  const Tensor at = tensor<T>(options.transpose_a ? Shape{s.k, s.m} : Shape{s.m, s.k}, a);
  const Tensor bt = tensor<T>(options.transpose_b ? Shape{s.n, s.k} : Shape{s.k, s.n}, b);
  const Tensor ct = options.accumulate ? tensor<T>({s.m, s.n}, c) : unset<T>({s.m, s.n});
  const Tensor bias_t = with_bias ? tensor<T>({s.n}, bias) : Tensor{};
  matmul(device(), at, bt, ct, options, bias_t);
  expect_within(values(ct), expected, tolerance,
                std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k) +
                    (options.transpose_a ? " aT" : "") + (options.transpose_b ? " bT" : "") +
                    (options.accumulate ? " accumulate" : "") + (with_bias ? " bias" : ""));
}

TEST(MatMul, EveryLayoutMatchesTheReference) {
  for (const Case& s : kCases) {
    for (int bits = 0; bits < 16; ++bits) {
      const MatMul options{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
      check_matmul<float>(s, options, (bits & 8) != 0);
      check_matmul<double>(s, options, (bits & 8) != 0);
    }
  }
}

TEST(MatMul, EmptySizes) {
  const Tensor none = device().empty({3, 0}, DType::float32);
  const Tensor c = tensor<float>({3, 2}, {1, 2, 3, 4, 5, 6});
  matmul(device(), none, device().empty({0, 2}, DType::float32), c, {.accumulate = true});
  EXPECT_EQ(values(c), (Array{1, 2, 3, 4, 5, 6}));
  matmul(device(), none, device().empty({2, 0}, DType::float32), c, {.transpose_b = true}, tensor<float>({2}, {7, 8}));
  EXPECT_EQ(values(c), (Array{7, 8, 7, 8, 7, 8}));
  matmul(device(), none, device().empty({0, 2}, DType::float32), c);
  EXPECT_EQ(values(c), Array(6, 0));
  matmul(device(), device().empty({0, 4}, DType::float32), device().zeros({4, 2}, DType::float32),
         device().empty({0, 2}, DType::float32));
}

TEST(MatMul, MoreThanTwoDimsCountAsRows) {
  const Array a = normals<float>(5, 2 * 3 * 4);
  const Array b = normals<float>(6, 5 * 4);
  const Tensor flat = unset<float>({6, 5});
  const Tensor deep = unset<float>({2, 3, 5});
  matmul(device(), tensor<float>({6, 4}, a), tensor<float>({5, 4}, b), flat, {.transpose_b = true});
  matmul(device(), tensor<float>({2, 3, 4}, a), tensor<float>({5, 4}, b), deep, {.transpose_b = true});
  EXPECT_TRUE(same_bits(flat, deep));
}

TEST(MatMul, BitsDependOnNeitherAddressNorCall) {
  for (const Case& s : kCases) {
    for (int bits = 0; bits < 4; ++bits) {
      const MatMul options{(bits & 1) != 0, (bits & 2) != 0, false};
      const Tensor a =
          tensor<float>(options.transpose_a ? Shape{s.k, s.m} : Shape{s.m, s.k}, normals<float>(7, s.m * s.k));
      const Tensor b =
          tensor<float>(options.transpose_b ? Shape{s.n, s.k} : Shape{s.k, s.n}, normals<float>(8, s.k * s.n));
      const Tensor first = unset<float>({s.m, s.n});
      const Tensor second = unset<float>({s.m, s.n});
      const Tensor moved = misaligned(first);
      matmul(device(), a, b, first, options);
      matmul(device(), a, b, second, options);
      matmul(device(), misaligned(a), misaligned(b), moved, options);
      EXPECT_TRUE(same_bits(first, second)) << s.m << "," << s.n << "," << s.k;
      EXPECT_TRUE(same_bits(first, moved)) << s.m << "," << s.n << "," << s.k;
    }
  }
}

// Ranks are threads of one process: they compute at the same time, and each must get what it would get alone.
TEST(MatMul, RanksAsThreadsGetTheSameBits) {
  const auto product = [] {
    const Threads one(1);
    const Tensor c = unset<float>({96, 130});
    matmul(device(), tensor<float>({96, 75}, normals<float>(15, 96 * 75)),
           tensor<float>({130, 75}, normals<float>(16, 130 * 75)), c, {.transpose_b = true});
    return c;
  };
  const Tensor alone = product();
  std::vector<Tensor> made(5);
  std::vector<std::thread> ranks;
  for (Tensor& c : made) {
    ranks.emplace_back([&c, &product] {
      for (int repeat = 0; repeat < 3; ++repeat) c = product();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const Tensor& c : made) EXPECT_TRUE(same_bits(c, alone));
}

TEST(MatMul, RefusesSizesThatDoNotFit) {
  const auto zeros = [](Shape shape, DType dtype = DType::float32) { return device().zeros(std::move(shape), dtype); };
  EXPECT_THROW(matmul(device(), zeros({2, 3}), zeros({4, 5}), zeros({2, 5})), std::logic_error);
  EXPECT_THROW(matmul(device(), zeros({2, 3}), zeros({3, 5}), zeros({5, 2})), std::logic_error);
  EXPECT_THROW(matmul(device(), zeros({2, 3}), zeros({3, 5}, DType::float64), zeros({2, 5})), std::logic_error);
  EXPECT_THROW(matmul(device(), zeros({2, 3}), zeros({3, 5}), zeros({2, 5}), {}, zeros({4})), std::logic_error);
  EXPECT_THROW(matmul(device(), zeros({2, 3}, DType::bfloat16), zeros({3, 5}), zeros({2, 5})), std::logic_error);
}

template <typename T>
void check_column_sum(std::int64_t rows, std::int64_t n) {
  const Array x = normals<T>(9, rows * n);
  Array expected = normals<T>(10, n);
  const Tensor out = tensor<T>({n}, expected);
  Array tolerance = magnitudes(expected);
  for (std::size_t i = 0; i < x.size(); ++i) {
    expected[i % size(n)] += x[i];
    tolerance[i % size(n)] += std::abs(x[i]);
  }
  for (double& t : tolerance) t *= static_cast<double>(rows) * kEps<T>;
  const Tensor xt = tensor<T>({rows, n}, x);
  add_column_sum(device(), xt, out);
  expect_within(values(out), expected, tolerance, std::to_string(rows) + "x" + std::to_string(n));
  expect_same_bits_on_threads(
      [&] {
        Tensor made = device().zeros({n}, dtype_of<T>);
        add_column_sum(device(), xt, made);
        return made;
      },
      "column sum");
}

TEST(ColumnSum, AddsTheSumOverRows) {
  for (const auto& [rows, n] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1}, {7, 3}, {8, 33}, {21, 1030}}) {
    check_column_sum<float>(rows, n);
    check_column_sum<double>(rows, n);
  }
}

}  // namespace
}  // namespace cuboid::kernels
