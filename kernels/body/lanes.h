// Who works on a row. A kernel body asks its lanes to visit the elements of a row or to reduce over them; on the CPU
// one lane does all of it (OneLane), on a GPU a warp or a block will. Bodies therefore hold no loop over a row's
// elements.
#pragma once

#include <cstdint>

#include "cuboid/core/host_device.h"

#if defined(__CUDA_ARCH__)
#define CUBOID_SIMD
#else
#define CUBOID_SIMD _Pragma("omp simd")
#endif

namespace cuboid::kernels::body {

/// Two sums made in one pass.
template <typename T>
struct Two {
  T a, b;
};

/// A CPU thread. Sums run over kWidth interleaved partial sums that are folded in halves: an order that is part of the
/// definition (it does not depend on vector width or alignment), and that compilers vectorise as it stands.
struct OneLane {
  static constexpr std::int64_t kWidth = 32;

  /// f(i) for i in [0, n); the calls must not depend on each other.
  template <typename F>
  CUBOID_HD void each(std::int64_t n, F f) const {
    CUBOID_SIMD
    for (std::int64_t i = 0; i < n; ++i) f(i);
  }

  /// f(i, word) for i in [0, n), word being number i % 4 of make(i / 4), which gives four words x. A batch of words is
  /// made first: interleaving them by fours is then not f's concern.
  template <typename Make, typename F>
  CUBOID_HD void each_word(std::int64_t n, Make make, F f) const {
    constexpr std::int64_t kBlocks = 64;
    std::uint32_t words[4 * kBlocks];
    for (std::int64_t first = 0; first < n; first += 4 * kBlocks) {
      const std::int64_t count = n - first < 4 * kBlocks ? n - first : 4 * kBlocks;
      CUBOID_SIMD
      for (std::int64_t b = 0; b < (count + 3) / 4; ++b) {
        const auto four = make(first / 4 + b);
        for (std::int64_t w = 0; w < 4; ++w) words[4 * b + w] = four.x[w];
      }
      CUBOID_SIMD
      for (std::int64_t i = 0; i < count; ++i) f(first + i, words[i]);
    }
  }

  /// Σ f(i) over [0, n).
  template <typename T, typename F>
  CUBOID_HD T sum(std::int64_t n, F f) const {
    T partial[kWidth] = {};
    std::int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) {
      CUBOID_SIMD
      for (std::int64_t j = 0; j < kWidth; ++j) partial[j] += f(i + j);
    }
    CUBOID_SIMD
    for (std::int64_t j = 0; j < n - i; ++j) partial[j] += f(i + j);
    return fold(partial);
  }

  /// Both sums of f(i) = Two{a, b} over [0, n).
  template <typename T, typename F>
  CUBOID_HD Two<T> sum2(std::int64_t n, F f) const {
    T a[kWidth] = {};
    T b[kWidth] = {};
    std::int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) {
      CUBOID_SIMD
      for (std::int64_t j = 0; j < kWidth; ++j) {
        const Two<T> term = f(i + j);
        a[j] += term.a;
        b[j] += term.b;
      }
    }
    for (std::int64_t j = 0; j < n - i; ++j) {
      const Two<T> term = f(i + j);
      a[j] += term.a;
      b[j] += term.b;
    }
    return {fold(a), fold(b)};
  }

  /// max f(i) over [0, n); NaN values are passed over. @pre n > 0
  template <typename T, typename F>
  CUBOID_HD T max(std::int64_t n, F f) const {
    T partial[kWidth];
    const T start = f(0);
    for (std::int64_t j = 0; j < kWidth; ++j) partial[j] = start;
    std::int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) {
      CUBOID_SIMD
      for (std::int64_t j = 0; j < kWidth; ++j) partial[j] = larger(f(i + j), partial[j]);
    }
    for (std::int64_t j = 0; j < n - i; ++j) partial[j] = larger(f(i + j), partial[j]);
    for (std::int64_t w = kWidth / 2; w > 0; w /= 2) {
      for (std::int64_t j = 0; j < w; ++j) partial[j] = larger(partial[j + w], partial[j]);
    }
    return partial[0];
  }

 private:
  template <typename T>
  CUBOID_HD static T larger(T value, T so_far) {
    return value > so_far ? value : so_far;
  }
  template <typename T>
  CUBOID_HD static T fold(T (&partial)[kWidth]) {
    for (std::int64_t w = kWidth / 2; w > 0; w /= 2) {
      for (std::int64_t j = 0; j < w; ++j) partial[j] += partial[j + w];
    }
    return partial[0];
  }
};

}  // namespace cuboid::kernels::body
