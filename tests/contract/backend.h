// The communicators that the contract suite runs on. A new backend is a row in backends.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cuboid/comm/ranks.h"

namespace cuboid::contract {

using Body = std::function<void(RankContext&)>;

struct Backend {
  std::string name;
  std::vector<int> sizes;    ///< world sizes it can give
  bool one_process = false;  ///< members share an address space: messages are handed over, failures reach everybody
  std::function<void(int ranks, const Body& body, const RankOptions& options)> run;
  /// Sum and maximum over the processes that ran the body.
  std::function<std::int64_t(std::int64_t)> total = [](std::int64_t x) { return x; };
  std::function<std::int64_t(std::int64_t)> most = [](std::int64_t x) { return x; };

  int largest() const { return sizes.back(); }
};

const std::vector<Backend>& backends();
inline std::vector<Backend> backends_with(int ranks) {
  std::vector<Backend> able;
  for (const Backend& backend : backends()) {
    if (backend.largest() >= ranks) able.push_back(backend);
  }
  return able;
}

inline void PrintTo(const Backend& backend, std::ostream* out) {
  *out << backend.name;
}

/// A suite whose tests run on every backend.
class OnBackend : public testing::TestWithParam<Backend> {
 protected:
  const Backend& backend() const { return GetParam(); }
  /// Runs the body on so many ranks. A hang in a test ends by this deadline, far above what any test needs.
  void run(int ranks, const Body& body) const { backend().run(ranks, body, {.deadline = 60}); }
  /// Runs the body on every world size of the backend, from `least` members up.
  void run_on_all_sizes(const Body& body, int least = 1) const {
    for (int ranks : backend().sizes) {
      if (ranks >= least) run(ranks, body);
    }
  }
};

inline std::string name_of_backend(const testing::TestParamInfo<Backend>& info) {
  return info.param.name;
}

/// Instantiates a suite for every backend, or for those that can give at least so many ranks.
#define CUBOID_ON_BACKENDS(suite, least)                                                           \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(suite);                                            \
  INSTANTIATE_TEST_SUITE_P(On, suite, testing::ValuesIn(::cuboid::contract::backends_with(least)), \
                           ::cuboid::contract::name_of_backend)

/// Element i of rank r's input: small integers, so that sums over 8 ranks are exact in every type (bfloat16: below
/// 256).
constexpr int kPeriod = 13;
constexpr int value(int rank, std::int64_t i) {
  return (static_cast<int>(i % kPeriod) * (2 * rank + 3) + 5 * rank) % kPeriod - 6;
}

template <typename T>
T to(int x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return BFloat16(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

/// Calls f.template operator()<T>() for every element type.
template <typename F>
void for_each_type(F f) {
  f.template operator()<float>();
  f.template operator()<double>();
  f.template operator()<BFloat16>();
  f.template operator()<std::int32_t>();
  f.template operator()<std::int64_t>();
}

/// A tensor's elements, wherever its memory is.
template <typename T>
std::vector<T> elements(const Tensor& tensor) {
  CUBOID_CHECK(dtype_of<T> == tensor.dtype(), "another element type");
  std::vector<T> read(static_cast<std::size_t>(tensor.elements()));
  if (!read.empty()) tensor.buffer()->memory().copy_to_host(read.data(), tensor.raw(), tensor.bytes());
  return read;
}
template <typename T>
void set_elements(const Tensor& tensor, const std::vector<T>& values) {
  CUBOID_CHECK(dtype_of<T> == tensor.dtype(), "another element type");
  if (!values.empty()) tensor.buffer()->memory().copy_from_host(tensor.raw(), values.data(), tensor.bytes());
}

/// Sets every element to of(i).
template <typename T, typename F>
void fill(const Tensor& tensor, F of) {
  std::vector<T> values(static_cast<std::size_t>(tensor.elements()));
  std::int64_t i = 0;
  for (T& x : values) x = to<T>(of(i++));
  set_elements(tensor, values);
}

/// Expects every element to be of(i); says what differs first and how many.
template <typename T, typename F>
void expect_elements(const Tensor& tensor, F of, const std::string& what) {
  std::int64_t wrong = 0;
  std::string first;
  std::int64_t i = 0;
  for (const T& x : elements<T>(tensor)) {
    const int expected = of(i);
    if (!(x == to<T>(expected)) && wrong++ == 0) {
      first = "element " + std::to_string(i) + " is " + std::to_string(static_cast<double>(static_cast<float>(x))) +
              ", expected " + std::to_string(expected);
    }
    ++i;
  }
  EXPECT_EQ(wrong, 0) << what << ", " << name_of(tensor.dtype()) << " " << to_string(tensor.shape()) << ": " << first;
}

/// The reduction over ranks 0…size-1 of value(r, i).
class Reduced {
 public:
  Reduced(int size, ReduceOp op) : table_(kPeriod) {
    for (int i = 0; i < kPeriod; ++i) {
      table_[i] = value(0, i);
      for (int r = 1; r < size; ++r) {
        table_[i] = op == ReduceOp::sum ? table_[i] + value(r, i) : std::max(table_[i], value(r, i));
      }
    }
  }
  int operator()(std::int64_t i) const { return table_[static_cast<std::size_t>(i % kPeriod)]; }

 private:
  std::vector<int> table_;
};

}  // namespace cuboid::contract
