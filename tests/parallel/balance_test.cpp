#include "cuboid/parallel/pipeline/balance.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "cuboid/core/error.h"
#include "cuboid/core/random.h"

namespace cuboid {
namespace {

std::vector<double> stage_costs(const std::vector<double>& blocks, const std::vector<int>& layers) {
  std::vector<double> costs;
  std::size_t next = 1;
  for (int count : layers) {
    costs.push_back(std::accumulate(blocks.begin() + next, blocks.begin() + next + count, 0.0));
    next += count;
  }
  costs.front() += blocks.front();
  costs.back() += blocks.back();
  return costs;
}

struct Quality {
  double slowest = 0;
  double squares = 0;
  std::vector<int> layers;
  friend auto operator<=>(const Quality&, const Quality&) = default;
};

Quality quality(const std::vector<double>& blocks, const std::vector<int>& layers) {
  Quality q{0, 0, layers};
  for (double cost : stage_costs(blocks, layers)) {
    q.slowest = std::max(q.slowest, cost);
    q.squares += cost * cost;
  }
  return q;
}

// The best of all contiguous splits, by trying every one.
void try_all(const std::vector<double>& blocks, int stages, int left, std::vector<int>& layers, Quality& best) {
  if (stages == 1) {
    layers.push_back(left);
    const Quality q = quality(blocks, layers);
    if (best.layers.empty() || q < best) best = q;
    layers.pop_back();
    return;
  }
  for (int count = 1; count <= left - stages + 1; ++count) {
    layers.push_back(count);
    try_all(blocks, stages - 1, left - count, layers, best);
    layers.pop_back();
  }
}

TEST(Balance, EqualsBruteForce) {
  for (int layers = 1; layers <= 9; ++layers) {
    for (int stages = 1; stages <= layers; ++stages) {
      for (std::uint32_t set = 0; set < 40; ++set) {
        // Whole numbers: sums are exact, so that ties are ties. Few different ones make many ties.
        std::vector<double> blocks;
        for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(layers) + 2; ++i) {
          blocks.push_back(philox(name_key("costs"), i, set, static_cast<std::uint32_t>(stages), 0).x[0] % (2 + set));
        }
        // As in most models.
        if (set % 2 == 0) std::fill(blocks.begin() + 1, blocks.end() - 1, blocks[1]);
        Quality best;
        std::vector<int> scratch;
        try_all(blocks, stages, layers, scratch, best);
        ASSERT_EQ(balance_layers(blocks, stages), best.layers) << layers << " layers, " << stages << " stages, " << set;
      }
    }
  }
}

TEST(Balance, CompleteForEveryLayersAndStages) {
  for (int layers = 1; layers <= 40; ++layers) {
    for (int stages = 1; stages <= layers; ++stages) {
      std::vector<double> blocks(layers + 2, 1.0);
      blocks.front() = blocks.back() = 0;
      const auto split = balance_layers(blocks, stages);
      ASSERT_EQ(split.size(), static_cast<std::size_t>(stages));
      ASSERT_EQ(std::accumulate(split.begin(), split.end(), 0), layers);
      const auto [least, most] = std::minmax_element(split.begin(), split.end());
      ASSERT_GE(*least, 1);
      ASSERT_LE(*most - *least, 1) << layers << " layers, " << stages << " stages";
    }
  }
}

TEST(Balance, EmbeddingAndHeadCount) {
  // Without ends: 3,3,3. The head costs two layers and the embedding one: 3,4,2 takes 4 a stage.
  EXPECT_EQ(balance_layers({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2}, 3), (std::vector<int>{3, 4, 2}));
  // A cost that has no exact binary form must not disturb ties.
  EXPECT_EQ(balance_layers({0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0}, 3), (std::vector<int>{2, 2, 2}));
  // 30 layers on 4 stages: none is dropped.
  std::vector<double> thirty(32, 1.0);
  thirty.front() = thirty.back() = 0;
  EXPECT_EQ(balance_layers(thirty, 4), (std::vector<int>{7, 7, 8, 8}));
}

TEST(Balance, RefusesMoreStagesThanLayers) {
  try {
    balance_layers({1, 1, 1, 1}, 3);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    EXPECT_STREQ(error.what(), "2 layers cannot fill 3 pipeline stages: each has at least one");
  }
  EXPECT_THROW(balance_layers({1, 1, 1}, 0), Error);
}

}  // namespace
}  // namespace cuboid
