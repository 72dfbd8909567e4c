// Cross-entropy of a row of logits of which this rank holds a part.
#pragma once

#include "kernels/body/lanes.h"
#include "kernels/body/math.h"
#include "kernels/body/storage.h"

namespace cuboid::kernels::body {

template <typename T>
struct LogitStatistics {
  T max, sum;  ///< Σ exp(logit - max)
};

template <typename Lanes, typename T>
CUBOID_HD LogitStatistics<T> logit_statistics_row(Lanes lanes, std::int64_t n, const T* logits) {
  const T max = lanes.template max<T>(n, [=](std::int64_t i) { return logits[i]; });
  return {max, lanes.template sum<T>(n, [=](std::int64_t i) { return exp(logits[i] - max); })};
}

/// dlogits (n) = exp(logit - max)·scale; the caller subtracts the factor at the target. dlogits may be logits.
template <typename Lanes, typename T>
CUBOID_HD void cross_entropy_gradient_row(Lanes lanes, std::int64_t n, Real<T> max, Real<T> scale,
                                          const Real<T>* logits, T* dlogits) {
  lanes.each(n, [=](std::int64_t i) { dlogits[i] = static_cast<T>(exp(logits[i] - max) * scale); });
}

}  // namespace cuboid::kernels::body
