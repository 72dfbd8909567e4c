// Random numbers against Random123 and their own laws; bfloat16, shapes, units and errors.
#include <cmath>
#include <set>

#include <Random123/philox.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "cuboid/core/dtype.h"
#include "cuboid/core/error.h"
#include "cuboid/core/random.h"
#include "cuboid/core/shape.h"
#include "cuboid/core/text.h"
#include "cuboid/core/units.h"

namespace cuboid {
namespace {

TEST(Random, PhiloxEqualsRandom123) {
  EXPECT_TRUE(rc::check([](std::uint64_t key, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3) {
    const r123::Philox4x32::ctr_type counter = {{c0, c1, c2, c3}};
    const r123::Philox4x32::key_type words = {{static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)}};
    const auto expected = r123::Philox4x32()(counter, words);
    const Philox4 ours = philox(key, c0, c1, c2, c3);
    for (std::size_t i = 0; i < 4; ++i) RC_ASSERT(ours.x[i] == expected[i]);
  }));
}

TEST(Random, PhiloxKnownAnswer) {
  // kat_vectors of Random123: philox4x32-10 of all ones.
  constexpr Philox4 r = philox(~std::uint64_t{0}, ~0U, ~0U, ~0U, ~0U);
  EXPECT_EQ(r.x[0], 0x408f276dU);
  EXPECT_EQ(r.x[1], 0x41c83b0eU);
  EXPECT_EQ(r.x[2], 0xa20bc7c6U);
  EXPECT_EQ(r.x[3], 0x6d5451fdU);
}

TEST(Random, PermutedIsAPermutation) {
  EXPECT_TRUE(rc::check([](std::uint64_t key) {
    const auto n = *rc::gen::inRange<std::uint64_t>(1, 700);
    std::vector<bool> hit(n);
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::uint64_t image = permuted(key, i, n);
      RC_ASSERT(image < n);
      RC_ASSERT(!hit[image]);
      hit[image] = true;
    }
  }));
}

TEST(Random, PermutedMixes) {
  // The number of fixed points of a random permutation is Poisson(1); over 200 keys their sum has mean 200 and standard
  // deviation sqrt(200) = 14.1: accept six of those.
  int fixed = 0;
  int equal_to_first = 0;
  for (std::uint64_t key = 0; key < 200; ++key) {
    for (std::uint64_t i = 0; i < 1000; ++i) {
      fixed += permuted(mix_key(9, key), i, 1000) == i;
      equal_to_first += key > 0 && permuted(mix_key(9, key), i, 1000) == permuted(mix_key(9, 0), i, 1000);
    }
  }
  EXPECT_NEAR(fixed, 200, 85);
  EXPECT_NEAR(equal_to_first, 199, 85);
  EXPECT_LT(permuted(5, (1ULL << 61) + 12345, (1ULL << 61) + 99999), (1ULL << 61) + 99999);
}

TEST(Random, NormalMoments) {
  constexpr int kCount = 200000;
  double sum = 0;
  double squares = 0;
  double cubes = 0;
  double fourths = 0;
  double neighbours = 0;
  double previous = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = normal_of(mix_key(mix_key(0, 1234), name_key("layers.0.weight")), static_cast<std::uint64_t>(i));
    sum += x;
    squares += x * x;
    cubes += x * x * x;
    fourths += x * x * x * x;
    neighbours += x * previous;
    previous = x;
  }
  // Six standard errors: the variances of x, x², x³, x⁴ and of a product of two are 1, 2, 15, 96 and 1.
  const auto tolerance = [](double variance) { return 6 * std::sqrt(variance / kCount); };
  EXPECT_NEAR(sum / kCount, 0, tolerance(1));
  EXPECT_NEAR(squares / kCount, 1, tolerance(2));
  EXPECT_NEAR(cubes / kCount, 0, tolerance(15));
  EXPECT_NEAR(fourths / kCount, 3, tolerance(96));
  EXPECT_NEAR(neighbours / kCount, 0, tolerance(1));
}

TEST(Random, NormalDependsOnKeyAndElementOnly) {
  const double x = normal_of(7, 1ULL << 40);
  EXPECT_EQ(normal_of(7, 1ULL << 40), x);
  EXPECT_NE(normal_of(8, 1ULL << 40), x);
  EXPECT_NE(normal_of(7, (1ULL << 40) + 1), x);
  EXPECT_NE(normal_of(7, 0), x);
}

TEST(Random, KeysOfDifferentIdentitiesDiffer) {
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    for (std::uint64_t layer = 0; layer < 50; ++layer) keys.insert(mix_key(mix_key(seed, 3), layer));
  }
  EXPECT_EQ(keys.size(), 2500U);
  EXPECT_NE(mix_key(mix_key(1, 2), 3), mix_key(mix_key(1, 3), 2));
  EXPECT_EQ(name_key(""), 0xCBF29CE484222325ULL);
  EXPECT_EQ(name_key("a"), 0xAF63DC4C8601EC8CULL);  // FNV-1a test vector
}

TEST(BFloat16, RoundsToNearestEven) {
  EXPECT_EQ(static_cast<float>(BFloat16(1.0F)), 1.0F);
  EXPECT_EQ(static_cast<float>(BFloat16(257.0F)), 256.0F);  // halfway, to even
  EXPECT_EQ(static_cast<float>(BFloat16(259.0F)), 260.0F);
  EXPECT_EQ(BFloat16(-0.0F).bits, 0x8000);
  EXPECT_TRUE(std::isinf(static_cast<float>(BFloat16(3.4e38F))));  // above the largest bfloat16
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::nanf("1")))));
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(0x7f800001U)))));
}

TEST(BFloat16, ErrorIsAtMostHalfAUnit) {
  EXPECT_TRUE(rc::check([](bool negative) {
    const auto exponent = *rc::gen::inRange<std::uint32_t>(1, 254);  // normal, and below the largest bfloat16
    const auto mantissa = *rc::gen::inRange<std::uint32_t>(0, 1U << 23);
    const auto value = std::bit_cast<float>((negative ? 1U << 31 : 0U) | exponent << 23 | mantissa);
    const auto rounded = static_cast<float>(BFloat16(value));
    // 8 significant bits: half a unit in the last place is at most 2^-8 of the value.
    RC_ASSERT(std::abs(rounded - value) <= std::abs(value) * 0x1p-8F);
    RC_ASSERT(BFloat16(rounded) == BFloat16(value));
  }));
}

TEST(Shape, Sizes) {
  const Shape shape{2, 3, 5};
  EXPECT_EQ(shape.elements(), 30);
  EXPECT_EQ(shape.rows(), 6);
  EXPECT_EQ(shape[-1], 5);
  EXPECT_EQ(to_string(shape), "(2,3,5)");
  EXPECT_EQ(Shape().elements(), 1);
  EXPECT_EQ(Shape().rows(), 1);
  EXPECT_EQ(to_string(Shape()), "()");
  EXPECT_EQ(Shape({7}).rows(), 1);
  EXPECT_EQ(Shape({4, 0}).rows(), 0);
  EXPECT_EQ(Shape({4, 0}).elements(), 0);
}

TEST(Units, ForPeople) {
  EXPECT_EQ(human_bytes(312), "312 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(3ULL << 30), "3 GiB");
  EXPECT_EQ(human_seconds(0), "0 s");
  EXPECT_EQ(human_seconds(0.0000874), "87.4 us");
  EXPECT_EQ(human_seconds(0.0041), "4.1 ms");
  EXPECT_EQ(human_seconds(12.34), "12.3 s");
  EXPECT_EQ(human_seconds(125), "2 min 05 s");
  EXPECT_EQ(human_seconds(3720), "1 h 02 min");
  EXPECT_EQ(human_count(124439808), "124.4 M");
  EXPECT_EQ(human_count(12), "12");
}

TEST(Problems, ReportTogether) {
  Problems problems;
  EXPECT_NO_THROW(problems.throw_if_any());
  problems.add("first");
  problems.add_if(false, "never");
  problems.add_if(true, "second");
  try {
    problems.throw_if_any();
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "first\nsecond");
    EXPECT_EQ(error.exit_status(), 2);
  }
  EXPECT_EQ(Error(ErrorKind::failed, "").exit_status(), 3);
  EXPECT_EQ(Error(ErrorKind::deadline, "").exit_status(), 4);
}

TEST(Problems, TheSameReasonIsGivenOnce) {
  Problems problems;
  for (const char* reason : {"a", "b", "a"}) problems.add(reason);
  try {
    problems.throw_if_any();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "a\nb");
  }
}

TEST(Text, CountsAndNames) {
  EXPECT_EQ(counted(1, "batch", "batches"), "1 batch");
  EXPECT_EQ(counted(0, "batch", "batches"), "0 batches");
  EXPECT_EQ(counted(2, "rank"), "2 ranks");
  EXPECT_EQ(naming("--data", "a: is empty\n--data b: is a pipe"), "--data a: is empty\n--data b: is a pipe");
}

TEST(Units, BytesAreReadWithAndWithoutUnits) {
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("500MB"), 500'000'000);
  EXPECT_EQ(parse_bytes("1.5 GiB"), std::int64_t{3} << 29);
  EXPECT_EQ(parse_bytes("2kib"), 2048);
  EXPECT_EQ(parse_bytes("7 b"), 7);
  for (const char* bad : {"", "GB", "-1", "0", "1.5.2", "12 parsecs", "1e3", "0.4", "9000000TiB", "inf", "nan"}) {
    EXPECT_THROW(parse_bytes(bad), Error) << bad;
  }
}

}  // namespace
}  // namespace cuboid
