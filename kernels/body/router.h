// Routing of tokens to experts, a token a row: softmax, choice of the k largest, and the way back of their gradients.
#pragma once

#include <cmath>

#include "kernels/body/lanes.h"
#include "kernels/body/storage.h"

namespace cuboid::kernels::body {

/// probabilities (n) = softmax(logits); experts (k): indices of the k largest logits, largest first, the lower index
/// where they are equal; weights (k): their probabilities divided by the sum of these. Returns log Σ exp(logit).
/// The choice is made by every lane alike: n is small, and all write the same. A NaN is never larger than another.
template <typename Lanes, typename T>
CUBOID_HD T route_row(Lanes lanes, std::int64_t n, std::int64_t k, const T* logits, T* probabilities,
                      std::int32_t* experts, T* weights) {
  const T largest = lanes.template max<T>(n, [=](std::int64_t i) { return logits[i]; });
  const T sum = lanes.template sum<T>(n, [=](std::int64_t i) { return std::exp(logits[i] - largest); });
  lanes.each(n, [=](std::int64_t i) { probabilities[i] = std::exp(logits[i] - largest) / sum; });
  T chosen = 0;
  for (std::int64_t j = 0; j < k; ++j) {
    std::int64_t best = -1;
    for (std::int64_t i = 0; i < n; ++i) {
      bool taken = false;
      for (std::int64_t earlier = 0; earlier < j; ++earlier) taken = taken || experts[earlier] == i;
      if (!taken && (best < 0 || logits[i] > logits[best])) best = i;
    }
    experts[j] = static_cast<std::int32_t>(best);
    chosen += probabilities[best];
  }
  for (std::int64_t j = 0; j < k; ++j) weights[j] = probabilities[experts[j]] / chosen;
  return largest + std::log(sum);
}

/// Gradient of the logits: that of the weights w of the chosen, of Σ slope·probability, and of z·(log Σ exp)².
///   dlogit_i = p_i·(slope_i - Σ slope·p + 2·z·log_sum), and for the chosen also w_i·(dw_i - Σ w·dw).
template <typename Lanes, typename T>
CUBOID_HD void route_gradient_row(Lanes lanes, std::int64_t n, std::int64_t k, const T* dweights,
                                  const T* probabilities, const std::int32_t* experts, const T* weights, T log_sum,
                                  const T* slope, T z, T* dlogits) {
  const T pull = lanes.template sum<T>(n, [=](std::int64_t i) { return slope[i] * probabilities[i]; });
  lanes.each(n, [=](std::int64_t i) { dlogits[i] = probabilities[i] * (slope[i] - pull + 2 * z * log_sum); });
  const T mean = lanes.template sum<T>(k, [=](std::int64_t j) { return weights[j] * dweights[j]; });
  lanes.each(k, [=](std::int64_t j) { dlogits[experts[j]] += weights[j] * (dweights[j] - mean); });
}

/// y (n) = Σ over the k copies, in their order, of weight·row; row j is rows + slot[j]·n. No weights: 1.
template <typename Lanes, typename T>
CUBOID_HD void combine_row(Lanes lanes, std::int64_t n, std::int64_t k, const T* rows, const std::int32_t* slot,
                           const Real<T>* weights, T* y) {
  lanes.each(n, [=](std::int64_t i) {
    Real<T> sum = 0;
    for (std::int64_t j = 0; j < k; ++j) sum += (weights ? weights[j] : Real<T>{1}) * real(rows[slot[j] * n + i]);
    y[i] = static_cast<T>(sum);
  });
}

/// For each of the k copies: drow = weight·dy, dweight = dy · row.
template <typename Lanes, typename T, typename U>
CUBOID_HD void combine_gradient_row(Lanes lanes, std::int64_t n, std::int64_t k, const T* dy, const U* rows,
                                    const std::int32_t* slot, const Real<T>* weights, T* drows, Real<T>* dweights) {
  for (std::int64_t j = 0; j < k; ++j) {
    const U* row = rows + slot[j] * n;
    T* drow = drows + slot[j] * n;
    const Real<T> weight = weights[j];
    dweights[j] = lanes.template sum<Real<T>>(n, [=](std::int64_t i) { return real(dy[i]) * real(row[i]); });
    lanes.each(n, [=](std::int64_t i) { drow[i] = static_cast<T>(weight * real(dy[i])); });
  }
}

}  // namespace cuboid::kernels::body
