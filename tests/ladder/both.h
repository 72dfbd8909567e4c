// Runs the same work on the CPU and on the first GPU (emulated, or a real one) and compares.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cuboid/core/random.h"
#include "cuboid/kernels/kernels.h"

namespace cuboid::ladder {

inline const Device& gpu() {
  static const Device instance = Device::cuda(0);
  return instance;
}

/// A device and tensors with the same numbers on every device.
struct Place {
  Device device;

  /// Standard normal numbers times `scale`, a function of the name, rounded to the type.
  Tensor normals(const std::string& name, const Shape& shape, DType dtype = DType::float32, double scale = 1) const {
    const Tensor made = device.host().empty(shape, dtype);
    for (std::int64_t i = 0; i < made.elements(); ++i) {
      const auto x = static_cast<float>(scale * normal_of(name_key(name), static_cast<std::uint64_t>(i)));
      if (dtype == DType::bfloat16) {
        made.data<BFloat16>()[i] = BFloat16(x);
      } else {
        made.data<float>()[i] = x;
      }
    }
    return device.to_device(made);
  }
  /// Whole numbers below `limit`; one in eight is kIgnore if `ignores`.
  Tensor ids(const std::string& name, const Shape& shape, std::int64_t limit, bool ignores = false) const {
    const Tensor made = device.host().empty(shape, DType::int32);
    for (std::int64_t i = 0; i < made.elements(); ++i) {
      const std::uint64_t bits = mix_key(name_key(name), static_cast<std::uint64_t>(i));
      made.data<std::int32_t>()[i] = ignores && bits % 8 == 0
                                         ? kernels::kIgnore
                                         : static_cast<std::int32_t>((bits >> 8) % static_cast<std::uint64_t>(limit));
    }
    return device.to_device(made);
  }
  Tensor empty(const Shape& shape, DType dtype = DType::float32) const { return device.empty(shape, dtype); }
  Tensor zeros(const Shape& shape, DType dtype = DType::float32) const { return device.zeros(shape, dtype); }
};

inline std::vector<double> numbers_of(const Device& device, const Tensor& tensor) {
  const Tensor here = device.to_host(tensor);
  std::vector<double> made;
  for (std::int64_t i = 0; i < here.elements(); ++i) {
    switch (here.dtype()) {
      case DType::float32:
        made.push_back(here.data<float>()[i]);
        break;
      case DType::float64:
        made.push_back(here.data<double>()[i]);
        break;
      case DType::bfloat16:
        made.push_back(static_cast<float>(here.data<BFloat16>()[i]));
        break;
      case DType::int32:
        made.push_back(here.data<std::int32_t>()[i]);
        break;
      case DType::int64:
        made.push_back(static_cast<double>(here.data<std::int64_t>()[i]));
        break;
    }
  }
  return made;
}

/// Results of `run` on both devices agree: each within `rounding` units of the result's type, relative to the largest
/// number of the tensor. Sums in float32 differ by the order of their terms and by fused multiply-adds, so `rounding`
/// is about the square root of the longest sum's length.
inline void expect_same_on_both(const std::string& what, double rounding,
                                const std::function<std::vector<Tensor>(const Place&)>& run) {
  const Place cpu{Device()};
  const Place there{gpu()};
  const std::vector<Tensor> expected = run(cpu);
  const std::vector<Tensor> actual = run(there);
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t t = 0; t < expected.size(); ++t) {
    const auto want = numbers_of(cpu.device, expected[t]);
    const auto got = numbers_of(there.device, actual[t]);
    ASSERT_EQ(got.size(), want.size()) << what;
    double largest = 0;
    for (const double x : want) largest = std::max(largest, std::abs(x));
    const double unit = expected[t].dtype() == DType::bfloat16 ? 0x1p-8 : 0x1p-24;
    const double tolerance = rounding * unit * largest;
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (std::abs(got[i] - want[i]) <= tolerance) continue;
      ADD_FAILURE() << what << ", result " << t << ", element " << i << " of " << want.size() << ": " << got[i]
                    << " on the GPU, " << want[i] << " on the CPU, tolerance " << tolerance;
      break;
    }
  }
}

}  // namespace cuboid::ladder
