// Tensors from and to double arrays, comparison within per-element tolerances, and directional derivatives.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <omp.h>

#include "cuboid/core/random.h"
#include "cuboid/kernels/kernels.h"

#include "kernels/body/storage.h"
#include "kernels/reference/reference.h"

namespace cuboid::kernels {

using Array = std::vector<double>;

inline const Device& device() {
  static const Device instance;
  return instance;
}

template <typename T>
inline constexpr double kEps = std::numeric_limits<T>::epsilon();

inline std::size_t size(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

/// Standard normal numbers times `scale`, exact in T: kernel and oracle start from the same values.
template <typename T>
Array normals(std::uint64_t seed, std::int64_t n, double scale = 1) {
  Array made(size(n));
  for (std::int64_t i = 0; i < n; ++i) {
    made[size(i)] = static_cast<T>(scale * normal_of(mix_key(seed, 0), static_cast<std::uint64_t>(i)));
  }
  return made;
}

template <typename T>
Tensor tensor(const Shape& shape, const Array& from) {
  Tensor made = device().empty(shape, dtype_of<T>);
  EXPECT_EQ(size(made.elements()), from.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    made.data<T>()[i] = static_cast<T>(static_cast<body::Real<T>>(from[i]));
  }
  return made;
}

/// NaN everywhere: an element that a kernel forgets to write is seen.
template <typename T>
Tensor unset(const Shape& shape) {
  return tensor<T>(shape, Array(size(shape.elements()), std::nan("")));
}

inline Tensor int_tensor(const Shape& shape, const std::vector<std::int32_t>& from) {
  Tensor made = device().empty(shape, DType::int32);
  std::copy(from.begin(), from.end(), made.data<std::int32_t>());
  return made;
}

inline Array values(const Tensor& t) {
  if (t.dtype() == DType::float32) return {t.data<float>(), t.data<float>() + t.elements()};
  return {t.data<double>(), t.data<double>() + t.elements()};
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

/// A copy whose address is 4 or 8 bytes off the alignment of buffers.
inline Tensor misaligned(const Tensor& t) {
  const Tensor wide = device().empty(Shape{t.elements() + 1}, t.dtype());
  Tensor made = wide.narrow(1, t.elements()).reshape(t.shape());
  device().copy(t, made);
  return made;
}

/// |actual - expected| <= tolerance for every element; a NaN fails.
inline void expect_within(const Array& actual, const Array& expected, const Array& tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  ASSERT_EQ(actual.size(), tolerance.size()) << what;
  int bad = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::abs(actual[i] - expected[i]) <= tolerance[i]) continue;
    if (++bad == 1) {
      ADD_FAILURE() << what << ": element " << i << " of " << actual.size() << " is " << actual[i] << ", not "
                    << expected[i] << " within " << tolerance[i];
    }
  }
  EXPECT_EQ(bad, 0) << what << ": elements that differ, of " << actual.size();
}

/// Additions that one term goes through in OneLane's sums of n terms, and a few more for the terms themselves.
inline double depth(std::int64_t n) {
  return static_cast<double>(n) / 32 + 8;
}

inline double dot(const Array& a, const Array& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Compares a gradient with the derivative of loss(x) along random directions (central differences of fourth order).
/// Truncation is h⁴/30 of the fifth derivative and rounding 1e-16/h of the loss: both far below 1e-9 of the gradient.
template <typename Loss>
void expect_gradient(const Array& gradient, const Array& x, Loss loss, const std::string& what) {
  ASSERT_EQ(gradient.size(), x.size()) << what;
  const double norm = std::sqrt(dot(gradient, gradient));
  ASSERT_GT(norm, 0) << what;
  for (std::uint64_t trial = 0; trial < 4; ++trial) {
    const Array direction = normals<double>(977 + trial, static_cast<std::int64_t>(x.size()));
    const auto along = [&](double step) {
      Array moved = x;
      for (std::size_t i = 0; i < x.size(); ++i) moved[i] += step * direction[i];
      return loss(moved);
    };
    constexpr double kStep = 5e-4;
    const double slope = (8 * (along(kStep) - along(-kStep)) - (along(2 * kStep) - along(-2 * kStep))) / (12 * kStep);
    EXPECT_NEAR(dot(gradient, direction), slope, 1e-9 * norm) << what << ", direction " << trial;
  }
}

/// Threads of a test of several threads. GCC's OpenMP library is not instrumented: to ThreadSanitizer its barriers
/// would look like races, so there it is one.
#if defined(__SANITIZE_THREAD__)
inline constexpr int kSeveralThreads = 1;
#else
inline constexpr int kSeveralThreads = 3;
#endif

/// Sets OpenMP's thread count for a scope.
class Threads {
 public:
  explicit Threads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
  ~Threads() { omp_set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

/// Runs `make` (which returns a tensor) with one and with several threads, twice with each: the same bits.
template <typename Make>
void expect_same_bits_on_threads(Make make, const std::string& what) {
  std::vector<Tensor> made;
  for (const int count : {1, 1, kSeveralThreads, kSeveralThreads}) {
    const Threads threads(count);
    made.push_back(make());
  }
  for (std::size_t i = 1; i < made.size(); ++i) EXPECT_TRUE(same_bits(made[0], made[i])) << what << ", run " << i;
}

}  // namespace cuboid::kernels
