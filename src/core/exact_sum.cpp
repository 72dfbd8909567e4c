#include "cuboid/core/exact_sum.h"

#include <bit>
#include <cmath>
#include <limits>

namespace cuboid {
namespace {

constexpr std::int64_t kBase = std::int64_t{1} << 32;

}  // namespace

void ExactSum::add(double x) {
  if (!(x < 0x1p256)) {
    ++not_finite_;
    return;
  }
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const int biased = static_cast<int>(bits >> 52);
  if (biased == 0) return;  // zero, or below 2^-1022
  const std::uint64_t mantissa = (bits & ((std::uint64_t{1} << 52) - 1)) | (std::uint64_t{1} << 52);
  const int position = biased - 1075 - kLowest;  // of the mantissa's lowest bit
  if (position < 0) {
    if (position > -53) limbs_[0] += static_cast<std::int64_t>((mantissa >> -position) & 0xffffffffU);
    if (position > -21) limbs_[1] += static_cast<std::int64_t>((mantissa >> -position) >> 32);
  } else {
    const auto limb = static_cast<std::size_t>(position / 32);
    const int shift = position % 32;
    const std::uint64_t low = mantissa << shift;
    const std::uint64_t high = shift == 0 ? 0 : mantissa >> (64 - shift);
    limbs_[limb] += static_cast<std::int64_t>(low & 0xffffffffU);
    limbs_[limb + 1] += static_cast<std::int64_t>(low >> 32);
    limbs_[limb + 2] += static_cast<std::int64_t>(high);
  }
  if (++pending_ == (std::int64_t{1} << 30)) carry();
}

void ExactSum::merge(const ExactSum& other) {
  for (std::size_t i = 0; i < kLimbs; ++i) limbs_[i] += other.limbs_[i];
  not_finite_ += other.not_finite_;
  pending_ += other.pending_ + 1;
  if (pending_ >= (std::int64_t{1} << 30)) carry();
}

void ExactSum::carry() {
  for (std::size_t i = 0; i + 1 < kLimbs; ++i) {
    limbs_[i + 1] += limbs_[i] / kBase;
    limbs_[i] %= kBase;
  }
  pending_ = 0;
}

std::array<std::int64_t, ExactSum::kWords> ExactSum::words() {
  carry();
  std::array<std::int64_t, kWords> words{};
  for (std::size_t i = 0; i < kLimbs; ++i) words[i] = limbs_[i];
  words[kLimbs] = not_finite_;
  return words;
}

ExactSum ExactSum::from_words(const std::array<std::int64_t, kWords>& words) {
  ExactSum sum;
  for (std::size_t i = 0; i < kLimbs; ++i) sum.limbs_[i] = words[i];
  sum.not_finite_ = words[kLimbs];
  sum.carry();
  return sum;
}

double ExactSum::value() {
  if (not_finite_ > 0) return std::numeric_limits<double>::quiet_NaN();
  carry();
  double sum = 0;
  for (int i = kLimbs - 1; i >= 0; --i) {
    // Limbs below the 53 bits that a double holds change nothing; the loop ends by itself.
    sum += std::ldexp(static_cast<double>(limbs_[static_cast<std::size_t>(i)]), 32 * i + kLowest);
  }
  return sum;
}

}  // namespace cuboid
