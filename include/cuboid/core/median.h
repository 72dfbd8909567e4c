// The middle of measured values.
#pragma once

#include <algorithm>
#include <vector>

#include "cuboid/core/error.h"

namespace cuboid {

/// The middle value; of an even number the mean of both in the middle. @pre not empty
inline double median(std::vector<double> values) {
  CUBOID_CHECK(!values.empty(), "a median of something");
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace cuboid
