// A sum of non-negative doubles without rounding: a fixed-point number of 640 bits in integer limbs. Integer addition
// is exact, so the result depends on the numbers alone and not on their order or on who added them: sums of several
// ranks are merged by adding limbs, and the global gradient norm comes out the same however the gradient is cut (law
// 1).
#pragma once

#include <array>
#include <cstdint>

namespace cuboid {

class ExactSum {
 public:
  /// Limb i counts units of 2^(32·i + kLowest). Numbers below one unit of limb 0 are cut off: 2^-352 is far below the
  /// square of the smallest float32.
  static constexpr int kLimbs = 20;
  static constexpr int kLowest = -352;
  /// Integers that represent a sum when ranks merge theirs: the limbs, and how many numbers were not finite.
  static constexpr int kWords = kLimbs + 1;

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

}  // namespace cuboid
