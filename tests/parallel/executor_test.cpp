// The executor: walks rows of schedules on a stage that computes nothing but checks what it is given.
#include "cuboid/parallel/pipeline/executor.h"

#include <thread>

#include "cuboid/comm/ranks.h"
#include "cuboid/parallel/pipeline/generators.h"
#include "cuboid/parallel/pipeline/passes.h"
#include "cuboid/value/schedule_csv.h"

#include "tensors.h"

namespace cuboid {
namespace {

const Shape kBoundary = {2, 3};

/// Sends messages that say where they come from, and notes what it is asked to do.
class FakeStage final : public Stage {
 public:
  FakeStage(const Device& device, int stage, int stages) : device_(device), stage_(stage), stages_(stages) {}

  Tensor forward(int micro_batch, Tensor input) override {
    note(ActionKind::forward, micro_batch);
    expect_message(input, stage_ > 0, micro_batch, stage_ - 1);
    return stage_ + 1 < stages_ ? message(micro_batch, stage_) : Tensor();
  }
  Tensor backward(int micro_batch, Tensor gradient) override {
    note(ActionKind::backward, micro_batch);
    return gradient_of_input(micro_batch, gradient);
  }
  Tensor input_gradient(int micro_batch, Tensor gradient) override {
    note(ActionKind::input_gradient, micro_batch);
    return gradient_of_input(micro_batch, gradient);
  }
  void weight_gradient(int micro_batch) override { note(ActionKind::weight_gradient, micro_batch); }
  void reduce_gradient() override { note(ActionKind::reduce_gradient, -1); }
  void unshard() override {}
  void reshard() override {}

  void note(ActionKind kind, int micro_batch) { calls.push_back({kind, stage_, micro_batch}); }
  std::vector<Action> calls;

 private:
  Tensor message(int micro_batch, int from) const {
    return test::tensor_of(device_, kBoundary, test::Values(6, 100.0 * micro_batch + from), DType::float32);
  }
  static void expect_message(const Tensor& message, bool expected, int micro_batch, int from) {
    ASSERT_EQ(message.defined(), expected);
    if (!expected) return;
    EXPECT_EQ(message.shape(), kBoundary);
    for (const double v : test::values_of(message)) EXPECT_EQ(v, 100.0 * micro_batch + from);
  }
  Tensor gradient_of_input(int micro_batch, const Tensor& gradient) const {
    expect_message(gradient, stage_ + 1 < stages_, micro_batch, stage_ + 1);
    return stage_ > 0 ? message(micro_batch, stage_) : Tensor();
  }

  Device device_;
  int stage_;
  int stages_;
};

Schedule lowered(const Schedule& compute) {
  return add_step(add_reduction(add_transfers(compute)));
}

/// Runs the schedule and expects each stage to be called as its rank's row says, `runs` times over.
void expect_row_is_walked(const Schedule& schedule, int runs = 1) {
  const std::vector<int> rank_of_stage = schedule.rank_of_stage();
  run_ranks(schedule.ranks(), [&](RankContext& context) {
    StageChannels channels(*context.world, rank_of_stage);
    std::map<int, std::unique_ptr<FakeStage>> stages;
    std::map<int, Stage*> pointers;
    for (int s = 0; s < schedule.stages; ++s) {
      if (rank_of_stage[static_cast<std::size_t>(s)] != context.rank) continue;
      stages[s] = std::make_unique<FakeStage>(context.device, s, schedule.stages);
      pointers[s] = stages[s].get();
    }
    Executor executor(schedule, context.rank, pointers, &channels, kBoundary, DType::float32);
    for (int run = 0; run < runs; ++run) {
      for (auto& [number, stage] : stages) stage->calls.clear();
      int steps = 0;
      executor.run([&] {
        ++steps;
        for (auto& [number, stage] : stages) EXPECT_EQ(stage->calls.back().kind, ActionKind::reduce_gradient);
      });
      EXPECT_EQ(steps, 1);
      for (const auto& [number, stage] : stages) {
        std::vector<Action> expected;
        for (Action a : schedule.rows[static_cast<std::size_t>(context.rank)]) {
          a.overlapped = false;
          const bool called = computes(a.kind) || a.kind == ActionKind::reduce_gradient;
          if (called && a.stage == number) expected.push_back(a);
        }
        EXPECT_EQ(stage->calls, expected) << schedule.name << ", stage " << number;
      }
    }
  });
}

TEST(Executor, WalksEveryRowOfEverySchedule) {
  for (const std::string& name : schedule_names()) {
    for (const int ranks : {1, 2, 4}) {
      for (const int micro_batches : {1, 5, 9}) {  // also fewer micro-batches than ranks
        if (name == "dualpipe-v" && micro_batches < 2 * ranks) continue;
        expect_row_is_walked(lowered(make_schedule({.name = name, .ranks = ranks, .micro_batches = micro_batches})), 2);
      }
    }
  }
}

TEST(Executor, RunsInputAndWeightGradientsApart) {
  Schedule split = make_schedule({.name = "1f1b", .ranks = 3, .micro_batches = 4});
  for (auto& row : split.rows) {
    std::vector<Action> actions;
    for (const Action& a : row) {
      if (a.kind != ActionKind::backward) {
        actions.push_back(a);
        continue;
      }
      actions.push_back({ActionKind::input_gradient, a.stage, a.micro_batch});
      // The last two weight gradients wait until the end.
      if (a.micro_batch < 2) actions.push_back({ActionKind::weight_gradient, a.stage, a.micro_batch});
    }
    const int stage = row.front().stage;
    for (const int m : {2, 3}) actions.push_back({ActionKind::weight_gradient, stage, m});
    row = std::move(actions);
  }
  expect_row_is_walked(lowered(split));
}

TEST(Executor, HandsOverBetweenStagesOfOneRankWithoutATransfer) {
  const auto read =
      read_schedule_csv(std::string(CUBOID_TEST_DATA) + "/cases/sched/ok-vshape-pp2-4stages-mb2.csv").schedule;
  EXPECT_EQ(read.rank_of_stage(), (std::vector<int>{0, 1, 1, 0}));
  expect_row_is_walked(lowered(read));
}

TEST(Executor, SpansCoverTheRowInOrder) {
  const Schedule schedule = lowered(make_schedule({.name = "1f1b", .ranks = 2, .micro_batches = 3}));
  run_ranks(2, [&](RankContext& context) {
    StageChannels channels(*context.world, {0, 1});
    FakeStage stage(context.device, context.rank, 2);
    Executor executor(schedule, context.rank, {{context.rank, &stage}}, &channels, kBoundary, DType::float32);
    executor.run([] {});
    double before = 0;
    std::vector<Action> spans;
    for (const Span& span : executor.spans()) {
      EXPECT_GE(span.begin, before);
      EXPECT_GE(span.end, span.begin);
      before = span.end;
      spans.push_back(span.action);
    }
    // A RECV's span is its wait, so it stands before the action that needs the message.
    std::vector<Action> expected;
    for (const Action& a : schedule.rows[static_cast<std::size_t>(context.rank)]) {
      if (a.kind == ActionKind::recv_forward || a.kind == ActionKind::recv_backward) continue;
      if (a.kind == ActionKind::forward && a.stage == 1) {
        expected.push_back({ActionKind::recv_forward, a.stage, a.micro_batch});
      }
      if (a.kind == ActionKind::backward && a.stage == 0) {
        expected.push_back({ActionKind::recv_backward, a.stage, a.micro_batch});
      }
      expected.push_back(a);
    }
    EXPECT_EQ(spans, expected);
  });
}

TEST(Executor, AStageThatFailsEndsTheRunAndIsNamed) {
  class Failing final : public Stage {
   public:
    Tensor forward(int, Tensor) override { throw Error(ErrorKind::failed, "no more disk"); }
    Tensor backward(int, Tensor) override { return {}; }
    Tensor input_gradient(int, Tensor) override { return {}; }
    void weight_gradient(int) override {}
    void reduce_gradient() override {}
    void unshard() override {}
    void reshard() override {}
  };
  const Schedule schedule = lowered(make_schedule({.name = "gpipe", .ranks = 3, .micro_batches = 2}));
  try {
    run_ranks(3, [&](RankContext& context) {
      StageChannels channels(*context.world, {0, 1, 2});
      FakeStage works(context.device, context.rank, 3);
      Failing fails;
      Stage* stage = &works;
      if (context.rank == 1) stage = &fails;
      Executor executor(schedule, context.rank, {{context.rank, stage}}, &channels, kBoundary, DType::float32);
      executor.run([] {});
    });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failed);
    EXPECT_STREQ(error.what(), "rank 1: no more disk");
  }
}

TEST(Executor, ADeadlineNamesTheActionThatWaited) {
  const Schedule schedule = lowered(make_schedule({.name = "1f1b", .ranks = 2, .micro_batches = 1}));
  try {
    run_ranks(
        2,
        [&](RankContext& context) {
          StageChannels channels(*context.world, {0, 1});
          FakeStage stage(context.device, context.rank, 2);
          Executor executor(schedule, context.rank, {{context.rank, &stage}}, &channels, kBoundary, DType::float32);
          // Rank 0 is busy with something else until long after rank 1 has lost patience.
          if (context.rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(800));
          executor.run([] {});
        },
        {.deadline = 0.2});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::deadline);
    EXPECT_TRUE(std::string(error.what()).starts_with("rank 1: ")) << error.what();
    EXPECT_NE(std::string(error.what()).find("pipeline rank 1, action 1F0"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace cuboid
