// Counter-based random numbers (Philox 4x32-10, Random123): a number is a pure function of a key and a position, so it
// does not depend on which rank draws it or in which order (law 1). Host and device code give the same bits.
#pragma once

#include <cstdint>
#include <string_view>

#include "cuboid/core/host_device.h"

namespace cuboid {

/// Four 32-bit words: the unit in which Philox produces.
struct Philox4 {
  std::uint32_t x[4];
};

/// Philox 4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC11); equal to Random123's
/// philox4x32 (tested). Written out so that a compiler can vectorise a loop over counters.
CUBOID_HD constexpr Philox4 philox(std::uint64_t key, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                                   std::uint32_t c3) {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  // The words live in the lower halves of 64-bit registers, with anything above them: a product needs 64 bits, and
  // vector code would otherwise narrow and widen in every round.
  constexpr std::uint64_t kWord = 0xFFFFFFFFU;
  std::uint64_t x0 = c0;
  std::uint64_t x1 = c1;
  std::uint64_t x2 = c2;
  std::uint64_t x3 = c3;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53U * (x0 & kWord);
    const std::uint64_t p1 = 0xCD9E8D57U * (x2 & kWord);
    x0 = (p1 >> 32) ^ x1 ^ k0;
    x1 = p1;
    x2 = (p0 >> 32) ^ x3 ^ k1;
    x3 = p0;
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return {{static_cast<std::uint32_t>(x0), static_cast<std::uint32_t>(x1), static_cast<std::uint32_t>(x2),
           static_cast<std::uint32_t>(x3)}};
}

/// A 64-bit key from any number of identities (SplitMix64 finaliser, chained): seed, step, layer, operation…
CUBOID_HD constexpr std::uint64_t mix_key(std::uint64_t key, std::uint64_t identity) {
  std::uint64_t z = key + 0x9E3779B97F4A7C15ULL * (identity + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

/// A 64-bit identity of a name (FNV-1a).
constexpr std::uint64_t name_key(std::string_view name) {
  std::uint64_t h = 0xCBF29CE484222325ULL;
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return h;
}

/// Standard normal number of a parameter's global element: Box-Muller in double on one Philox block.
/// @param key      mix_key(mix_key(seed), name_key(parameter))
/// @param element  index in the *global* tensor, row-major
double normal_of(std::uint64_t key, std::uint64_t element);

/// A random permutation's image of i in [0, n): every i maps to a distinct value, computed without storing the
/// permutation (Feistel network over Philox with cycle walking). @pre i < n, n < 2^62
std::uint64_t permuted(std::uint64_t key, std::uint64_t i, std::uint64_t n);

}  // namespace cuboid
