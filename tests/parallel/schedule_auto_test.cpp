#include <algorithm>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuboid/core/error.h"
#include "cuboid/core/random.h"
#include "cuboid/parallel/pipeline/auto_schedule.h"
#include "cuboid/parallel/pipeline/generators.h"
#include "cuboid/parallel/pipeline/verify.h"

namespace cuboid {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Reproducible numbers in [0, n).
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : seed_(seed) {}
  int below(int n) { return static_cast<int>(philox(seed_, next_++, 0, 0, 0).x[0] % static_cast<std::uint32_t>(n)); }
  // 0.50 to 1.49.
  double cost() { return 0.5 + 0.01 * below(100); }

 private:
  std::uint64_t seed_;
  std::uint32_t next_ = 0;
};

double fastest_named(const AutoRequest& request) {
  double best = std::numeric_limits<double>::infinity();
  for (const std::string& name : schedule_names()) {
    try {
      const Schedule schedule = make_schedule({name, request.ranks, request.micro_batches, request.virtual_stages});
      const auto peaks = peak_activations(schedule);
      if (request.max_activations && *std::max_element(peaks.begin(), peaks.end()) > *request.max_activations) continue;
      best = std::min(best, simulate(schedule, request.costs).makespan);
    } catch (const Error&) {  // not defined for these sizes
    }
  }
  return best;
}

void expect_sound(const AutoRequest& request, const AutoSchedule& found) {
  EXPECT_EQ(found.schedule.stages, request.ranks * request.virtual_stages);
  EXPECT_EQ(found.schedule.micro_batches, request.micro_batches);
  EXPECT_THAT(verify(found.schedule), IsEmpty());
  EXPECT_EQ(simulate(found.schedule, request.costs).makespan, found.makespan);
  const double named = fastest_named(request);
  EXPECT_LE(found.makespan, named);
  if (named < std::numeric_limits<double>::infinity()) {
    EXPECT_EQ(found.best_named_makespan, named);
  } else {
    EXPECT_EQ(found.best_named, "");
  }
  EXPECT_LE(found.lower_bound, found.makespan * (1 + 1e-12));
  EXPECT_GT(found.lower_bound, 0);
  if (request.max_activations) {
    const auto peaks = peak_activations(found.schedule);
    EXPECT_LE(*std::max_element(peaks.begin(), peaks.end()), *request.max_activations);
  }
}

TEST(Auto, NeverWorseThanTheBestNamedIn500CostSets) {
  Draw draw(1);
  int better = 0;
  double over_bound = 0;
  int uncapped = 0;
  for (int set = 0; set < 500; ++set) {
    SCOPED_TRACE(testing::Message() << "set " << set);
    AutoRequest request;
    request.ranks = 1 + draw.below(8);
    request.micro_batches = 1 + draw.below(32);
    request.virtual_stages = 1 + (set % 4 == 0 ? draw.below(3) : 0);
    request.rounds = 8;
    request.costs.transfer = 0.1 * draw.below(3);
    const bool equal = set % 3 == 0;  // but for one slow stage, and embedding and head
    request.costs.stages.clear();
    for (int stage = 0; stage < request.ranks * request.virtual_stages; ++stage) {
      const double f = equal ? 1 : draw.cost();
      const double i = equal ? 1 : draw.cost();
      const double w = equal ? 1 : draw.cost();
      request.costs.stages.push_back({f, (i + w) * (draw.below(2) == 0 ? 1 : 0.9), i, w});
    }
    const auto scale = [](StageCosts& c, double by) {
      c = {c.forward * by, c.backward * by, c.input_gradient * by, c.weight_gradient * by};
    };
    if (set % 2 == 0) scale(request.costs.stages[draw.below(static_cast<int>(request.costs.stages.size()))], 2);
    if (set % 5 == 0) {
      scale(request.costs.stages.front(), 1.2);
      scale(request.costs.stages.back(), 1.7);
    }
    const int v = request.virtual_stages;
    if (draw.below(2) == 0) request.max_activations = v * (1 + draw.below(request.ranks + 2));
    const AutoSchedule found = find_schedule(request);
    expect_sound(request, found);
    better += !found.best_named.empty() && found.makespan < found.best_named_makespan;
    if (!request.max_activations) {
      over_bound += found.makespan / found.lower_bound - 1;
      ++uncapped;
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(better, 100);                  // others are at the bound, or no named one fits
  EXPECT_LT(over_bound / uncapped, 0.03);  // and without a cap close to what is possible at all
}

TEST(Auto, EqualStagesGiveTheNamedOptimum) {
  AutoRequest request;
  request.ranks = 4;
  request.micro_batches = 12;
  AutoSchedule found = find_schedule(request);
  EXPECT_EQ(found.best_named, "zb-h1");
  EXPECT_EQ(found.origin, "zb-h1");
  EXPECT_EQ(found.makespan, 12 * 3 + 3);
  EXPECT_EQ(found.lower_bound, found.makespan);
  EXPECT_EQ(found.schedule.name, "auto");
  // W of rank 0 stands right behind its I there: that is a B.
  EXPECT_EQ(to_string(found.schedule.rows[0].back()), "0B11");
}

TEST(Auto, UnequalStagesAreBetterThanNamed) {
  AutoRequest request;
  request.ranks = 4;
  request.micro_batches = 8;
  request.virtual_stages = 2;
  request.costs.stages.assign(8, {1, 2, 1, 1});
  request.costs.stages.front() = {1.2, 2.5, 1.2, 1.3};
  request.costs.stages.back() = {1.8, 3.5, 1.8, 1.7};
  const AutoSchedule found = find_schedule(request);
  EXPECT_LT(found.makespan, 0.98 * found.best_named_makespan);
  EXPECT_LT(found.makespan, 1.01 * found.lower_bound);
}

TEST(Auto, CapThatNoNamedScheduleKeeps) {
  AutoRequest request;
  request.ranks = 6;
  request.micro_batches = 9;
  request.max_activations = 2;
  const AutoSchedule found = find_schedule(request);
  EXPECT_EQ(found.best_named, "");
  expect_sound(request, found);
  request.virtual_stages = 3;
  request.max_activations = 3;  // one micro-batch at a time
  expect_sound(request, find_schedule(request));
}

TEST(Auto, EqualRequestsGiveEqualSchedules) {
  AutoRequest request;
  request.ranks = 3;
  request.micro_batches = 7;
  request.costs.stages = {{1, 2.1, 1, 1.1}, {1.3, 2.2, 1.1, 1.1}, {0.9, 3, 1.4, 1.6}};
  request.max_activations = 2;
  EXPECT_EQ(find_schedule(request).schedule, find_schedule(request).schedule);
}

TEST(Auto, Refusals) {
  AutoRequest request;
  request.ranks = 0;
  request.micro_batches = 0;
  request.virtual_stages = 3;
  request.max_activations = 2;
  try {
    find_schedule(request);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--pp 0"));
    EXPECT_THAT(error.what(), HasSubstr("0 micro-batches"));
    EXPECT_THAT(error.what(), HasSubstr("a cap of 2 activations: with 3 stages a rank, one micro-batch holds 3"));
  }
}

// All rows of a rank that keep F, I and W ascending and F before I before W.
void all_rows(int stage, int m, int f, int i, int w, std::vector<Action>& row, std::vector<std::vector<Action>>& rows) {
  if (w == m) {
    rows.push_back(row);
    return;
  }
  const auto with = [&](ActionKind kind, int k, int df, int di, int dw) {
    row.push_back({kind, stage, k});
    all_rows(stage, m, f + df, i + di, w + dw, row, rows);
    row.pop_back();
  };
  if (f < m) with(ActionKind::forward, f, 1, 0, 0);
  if (i < f) with(ActionKind::input_gradient, i, 0, 1, 0);
  if (w < i) with(ActionKind::weight_gradient, w, 0, 0, 1);
}

TEST(Auto, EqualsTheOptimumOfTinyPipelines) {
  Draw draw(7);
  for (int set = 0; set < 12; ++set) {
    SCOPED_TRACE(testing::Message() << "set " << set);
    AutoRequest request;
    request.ranks = 2;
    request.micro_batches = 3;
    request.costs.transfer = 0.25 * draw.below(2);
    request.costs.stages.clear();
    for (int stage = 0; stage < 2; ++stage) {
      const double i = draw.cost();
      const double w = draw.cost();
      request.costs.stages.push_back({draw.cost(), i + w, i, w});
    }
    if (set % 3 == 0) request.max_activations = 1;
    std::vector<std::vector<Action>> first, second;
    std::vector<Action> row;
    all_rows(0, 3, 0, 0, 0, row, first);
    all_rows(1, 3, 0, 0, 0, row, second);
    double optimum = std::numeric_limits<double>::infinity();
    VerifyOptions options;
    options.max_activations = request.max_activations;
    for (const auto& a : first) {
      for (const auto& b : second) {
        const Schedule schedule{"", 2, 3, {a, b}};
        if (!verify(schedule, options).empty()) continue;
        optimum = std::min(optimum, simulate(schedule, request.costs).makespan);
      }
    }
    const AutoSchedule found = find_schedule(request);
    EXPECT_NEAR(found.makespan, optimum, 1e-9);
    EXPECT_LE(found.lower_bound, optimum + 1e-9);
  }
}

}  // namespace
}  // namespace cuboid
