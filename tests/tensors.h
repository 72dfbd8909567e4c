// Tensors from and to arrays of doubles, for tests above the kernels.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <omp.h>

#include "cuboid/core/random.h"
#include "cuboid/runtime/device.h"

namespace cuboid::test {

using Values = std::vector<double>;

// Kernels on a test's own thread use one OpenMP thread, as ranks do: tensors this small gain nothing from more, and
// libgomp is not instrumented, so that its barriers would look like races to ThreadSanitizer.
inline const bool kOneOpenMpThread = [] {
  omp_set_num_threads(1);
  return true;
}();

inline std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

/// n numbers in (-1, 1), exact in float32, the same for the same name.
inline Values random_values(std::string_view name, std::int64_t n) {
  Values made(index(n));
  for (std::size_t i = 0; i < made.size(); ++i) {
    const std::uint64_t bits = mix_key(name_key(name), i);
    made[i] = static_cast<float>(static_cast<double>(static_cast<std::int64_t>(bits) >> 11) / 0x1p52);
  }
  return made;
}

inline void assign(const Tensor& tensor, const Values& values) {
  ASSERT_EQ(index(tensor.elements()), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (tensor.dtype() == DType::float64) {
      tensor.data<double>()[i] = values[i];
    } else {
      tensor.data<float>()[i] = static_cast<float>(values[i]);
    }
  }
}

inline Tensor tensor_of(const Device& device, const Shape& shape, const Values& values, DType dtype = DType::float64) {
  Tensor made = device.empty(shape, dtype);
  assign(made, values);
  return made;
}

inline Tensor tokens_of(const Device& device, const Shape& shape, const std::vector<std::int32_t>& values) {
  Tensor made = device.empty(shape, DType::int32);
  EXPECT_EQ(index(made.elements()), values.size());
  std::copy(values.begin(), values.end(), made.data<std::int32_t>());
  return made;
}

inline Values values_of(const Tensor& tensor) {
  if (tensor.dtype() == DType::float64) return {tensor.data<double>(), tensor.data<double>() + tensor.elements()};
  return {tensor.data<float>(), tensor.data<float>() + tensor.elements()};
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

/// |actual - expected| <= tolerance everywhere; a NaN fails. Reports the first difference.
inline void expect_near_all(const Values& actual, const Values& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::abs(actual[i] - expected[i]) <= tolerance) continue;
    ADD_FAILURE() << what << ": element " << i << " of " << actual.size() << " is " << actual[i] << ", not "
                  << expected[i] << " within " << tolerance;
    return;
  }
}

}  // namespace cuboid::test
