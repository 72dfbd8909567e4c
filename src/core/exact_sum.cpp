#include "cuboid/core/exact_sum.h"

#include <cmath>
#include <limits>

namespace cuboid {
namespace {

constexpr std::int64_t kBase = std::int64_t{1} << 32;

}  // namespace

void ExactSum::add(double x) {
  for_words(x, [this](int word, std::int64_t value) {
    if (word == kLimbs) {
      ++not_finite_;
    } else {
      limbs_[static_cast<std::size_t>(word)] += value;
    }
  });
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
