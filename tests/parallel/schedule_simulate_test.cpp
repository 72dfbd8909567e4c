#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuboid/core/error.h"
#include "cuboid/parallel/pipeline/generators.h"
#include "cuboid/parallel/pipeline/passes.h"
#include "cuboid/parallel/pipeline/simulate.h"
#include "cuboid/parallel/pipeline/verify.h"
#include "cuboid/value/schedule_csv.h"

namespace cuboid {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Schedule file(const char* name) {
  return read_schedule_csv(std::string(CUBOID_TEST_DATA "/cases/sched/") + name).schedule;
}

std::vector<std::string> texts(const std::vector<Finding>& findings) {
  std::vector<std::string> all;
  for (const Finding& finding : findings) all.push_back(finding.text);
  return all;
}

TEST(Simulate, GoodFiles) {
  const Simulation gpipe = simulate(file("ok-gpipe-pp2-mb3.csv"));
  EXPECT_EQ(gpipe.makespan, 12);
  EXPECT_THAT(gpipe.idle, ElementsAre(3, 3));
  EXPECT_THAT(gpipe.peak_activations, ElementsAre(3, 3));
  EXPECT_EQ(gpipe.bubble_fraction, 0.25);
  const Simulation pairs = simulate(file("ok-1f1b-pp4-mb8.csv"));
  EXPECT_EQ(pairs.makespan, 33);
  EXPECT_THAT(pairs.idle, Each(9));
  EXPECT_THAT(pairs.peak_activations, ElementsAre(4, 3, 2, 1));
  const Simulation vshape = simulate(file("ok-vshape-pp2-4stages-mb2.csv"));
  EXPECT_EQ(vshape.makespan, 16);
  for (const char* name : {"ok-gpipe-pp2-mb3.csv", "ok-1f1b-pp4-mb8.csv", "ok-vshape-pp2-4stages-mb2.csv"}) {
    EXPECT_THAT(verify(file(name)), IsEmpty()) << name;
    EXPECT_THAT(verify(add_transfers(file(name))), IsEmpty()) << name;
  }
}

TEST(Simulate, BadFiles) {
  EXPECT_THAT(texts(verify(file("bad-deadlock-order.csv"))), Contains(HasSubstr("rank 0 waits at 0B0, rank 1 at 1F1")));
  EXPECT_THAT(texts(verify(file("bad-missing-backward.csv"))), Contains(HasSubstr("rank 1: 1B1 is missing")));
  EXPECT_THAT(
      texts(verify(file("bad-full-b-and-w.csv"))),
      Contains(HasSubstr("0W0 stands beside the full backward 0B0: B is the whole backward and already contains "
                         "W; in files of 2024 B meant the input gradient only")));
  for (const char* name : {"bad-deadlock-order.csv", "bad-missing-backward.csv"}) {
    EXPECT_THROW(simulate(file(name)), Error) << name;
  }
}

TEST(Simulate, OfTheDialectOf2024) {
  const auto read = read_schedule_csv(CUBOID_TEST_DATA "/cases/sched/bad-full-b-and-w.csv", CsvDialect::of_2024);
  EXPECT_THAT(verify(read.schedule), IsEmpty());
  EXPECT_EQ(simulate(read.schedule).makespan, 8);  // rank 1 ends at 7, its last I at 6; then I and W of rank 0
}

TEST(Simulate, SplitBackwardWithBlanks) {
  // Input and weight gradients apart, pp=2, 3 micro-batches: the last rank's W's wait until the I's are sent.
  const auto schedule =
      parse_schedule_csv("0F0, 0F1, 0I0, 0W0, 0F2, 0I1, 0W1, 0I2, 0W2\n 1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2 \n",
                         "x.csv")
          .schedule;
  EXPECT_EQ(simulate(schedule).makespan, 10);
}

TEST(Simulate, UnequalStages) {
  // F 1 and 3, B 2 and 5: rank 1 computes (3+5)·2 = 16 after 1, and rank 0 ends 2 later.
  PipelineCosts costs;
  costs.stages = {{1, 2, 1, 1}, {3, 5, 2, 3}};
  const Simulation run = simulate(make_schedule({"1f1b", 2, 2}), costs);
  EXPECT_EQ(run.makespan, 19);
  EXPECT_THAT(run.busy, ElementsAre(6, 16));
  EXPECT_THAT(run.idle, ElementsAre(13, 3));
  EXPECT_THAT(run.idle_in_span, ElementsAre(13, 0));
  EXPECT_DOUBLE_EQ(run.bubble_fraction, 16.0 / 38);
}

TEST(Simulate, TransfersTakeTimeBetweenRanksOnly) {
  PipelineCosts costs;
  costs.transfer = 0.5;
  // F, transfer, F, B, transfer, B.
  EXPECT_EQ(simulate(make_schedule({"gpipe", 2, 1}), costs).makespan, 7);
  // V of two ranks: 0→1, 1→2 local, 2→3, and back: four transfers.
  EXPECT_EQ(simulate(parse_schedule_csv("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0", "x").schedule, costs).makespan, 14);
  // The same, lowered.
  EXPECT_EQ(simulate(add_transfers(make_schedule({"gpipe", 2, 1})), costs).makespan, 7);
}

// Two ranks on one core: whatever waits, the other computes, so nothing is idle and the work of both adds up.
TEST(Simulate, RanksShareCores) {
  const Schedule schedule = make_schedule({"1f1b", 2, 5, 1});
  PipelineCosts costs;
  costs.stages = {{.forward = 1, .backward = 2}, {.forward = 1.5, .backward = 2.5}};
  const double alone = simulate(schedule, costs).makespan;
  EXPECT_GT(alone, 5 * 4.0);
  costs.at_once = 2;
  EXPECT_EQ(simulate(schedule, costs).makespan, alone);
  costs.at_once = 1;
  const Simulation shared = simulate(schedule, costs);
  EXPECT_NEAR(shared.makespan, 5 * (3 + 4), 1e-12);
  EXPECT_EQ(shared.spans[0].size(), schedule.rows[0].size());
  costs.at_once = 1.5;  // a core and a half: slower than two, faster than one
  EXPECT_GT(simulate(schedule, costs).makespan, alone);
  EXPECT_LT(simulate(schedule, costs).makespan, shared.makespan);
}

TEST(Simulate, OverlappedPairs) {
  PipelineCosts costs;
  costs.overlap = 0.8;
  const auto schedule = parse_schedule_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1", "x").schedule;
  const Simulation run = simulate(schedule, costs);
  EXPECT_DOUBLE_EQ(run.makespan, 1 + 0.8 * 3 + 2);
  EXPECT_DOUBLE_EQ(run.spans[0][1].begin, run.spans[0][2].begin);
  EXPECT_DOUBLE_EQ(run.spans[0][1].end, run.spans[0][2].end);
  EXPECT_DOUBLE_EQ(run.idle[0], 0);
}

TEST(Simulate, MemoryFreedInTwoParts) {
  // F +34, I -10, W -24: back to zero at the end, never below; the peak in units of 34.
  PipelineCosts costs;
  costs.freed_by_input_gradient = 10.0 / 34;
  const auto schedule = parse_schedule_csv("0F0,0F1,0I0,0F2,0I1,0W0,0I2,0W1,0W2", "x").schedule;
  EXPECT_DOUBLE_EQ(simulate(schedule, costs).peak_activations[0], 3 - 10.0 / 34);
  EXPECT_EQ(simulate(schedule).peak_activations[0], 3);
}

TEST(Simulate, SpansFollowTheRow) {
  const Schedule schedule = add_step(add_transfers(make_schedule({"1f1b", 2, 3})));
  const Simulation run = simulate(schedule);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(run.spans[rank].size(), schedule.rows[rank].size());
    for (std::size_t i = 0; i < run.spans[rank].size(); ++i) {
      EXPECT_EQ(run.spans[rank][i].action, schedule.rows[rank][i]);
    }
  }
  EXPECT_THROW(simulate(schedule, {{StageCosts{}, StageCosts{}, StageCosts{}}}), std::logic_error);
}

}  // namespace
}  // namespace cuboid
