#include "cuboid/core/random.h"

#include <cmath>
#include <numbers>

namespace cuboid {

double normal_of(std::uint64_t key, std::uint64_t element) {
  // One block serves two elements: the sine and the cosine branch.
  const std::uint64_t block = element >> 1;
  const Philox4 r = philox(key, static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 0);
  // 53 random bits each: u in (0, 1), v in [0, 1).
  const double u = (static_cast<double>((std::uint64_t{r.x[0]} << 21) + (r.x[1] >> 11)) + 0.5) * 0x1p-53;
  const double v = static_cast<double>((std::uint64_t{r.x[2]} << 21) + (r.x[3] >> 11)) * 0x1p-53;
  const double radius = std::sqrt(-2.0 * std::log(u));
  const double angle = 2.0 * std::numbers::pi * v;
  return radius * ((element & 1) ? std::sin(angle) : std::cos(angle));
}

std::uint64_t permuted(std::uint64_t key, std::uint64_t i, std::uint64_t n) {
  int half_bits = 1;
  while ((std::uint64_t{1} << (2 * half_bits)) < n) ++half_bits;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t x = i;
  do {  // the network permutes [0, 4^half_bits); walk the cycle until it is back inside [0, n)
    std::uint64_t left = x >> half_bits;
    std::uint64_t right = x & mask;
    for (std::uint32_t round = 0; round < 6; ++round) {
      const Philox4 f =
          philox(key, static_cast<std::uint32_t>(right), static_cast<std::uint32_t>(right >> 32), round, 1);
      const std::uint64_t next = left ^ (((std::uint64_t{f.x[1]} << 32) | f.x[0]) & mask);
      left = right;
      right = next;
    }
    x = (left << half_bits) | right;
  } while (x >= n);
  return x;
}

}  // namespace cuboid
