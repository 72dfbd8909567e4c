// Every generator against the published formulas, and properties of all of them.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "cuboid/core/error.h"
#include "cuboid/parallel/pipeline/generators.h"
#include "cuboid/parallel/pipeline/passes.h"
#include "cuboid/parallel/pipeline/simulate.h"
#include "cuboid/parallel/pipeline/verify.h"
#include "cuboid/value/schedule_csv.h"

namespace cuboid {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Times of a rank's whole share of the layers; a stage of v a rank costs 1/v of them.
struct Times {
  double f, i, w;
  double b() const { return i + w; }
};
constexpr Times kEqual = {1, 1, 1};
constexpr Times kUnequal = {4, 5, 3};

Simulation timed(const Schedule& schedule, const Times& t) {
  const double v = schedule.stages / schedule.ranks();
  PipelineCosts costs;
  costs.stages = {StageCosts{t.f / v, t.b() / v, t.i / v, t.w / v}};
  return simulate(schedule, costs);
}

// All (p, m) of the table: p 2…16, m in p, 2p, 4p, 4p+1, at both sets of times.
template <typename Check>
void for_table(const std::string& name, int virtual_stages, Check check) {
  for (int p = 2; p <= 16; ++p) {
    for (int m : {p, 2 * p, 4 * p, 4 * p + 1}) {
      if (name == "dualpipe-v" && m < 2 * p) continue;
      const Schedule schedule = make_schedule({name, p, m, virtual_stages});
      for (const Times& t : {kEqual, kUnequal}) {
        SCOPED_TRACE(testing::Message() << name << " p=" << p << " m=" << m << " f=" << t.f);
        check(p, m, t, schedule, timed(schedule, t));
      }
    }
  }
}

void expect_all(const std::vector<double>& values, double expected) {
  for (double value : values) EXPECT_NEAR(value, expected, 1e-9 * (1 + expected));
}

double largest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

TEST(Generators, GpipeTable) {
  for_table("gpipe", 1, [](int p, int m, const Times& t, const Schedule&, const Simulation& run) {
    expect_all(run.idle, (p - 1) * (t.f + t.b()));
    expect_all(run.peak_activations, m);
  });
}

TEST(Generators, OneForwardOneBackwardTable) {
  for_table("1f1b", 1, [](int p, int m, const Times& t, const Schedule&, const Simulation& run) {
    expect_all(run.idle, (p - 1) * (t.f + t.b()));
    for (int r = 0; r < p; ++r) EXPECT_EQ(run.peak_activations[r], std::min(m, p - r));
  });
}

TEST(Generators, InterleavedTable) {
  for (int v : {1, 2, 3, 5}) {
    for_table("interleaved-1f1b", v, [v](int p, int m, const Times& t, const Schedule&, const Simulation& run) {
      expect_all(run.idle, (p - 1) * (t.f + t.b()) / v);
      const int group = m / (m / p) + (m % (m / p) > 0 ? 1 : 0);  // m dealt to m/p groups
      for (int r = 0; r < p; ++r) {
        EXPECT_EQ(run.peak_activations[r], std::min(m * v, (v - 1) * group + 2 * (p - 1 - r) + 1));
      }
    });
  }
}

TEST(Generators, LoopedBreadthFirstTable) {
  for (int v : {1, 2, 3}) {
    for_table("looped-bfs", v, [v](int p, int m, const Times& t, const Schedule&, const Simulation& run) {
      expect_all(run.idle, (p - 1) * (t.f + t.b()) / v);
      expect_all(run.peak_activations, m * v);
    });
  }
}

TEST(Generators, ZeroBubbleH1Table) {
  for_table("zb-h1", 1, [](int p, int, const Times& t, const Schedule&, const Simulation& run) {
    expect_all(run.idle, (p - 1) * (t.f + t.i - t.w));
    expect_all(run.peak_activations, p);
  });
}

TEST(Generators, ZeroBubbleH2Table) {
  for_table("zb-h2", 1, [](int p, int m, const Times& t, const Schedule&, const Simulation& run) {
    if (m < 2 * p - 1) return;  // the table holds once the warm-up is full
    // The rank that waits longest in its own span; others may wait less where times differ.
    EXPECT_NEAR(largest(run.idle_in_span), (p - 1) * (t.f + t.i - 2 * t.w), 1e-9);
    expect_all(run.peak_activations, 2 * p - 1);
  });
}

TEST(Generators, ZeroBubbleVTable) {
  for_table("zb-v", 2, [](int p, int m, const Times& t, const Schedule&, const Simulation& run) {
    if (m < 2 * p - 1) return;
    // Zero holds for equal times only; the ramp of the V, (p-1)/2 of F, stays outside of a rank's own span.
    if (t.f == t.w) {
      expect_all(run.idle_in_span, 0);
      expect_all(run.idle, (p - 1) * t.f / 2);
    } else {
      EXPECT_LT(largest(run.idle), (p - 1) * (t.f + t.b()) / 2);
    }
    expect_all(run.peak_activations, 2 * p);  // p·M in stages of half a share
  });
}

TEST(Generators, VHalfAndVMinTable) {
  // "About", and for equal times: measured here, of 1F1B's bubble.
  const auto expect_idle = [](const Simulation& run, int p, const Times& t, double fraction) {
    if (t.f != t.w) return;
    EXPECT_LE(largest(run.idle), fraction * (p - 1) * (t.f + t.b()) + t.f / 2 + 1e-9);  // and a slot
  };
  for_table("v-half", 2, [&](int p, int, const Times& t, const Schedule&, const Simulation& run) {
    expect_idle(run, p, t, 0.6);
    EXPECT_LE(largest(run.peak_activations), 2 * (p / 2.0 + 1.5));
  });
  for_table("v-min", 2, [&](int p, int, const Times& t, const Schedule&, const Simulation& run) {
    expect_idle(run, p, t, 2.0 / 3);
    EXPECT_LE(largest(run.peak_activations), 2 * (p / 3.0 + 4.0 / 3));
  });
}

TEST(Generators, DualPipeVTable) {
  for_table("dualpipe-v", 2, [](int p, int, const Times& t, const Schedule&, const Simulation& run) {
    // In times of a chunk; F&B costs F + B here (overlap 1).
    const double bubble = (p - 1) * ((t.f + t.b()) + t.b() - 3 * t.w) / 2;
    if (t.f == t.w) {
      expect_all(run.idle, bubble);
    } else {  // for other times an upper bound: the pair on the turn of the V runs apart
      EXPECT_LE(largest(run.idle), bubble);
    }
    expect_all(run.peak_activations, 2 * p + 1);
  });
}

TEST(Generators, RowsByHand) {
  // By hand from the definitions.
  EXPECT_EQ(to_csv(make_schedule({"interleaved-1f1b", 2, 4, 2})),
            "0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3\n"
            "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3\n");
  EXPECT_EQ(to_csv(make_schedule({"zb-h1", 3, 4})),
            "0F0,0F1,0F2,0I0,0W0,0F3,0I1,0W1,0I2,0W2,0I3,0W3\n"
            "1F0,1F1,1I0,1F2,1I1,1W0,1F3,1I2,1W1,1I3,1W2,1W3\n"
            "2F0,2I0,2F1,2I1,2F2,2I2,2W0,2F3,2I3,2W1,2W2,2W3\n");
  EXPECT_EQ(to_csv(make_schedule({"zb-v", 2, 3})),
            "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,3F2,3I2,3W2,0I1,0W1,0I2,0W2\n"
            "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1I1,2I2,1I2,1W1,2W2,1W2\n");
  EXPECT_EQ(to_csv(make_schedule({"looped-bfs", 2, 2, 2})),
            "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n"
            "1F0,1F1,3F0,3F1,3B0,3B1,1B0,1B1\n");
  EXPECT_EQ(to_csv(make_schedule({"dualpipe-v", 2, 4})),
            "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,(3F3;0B1)OVERLAP_F_B,3B3,0I2,"
            "0W2,0I3,0W3\n"
            "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,(2F3;1B1)OVERLAP_F_B,2B2,1B2,2I3,1I3,"
            "2W3,1W3\n");
}

TEST(Generators, FewerMicroBatchesThanRanks) {
  EXPECT_EQ(to_csv(make_schedule({"1f1b", 4, 1})), "0F0,0B0\n1F0,1B0\n2F0,2B0\n3F0,3B0\n");
  EXPECT_EQ(simulate(make_schedule({"gpipe", 2, 1})).makespan, 6);
  for (const std::string& name : schedule_names()) {
    if (name == "dualpipe-v") continue;
    for (int m : {1, 2}) EXPECT_THAT(verify(make_schedule({name, 5, m})), testing::IsEmpty()) << name;
  }
}

std::string refusal(const ScheduleRequest& request) {
  try {
    make_schedule(request);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    return error.what();
  }
  return "accepted";
}

TEST(Generators, RegisteredOnesAreProvedBeforeTheyAreUsed) {
  const auto in_turn = [](const RowRequest& request) {
    std::vector<Action> row;
    for (int k = 0; k < request.micro_batches; ++k) {
      row.push_back({ActionKind::forward, request.rank, k});
      row.push_back({ActionKind::backward, request.rank, k});
    }
    return row;
  };
  register_schedule("in-turn", 1, in_turn);
  EXPECT_EQ(to_csv(make_schedule({"in-turn", 2, 2})), "0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(schedule_names().back(), "in-turn");
  EXPECT_EQ(default_virtual_stages("in-turn"), 1);
  EXPECT_THAT(refusal({"in-turn", 2, 2, 2}), HasSubstr("in-turn has 1 stage a rank"));
  EXPECT_THROW(register_schedule("in-turn", 1, in_turn), std::logic_error);
  EXPECT_THROW(register_schedule("1f1b", 1, in_turn), std::logic_error);
  register_schedule("no-last-backward", 1, [&](const RowRequest& request) {
    std::vector<Action> row = in_turn(request);
    if (request.micro_batches == 1009) row.pop_back();  // other tests may meet this schedule too
    return row;
  });
  EXPECT_THAT(refusal({"no-last-backward", 2, 1009}),
              HasSubstr("--schedule no-last-backward: rank 0: 0B1008 is missing"));
}

TEST(Generators, Refusals) {
  EXPECT_THAT(refusal({"1fb1", 2, 4}), HasSubstr("--schedule 1fb1: no such schedule; did you mean 1f1b?"));
  EXPECT_THAT(refusal({"interleaved", 2, 4}), HasSubstr("interleaved-1f1b"));
  EXPECT_EQ(refusal({"gpipe", 0, 0, 2}),
            "--pp 0: a pipeline has at least 1 rank\n"
            "0 micro-batches: a step has at least 1\n"
            "--virtual-stages 2: gpipe has 1 stage a rank");
  EXPECT_EQ(refusal({"zb-v", 2, 4, 1}), "--virtual-stages 1: zb-v has 2 stages a rank");
  EXPECT_EQ(refusal({"looped-bfs", 2, 4, -1}), "--virtual-stages -1: looped-bfs has at least 1 stage a rank");
  EXPECT_EQ(refusal({"dualpipe-v", 3, 5}), "5 micro-batches: dualpipe-v with --pp 3 needs at least 6");
  EXPECT_THAT(refusal({"1f1b", 3, 2'000'000'000}), HasSubstr("2000000000 micro-batches on 3 ranks of 1 stages"));
  EXPECT_THAT(refusal({"interleaved-1f1b", 2, 1 << 20, 4096}), HasSubstr("at most 8388608 forwards"));
  EXPECT_EQ(default_virtual_stages("zb-v"), 2);
  EXPECT_EQ(default_virtual_stages("1f1b"), 1);
  EXPECT_THROW(default_virtual_stages("none"), Error);
}

// Any schedule that can be asked for, p 1…12, m 1…40, v 1…4.
Schedule any_schedule() {
  ScheduleRequest request;
  request.name = *rc::gen::elementOf(schedule_names());
  request.ranks = *rc::gen::inRange(1, 13);
  request.micro_batches = *rc::gen::inRange(1, 41);
  const int v = default_virtual_stages(request.name);
  const bool any_v = request.name == "interleaved-1f1b" || request.name == "looped-bfs";
  request.virtual_stages = any_v ? *rc::gen::inRange(1, 5) : v;
  if (request.name == "dualpipe-v") request.micro_batches = std::max(request.micro_batches, 2 * request.ranks);
  return make_schedule(request);
}

TEST(GeneratorProperties, VerifyRoundTripAndNeverDeadlock) {
  EXPECT_TRUE(rc::check([] {
    const Schedule schedule = any_schedule();
    RC_ASSERT(verify(schedule).empty());  // no note either: weight gradients ascend
    RC_ASSERT(parse_schedule_csv(to_csv(schedule), schedule.name).schedule == schedule);
    for (SendMode sends : {SendMode::rendezvous, SendMode::buffered}) {
      const Schedule lowered = add_transfers(schedule, sends);
      VerifyOptions options;
      options.sends = sends;
      RC_ASSERT(verify(lowered, options).empty());
      RC_ASSERT(parse_schedule_csv(to_csv(lowered), schedule.name).schedule == lowered);
    }
    const Schedule whole = add_step(add_reduction(add_transfers(schedule)));
    RC_ASSERT(verify(whole).empty());
    // What is valid for rendezvous is valid for buffered sends.
    VerifyOptions buffered;
    buffered.sends = SendMode::buffered;
    RC_ASSERT(verify(whole, buffered).empty());
  }));
}

TEST(GeneratorProperties, TransfersKeepTheComputingOrder) {
  EXPECT_TRUE(rc::check([] {
    const Schedule schedule = any_schedule();
    Schedule lowered = add_transfers(schedule, *rc::gen::element(SendMode::rendezvous, SendMode::buffered));
    for (auto& row : lowered.rows) {
      std::erase_if(row, [](const Action& action) { return !computes(action.kind); });
    }
    RC_ASSERT(lowered == schedule);
  }));
}

TEST(GeneratorProperties, SimulationOfRowsAndOfLoweredRowsAgree) {
  EXPECT_TRUE(rc::check([] {
    const Schedule schedule = any_schedule();
    PipelineCosts costs;
    costs.stages.clear();
    for (int stage = 0; stage < schedule.stages; ++stage) {
      const double i = *rc::gen::inRange(1, 9);
      const double w = *rc::gen::inRange(1, 9);
      costs.stages.push_back({static_cast<double>(*rc::gen::inRange(1, 9)), i + w, i, w});
    }
    costs.transfer = *rc::gen::inRange(0, 4);
    costs.overlap = *rc::gen::element(1.0, 0.75);
    const Simulation run = simulate(schedule, costs);
    const Simulation lowered = simulate(add_transfers(schedule, SendMode::buffered), costs);
    RC_ASSERT(run.makespan == lowered.makespan);
    RC_ASSERT(run.idle == lowered.idle);
    RC_ASSERT(run.peak_activations == lowered.peak_activations);
    for (std::size_t rank = 0; rank < run.spans.size(); ++rank) {
      // One thing at a time, in the row's order.
      for (std::size_t k = 1; k < run.spans[rank].size(); ++k) {
        const Span& before = run.spans[rank][k - 1];
        const Span& span = run.spans[rank][k];
        const bool in_order = before.action.overlapped ? span.begin == before.begin : span.begin >= before.end;
        RC_ASSERT(in_order);
      }
      RC_ASSERT(run.busy[rank] > 0 && run.busy[rank] <= run.makespan);
    }
  }));
}

}  // namespace
}  // namespace cuboid
