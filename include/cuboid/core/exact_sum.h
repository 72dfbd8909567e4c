// A sum of non-negative doubles without rounding: a fixed-point number of 640 bits in integer limbs. Integer addition
// is exact, so the result depends on the numbers alone and not on their order or on who added them: sums of several
// ranks are merged by adding limbs, and the global gradient norm comes out the same however the gradient is cut (law
// 1).
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "cuboid/core/host_device.h"

namespace cuboid {

class ExactSum {
 public:
  /// Limb i counts units of 2^(32·i + kLowest). Numbers below one unit of limb 0 are cut off: 2^-352 is far below the
  /// square of the smallest float32.
  static constexpr int kLimbs = 20;
  static constexpr int kLowest = -352;
  /// Integers that represent a sum when ranks merge theirs: the limbs, and how many numbers were not finite.
  static constexpr int kWords = kLimbs + 1;

  /// Calls f(word, value) for the words to which x >= 0 adds something, each value below 2^32 (a GPU adds them so).
  template <typename F>
  CUBOID_HD static void for_words(double x, F f);

  /// Adds x >= 0; infinities, NaN and numbers of 2^256 and above are counted as not finite.
  void add(double x);
  void merge(const ExactSum& other);
  /// The words to be added over ranks (each below 2^32, so up to 2^31 ranks cannot overflow).
  std::array<std::int64_t, kWords> words();
  static ExactSum from_words(const std::array<std::int64_t, kWords>& words);
  /// The nearest double below or at the sum, or NaN if a number was not finite.
  double value();

 private:
  void carry();
  std::array<std::int64_t, kLimbs> limbs_{};
  std::int64_t not_finite_ = 0;
  std::int64_t pending_ = 0;  // additions since the last carry: 2^30 of them fit
};

template <typename F>
CUBOID_HD void ExactSum::for_words(double x, F f) {
  if (!(x < 0x1p256)) {
    f(kLimbs, std::int64_t{1});
    return;
  }
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const int biased = static_cast<int>(bits >> 52);
  if (biased == 0) return;  // zero, or below 2^-1022
  const std::uint64_t mantissa = (bits & ((std::uint64_t{1} << 52) - 1)) | (std::uint64_t{1} << 52);
  const int position = biased - 1075 - kLowest;  // of the mantissa's lowest bit
  if (position < 0) {
    if (position > -53) f(0, static_cast<std::int64_t>((mantissa >> -position) & 0xffffffffU));
    if (position > -21) f(1, static_cast<std::int64_t>((mantissa >> -position) >> 32));
    return;
  }
  const int limb = position / 32;
  const int shift = position % 32;
  const std::uint64_t low = mantissa << shift;
  const std::uint64_t high = shift == 0 ? 0 : mantissa >> (64 - shift);
  f(limb, static_cast<std::int64_t>(low & 0xffffffffU));
  f(limb + 1, static_cast<std::int64_t>(low >> 32));
  f(limb + 2, static_cast<std::int64_t>(high));
}

}  // namespace cuboid
