// What measurements of training steps have in common: a matrix product to compare with, sums of what ranks did.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cuboid/runtime/device.h"
#include "cuboid/value/schedule.h"

namespace cuboid {

/// Seconds by kind of action: F, B, I, W, step, and communication for all others.
std::map<std::string, double> seconds_by_kind(const std::vector<Span>& spans);

/// A matrix product (m,k)·(k,n) of random numbers, made over and over.
class TimedProduct {
 public:
  /// Makes the product once, so that whatever is chosen or loaded the first time is there.
  TimedProduct(const Device& device, DType dtype, std::int64_t m, std::int64_t n, std::int64_t k);

  /// 2·m·n·k
  double flops() const;
  /// How many in a row last about a millisecond where launching one takes time (a GPU); else 1.
  int enough() const;
  /// Seconds of one, as the mean of so many in a row by the device's clock.
  double seconds(int in_a_row) const;
  void multiply() const;

 private:
  Device device_;
  Tensor a_, b_, c_;  // (m,k), (k,n), (m,n)
};

}  // namespace cuboid
