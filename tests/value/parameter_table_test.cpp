// How parameters are cut over the tensor axis.
#include "cuboid/value/parameter_table.h"

#include <algorithm>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace cuboid {
namespace {

using testing::ElementsAre;

Piece piece(std::string name, std::int64_t units, std::int64_t unit = 1, bool replicable = false, bool uneven = false) {
  return {std::move(name), units, unit, replicable, uneven};
}

// A matrix of the pieces' rows by `columns`, cut over its rows.
ParameterInfo fused(const std::vector<Piece>& pieces, std::int64_t columns = 5) {
  ParameterInfo info;
  info.name = "fused.weight";
  std::int64_t rows = 0;
  for (const Piece& p : pieces) rows += p.rows();
  info.shape = {rows, columns};
  info.split_dim = 0;
  info.pieces = pieces;
  return info;
}

// The rows that a rank owns, in local order, as "q0 q1 k0".
std::string rows_of(const ParameterInfo& info, int rank, int size) {
  std::vector<std::string> names;
  for (const Piece& p : info.pieces) {
    for (std::int64_t i = 0; i < p.rows(); ++i) names.push_back(p.name + std::to_string(i));
  }
  std::string text;
  for (const Range& range : owned_ranges(info, rank, size)) {
    for (std::int64_t i = 0; i < range.count; ++i) text += (text.empty() ? "" : " ") + names[range.begin + i];
  }
  return text;
}

TEST(EvenShare, CompleteDisjointAndBalanced) {
  for (std::int64_t units = 0; units <= 61; ++units) {
    for (int size = 1; size <= 17; ++size) {
      std::int64_t next = 0;
      std::int64_t least = units;
      std::int64_t most = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Range share = even_share(units, rank, size);
        ASSERT_EQ(share.begin, next);
        ASSERT_GE(share.count, 0);
        next += share.count;
        least = std::min(least, share.count);
        most = std::max(most, share.count);
      }
      ASSERT_EQ(next, units);
      ASSERT_LE(most - least, 1) << units << " units over " << size;
    }
  }
}

TEST(OwnedRanges, EveryRowOnExactlyItsRanks) {
  EXPECT_TRUE(rc::check([] {
    // q and gate divide by size; k is replicated or divides; the vocabulary is uneven.
    const int size = *rc::gen::element(1, 2, 3, 4, 6, 8, 12);
    std::vector<int> divisors;
    for (int d = 1; d < size; ++d) {
      if (size % d == 0) divisors.push_back(d);
    }
    const bool few = !divisors.empty() && *rc::gen::arbitrary<bool>();
    const std::int64_t kv = few ? *rc::gen::elementOf(divisors) : size * *rc::gen::inRange(1, 4);
    const auto info =
        fused({piece("q", size * *rc::gen::inRange(1, 5), *rc::gen::inRange(1, 7)),
               piece("k", kv, *rc::gen::inRange(1, 7), true), piece("x", *rc::gen::inRange(0, 50), 1, false, true)});
    std::vector<int> owners(info.shape[0]);
    for (int rank = 0; rank < size; ++rank) {
      std::int64_t rows = 0;
      const auto ranges = owned_ranges(info, rank, size);
      RC_ASSERT(ranges.size() == info.pieces.size());
      for (std::size_t p = 0; p < ranges.size(); ++p) {
        // Never inside a head.
        RC_ASSERT(ranges[p].count % info.pieces[p].unit == 0);
        rows += ranges[p].count;
        for (std::int64_t i = 0; i < ranges[p].count; ++i) ++owners[ranges[p].begin + i];
      }
      RC_ASSERT(shard_shape(info, rank, size) == Shape({rows, 5}));
    }
    std::size_t row = 0;
    for (const Piece& p : info.pieces) {
      for (std::int64_t i = 0; i < p.rows(); ++i) RC_ASSERT(owners[row++] == replicas(p, size));
    }
  }));
}

TEST(OwnedRanges, FusedPiecesAreCutApart) {
  // 6 query heads of 2 rows, 2 key and 2 value heads: rank 0 gets the front half of each, not of the whole.
  const auto qkv = fused({piece("q", 6, 2), piece("k", 2, 2, true), piece("v", 2, 2, true)});
  EXPECT_EQ(rows_of(qkv, 0, 2), "q0 q1 q2 q3 q4 q5 k0 k1 v0 v1");
  EXPECT_EQ(rows_of(qkv, 1, 2), "q6 q7 q8 q9 q10 q11 k2 k3 v2 v3");
  EXPECT_THAT(owned_ranges(qkv, 1, 2), ElementsAre(Range{6, 6}, Range{14, 2}, Range{18, 2}));
  const auto gate_up = fused({piece("g", 4), piece("u", 4)});
  EXPECT_EQ(rows_of(gate_up, 0, 2), "g0 g1 u0 u1");
  EXPECT_EQ(rows_of(gate_up, 1, 2), "g2 g3 u2 u3");
}

TEST(OwnedRanges, KeyValueHeadsAreReplicatedNotCut) {
  // 4 query heads, 2 KV heads, head dim 1, over 4 ranks: every rank has a query head and the KV head it attends with.
  const auto qkv = fused({piece("q", 4), piece("k", 2, 1, true), piece("v", 2, 1, true)});
  EXPECT_EQ(rows_of(qkv, 0, 4), "q0 k0 v0");
  EXPECT_EQ(rows_of(qkv, 1, 4), "q1 k0 v0");
  EXPECT_EQ(rows_of(qkv, 2, 4), "q2 k1 v1");
  EXPECT_EQ(rows_of(qkv, 3, 4), "q3 k1 v1");
  // 4 KV heads of 128 over 8 ranks: 128 rows each, rank r owns head r div 2.
  const auto wide = fused({piece("k", 4, 128, true)});
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_THAT(owned_ranges(wide, rank, 8), ElementsAre(Range{128 * (rank / 2), 128}));
  }
  EXPECT_EQ(replicas(wide.pieces[0], 8), 2);
  EXPECT_EQ(replicas(wide.pieces[0], 4), 1);
}

TEST(OwnedRanges, ImpossibleCutsAreContractViolations) {
  EXPECT_THROW(owned_ranges(fused({piece("g", 3), piece("u", 3)}), 0, 2), std::logic_error);  // 2·3 divides, 3 does not
  EXPECT_THROW(owned_ranges(fused({piece("q", 12, 64)}), 0, 8), std::logic_error);
  EXPECT_THROW(owned_ranges(fused({piece("k", 3, 1, true)}), 0, 8), std::logic_error);
}

TEST(OwnedRanges, UnevenVocabulary) {
  const auto vocab = fused({piece("", 50257, 1, false, true)}, 3);
  EXPECT_EQ(shard_shape(vocab, 0, 8), Shape({6282, 3}));
  EXPECT_EQ(shard_shape(vocab, 7, 8), Shape({6283, 3}));
}

TEST(ShardRuns, WalkTheShardInOrder) {
  EXPECT_TRUE(rc::check([] {
    const int size = *rc::gen::element(1, 2, 3, 4, 6);
    auto info =
        fused({piece("a", size * *rc::gen::inRange(1, 4), *rc::gen::inRange(1, 4)),
               piece("b", 1, *rc::gen::inRange(1, 4), true), piece("c", *rc::gen::inRange(0, 9), 1, false, true)});
    const std::int64_t rows = info.shape[0];
    info.split_dim = *rc::gen::inRange(0, 3);
    info.shape = Shape({2, 3, 5});
    info.shape[info.split_dim] = rows;
    std::vector<int> counted(info.shape.elements());
    for (int rank = 0; rank < size; ++rank) {
      std::int64_t local = 0;
      for (const auto& run : shard_runs(info, rank, size)) {
        RC_ASSERT(run.local == local);
        local += run.count;
        for (std::int64_t i = 0; i < run.count; ++i) {
          counted[run.global + i] += counts_piece(info, run.piece, rank, size) ? 1 : 0;
        }
      }
      RC_ASSERT(local == shard_shape(info, rank, size).elements());
    }
    // Copies of a replicated piece count once.
    RC_ASSERT(std::all_of(counted.begin(), counted.end(), [](int n) { return n == 1; }));
  }));
}

TEST(ShardRuns, ColumnsOfAMatrix) {
  ParameterInfo info;
  info.name = "down.weight";
  info.shape = {2, 6};
  info.split_dim = 1;
  info.pieces = {piece("", 6)};
  const auto runs = shard_runs(info, 1, 3);
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].global, 2);
  EXPECT_EQ(runs[1].global, 8);
  EXPECT_EQ(runs[1].local, 2);
  EXPECT_EQ(runs[1].count, 2);
}

TEST(ShardRuns, ReplicatedParameterIsWholeAndCountsOnRankZero) {
  ParameterInfo info;
  info.shape = {7, 3};
  EXPECT_EQ(shard_shape(info, 2, 4), Shape({7, 3}));
  const auto runs = shard_runs(info, 2, 4);
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].count, 21);
  EXPECT_TRUE(counts_piece(info, 0, 0, 4));
  EXPECT_FALSE(counts_piece(info, 0, 2, 4));
}

TEST(ParameterTable, TotalsCountATiedWeightOnce) {
  const auto parameter = [](std::string name, Shape shape, int block) {
    ParameterInfo info;
    info.name = std::move(name);
    info.shape = std::move(shape);
    info.block = block;
    return info;
  };
  const ParameterInfo embedding = parameter("embedding.weight", {11, 3}, 0);
  const ParameterInfo layer = parameter("layers.0.mlp.weight", {5, 7}, 1);
  ParameterInfo head = parameter("head.weight", {11, 3}, 2);
  head.tied_with = "embedding.weight";
  const ParameterTable table({embedding, layer, head});
  EXPECT_EQ(table.total(), 33 + 35);
  EXPECT_EQ(table.total_of_block(0), 33);
  EXPECT_EQ(table.total_of_block(1), 35);
  EXPECT_EQ(table.total_of_block(2), 0);
  EXPECT_EQ(table.at("layers.0.mlp.weight").shape, Shape({5, 7}));
  EXPECT_THROW(table.at("nothing"), std::logic_error);
}

}  // namespace
}  // namespace cuboid
