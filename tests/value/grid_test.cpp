// Laws of the process grid, for random degrees and axis orders.
#include "cuboid/value/grid.h"

#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace cuboid {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string join_axes(const std::vector<Axis>& axes) {
  std::string text;
  for (Axis axis : axes) text += (text.empty() ? "" : "-") + std::string(name_of(axis));
  return text;
}

// Any grid of up to 4^5 ranks in any axis order.
Grid any_grid() {
  AxisValues degrees;
  for (Axis axis : kAxes) degrees[axis] = *rc::gen::inRange(1, 5);
  std::vector<Axis> order(kAxes.begin(), kAxes.end());
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[*rc::gen::inRange<std::size_t>(0, i)]);
  }
  return Grid(degrees, join_axes(order));
}

TEST(Grid, RankToCoordinateToRankIsTheIdentity) {
  EXPECT_TRUE(rc::check([] {
    const Grid grid = any_grid();
    std::set<std::array<int, kAxisCount>> seen;
    for (int rank = 0; rank < grid.world(); ++rank) {
      const Coordinate c = grid.coordinate(rank);
      for (Axis axis : kAxes) RC_ASSERT(c[axis] >= 0 && c[axis] < grid.degree(axis));
      RC_ASSERT(grid.rank(c) == rank);
      RC_ASSERT(seen.insert(c.values).second);
    }
    RC_ASSERT(Grid(grid.degrees(), grid.order()) == grid);
  }));
}

TEST(Grid, EveryOrderOfUnequalDegrees) {
  const AxisValues degrees{{2, 3, 1, 4, 5}};
  std::vector<Axis> order(kAxes.begin(), kAxes.end());
  int orders = 0;
  do {
    const Grid grid(degrees, join_axes(order));
    EXPECT_EQ(grid.world(), 120);
    for (int rank = 0; rank < grid.world(); ++rank) ASSERT_EQ(grid.rank(grid.coordinate(rank)), rank);
    ++orders;
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(orders, 120);
}

TEST(Grid, GroupsOfAnAxisPartitionTheWorld) {
  EXPECT_TRUE(rc::check([] {
    const Grid grid = any_grid();
    for (Axis axis : kAxes) {
      const auto groups = grid.groups(axis);
      RC_ASSERT(static_cast<int>(groups.size()) * grid.degree(axis) == grid.world());
      std::set<int> members;
      for (std::size_t g = 0; g < groups.size(); ++g) {
        RC_ASSERT(static_cast<int>(groups[g].size()) == grid.degree(axis));
        for (std::size_t i = 0; i < groups[g].size(); ++i) {
          const int rank = groups[g][i];
          RC_ASSERT(members.insert(rank).second);
          RC_ASSERT(grid.group(axis, rank) == groups[g]);
          RC_ASSERT(grid.group_index(axis, rank) == static_cast<int>(g));
          RC_ASSERT(grid.coordinate(rank)[axis] == static_cast<int>(i));
        }
      }
      RC_ASSERT(static_cast<int>(members.size()) == grid.world());
    }
  }));
}

TEST(Grid, MembersOfAGroupDifferInItsAxisOnly) {
  EXPECT_TRUE(rc::check([] {
    const Grid grid = any_grid();
    const int rank = *rc::gen::inRange(0, grid.world());
    const Coordinate own = grid.coordinate(rank);
    for (Axis axis : kAxes) {
      for (int other : grid.group(axis, rank)) {
        Coordinate c = grid.coordinate(other);
        c[axis] = own[axis];
        RC_ASSERT(c == own);
      }
    }
  }));
}

TEST(Grid, GroupsOfTwoAxesMeetInOneRankOrNone) {
  EXPECT_TRUE(rc::check([] {
    const Grid grid = any_grid();
    const int a = *rc::gen::inRange(0, grid.world());
    const int b = *rc::gen::inRange(0, grid.world());
    for (Axis first : kAxes) {
      for (Axis second : kAxes) {
        if (first == second) continue;
        const auto of_a = grid.group(first, a);
        const auto of_b = grid.group(second, b);
        std::vector<int> shared;
        std::set_intersection(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), std::back_inserter(shared));
        // They meet exactly when a and b agree in every other axis.
        bool meet = true;
        for (Axis axis : kAxes) {
          if (axis != first && axis != second) meet &= grid.coordinate(a)[axis] == grid.coordinate(b)[axis];
        }
        RC_ASSERT(shared.size() == (meet ? 1U : 0U));
        if (a == b) RC_ASSERT(shared == std::vector<int>{a});
      }
    }
  }));
}

TEST(Grid, FirstAxisOfTheOrderIsFastest) {
  const Grid grid({{2, 1, 1, 3, 4}}, Grid::kDefaultOrder);
  EXPECT_THAT(grid.group(Axis::tp, 7), ElementsAre(6, 7));
  EXPECT_THAT(grid.group(Axis::dp, 7), ElementsAre(7, 9, 11));
  EXPECT_THAT(grid.group(Axis::pp, 7), ElementsAre(1, 7, 13, 19));
  const Grid turned({{2, 1, 1, 3, 4}}, "pp-dp-tp");
  EXPECT_EQ(turned.order(), "pp-dp-tp-cp-ep");
  EXPECT_THAT(turned.group(Axis::pp, 7), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(turned.group(Axis::dp, 7), ElementsAre(3, 7, 11));
  EXPECT_THAT(turned.group(Axis::tp, 7), ElementsAre(7, 19));
  EXPECT_NE(grid, turned);
}

TEST(Grid, OneRank) {
  const Grid grid;
  EXPECT_EQ(grid.world(), 1);
  EXPECT_EQ(grid.order(), "tp-cp-ep-dp-pp");
  for (Axis axis : kAxes) EXPECT_THAT(grid.group(axis, 0), ElementsAre(0));
}

std::string refusal(const AxisValues& degrees, std::string_view order) {
  try {
    const Grid grid(degrees, order);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    return error.what();
  }
  return "accepted";
}

TEST(Grid, BadRequestsNameAllReasons) {
  const std::string all = refusal({{0, 1, 2, -3, 1}}, "tp-tp-xx-dp-pp");
  EXPECT_THAT(all, HasSubstr("--tp 0: a degree is at least 1"));
  EXPECT_THAT(all, HasSubstr("--dp -3: a degree is at least 1"));
  EXPECT_THAT(all, HasSubstr("axis tp is named twice"));
  EXPECT_THAT(all, HasSubstr("'xx' is not an axis; the axes are tp, cp, ep, dp, pp"));
  EXPECT_THAT(all, HasSubstr("axis ep is missing but --ep is 2"));
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 4);
}

TEST(Grid, RefusesOrdersAndSizes) {
  EXPECT_THAT(refusal({{1, 1, 1, 1, 1}}, ""), HasSubstr("'' is not an axis"));
  EXPECT_THAT(refusal({{1, 1, 1, 1, 1}}, "tp-"), HasSubstr("'' is not an axis"));
  EXPECT_THAT(refusal({{1, 1, 1, 1, 1}}, "TP-dp"), HasSubstr("'TP' is not an axis"));
  // 65536² ranks overflow 32 bits, and 2^80 would overflow 64.
  EXPECT_THAT(refusal({{65536, 1, 1, 65536, 1}}, "tp-dp"), HasSubstr("exceeds 2147483647 ranks"));
  EXPECT_THAT(refusal({{65536, 65536, 65536, 65536, 65536}}, Grid::kDefaultOrder), HasSubstr("exceeds 2147483647"));
  EXPECT_EQ(Grid({{2147483647, 1, 1, 1, 1}}, "tp").world(), 2147483647);
}

TEST(Grid, RanksAndCoordinatesOutsideAreContractViolations) {
  const Grid grid({{2, 1, 1, 3, 1}}, "tp-dp");
  EXPECT_THROW(grid.coordinate(6), std::logic_error);
  EXPECT_THROW(grid.coordinate(-1), std::logic_error);
  EXPECT_THROW(grid.rank({{2, 0, 0, 0, 0}}), std::logic_error);
  EXPECT_THROW(grid.rank({{0, 0, 0, -1, 0}}), std::logic_error);
}

}  // namespace
}  // namespace cuboid
