#include "cuboid/value/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cuboid {
namespace {

TEST(Action, CellNotation) {
  EXPECT_EQ(to_string({ActionKind::forward, 0, 0}), "0F0");
  EXPECT_EQ(to_string({ActionKind::backward, 12, 7}), "12B7");
  EXPECT_EQ(to_string({ActionKind::input_gradient, 1, 2}), "1I2");
  EXPECT_EQ(to_string({ActionKind::weight_gradient, 1, 2}), "1W2");
  EXPECT_EQ(to_string({ActionKind::send_forward, 1, 3}), "1SEND_F3");
  EXPECT_EQ(to_string({ActionKind::recv_forward, 2, 3}), "2RECV_F3");
  EXPECT_EQ(to_string({ActionKind::send_backward, 2, 3}), "2SEND_B3");
  EXPECT_EQ(to_string({ActionKind::recv_backward, 1, 3}), "1RECV_B3");
  EXPECT_EQ(to_string({ActionKind::unshard, 4, -1}), "4UNSHARD");
  EXPECT_EQ(to_string({ActionKind::reshard, 4, -1}), "4RESHARD");
  EXPECT_EQ(to_string({ActionKind::reduce_gradient, 4, -1}), "4REDUCE_GRAD");
  EXPECT_EQ(to_string({ActionKind::step, -1, -1}), "STEP");
}

TEST(Action, Kinds) {
  int computing = 0;
  int transferring = 0;
  for (int kind = 0; kind <= static_cast<int>(ActionKind::step); ++kind) {
    computing += computes(static_cast<ActionKind>(kind));
    transferring += transfers(static_cast<ActionKind>(kind));
  }
  EXPECT_EQ(computing, 4);
  EXPECT_EQ(transferring, 4);
  EXPECT_TRUE(makes_weight_gradient(ActionKind::backward) && makes_weight_gradient(ActionKind::weight_gradient));
  EXPECT_TRUE(makes_input_gradient(ActionKind::backward) && makes_input_gradient(ActionKind::input_gradient));
  EXPECT_FALSE(makes_weight_gradient(ActionKind::input_gradient) || makes_input_gradient(ActionKind::weight_gradient));
}

TEST(Schedule, RankOfStageReadsTheRows) {
  // V placement; stage 2 is missing; a transfer makes no owner.
  Schedule schedule{"v",
                    4,
                    1,
                    {{{ActionKind::forward, 0, 0}, {ActionKind::forward, 3, 0}},
                     {{ActionKind::recv_forward, 2, 0}, {ActionKind::forward, 1, 0}}}};
  EXPECT_EQ(schedule.ranks(), 2);
  EXPECT_THAT(schedule.rank_of_stage(), testing::ElementsAre(0, 1, -1, 0));
}

}  // namespace
}  // namespace cuboid
