// The planner: pruning loses nothing, every candidate is accounted for, and what it says about infeasible requests.
#include "cuboid/plan/search.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "cuboid/formats/cluster_file.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/parallel/pipeline/generators.h"
#include "cuboid/plan/report.h"

#include "src/plan/axis_messages.h"

namespace cuboid {
namespace {

// Small enough to walk every candidate; few layers and a large batch, so that grids differ.
PlanRequest small_request() {
  PlanRequest request;
  request.gpus = 8;
  request.global_batch = 32;
  request.seq_len = 512;
  request.top = 6;
  return request;
}

std::int64_t sum_of_rejected(const PlanResult& result) {
  std::int64_t sum = 0;
  for (const auto& [reason, count] : result.rejected) sum += count;
  return sum;
}

TEST(Search, PruningLosesNothing) {
  for (const auto& [model, tight] : {std::pair("gpt2", 0.9e9), std::pair("llama3.2-1b", 8e9)}) {
    for (const double limit : {0.0, tight}) {
      Predictor predictor(load_model(model), load_cluster("dgx-a100"));
      PlanRequest request = small_request();
      request.memory_limit = limit;
      const PlanResult pruned = search_plans(predictor, request);
      request.exhaustive = true;
      const PlanResult all = search_plans(predictor, request);
      ASSERT_EQ(pruned.best.size(), all.best.size()) << model;
      EXPECT_FALSE(pruned.best.empty()) << model;
      for (std::size_t i = 0; i < all.best.size(); ++i) {
        EXPECT_EQ(pruned.best[i].prediction.step_seconds, all.best[i].prediction.step_seconds) << model << " " << i;
      }
      EXPECT_EQ(pruned.best.front().run, all.best.front().run) << model;
      ASSERT_EQ(pruned.pareto.size(), all.pareto.size()) << model;
      for (std::size_t i = 0; i < all.pareto.size(); ++i) EXPECT_EQ(pruned.pareto[i].run, all.pareto[i].run) << i;
      EXPECT_LT(pruned.feasible, all.feasible / 2) << model << ": nothing was pruned";
      for (const auto& [reason, count] : pruned.rejected) EXPECT_GT(count, 0) << reason;
      EXPECT_EQ(pruned.searched, all.searched) << model;
    }
  }
}

TEST(Search, AccountsForEveryCandidate) {
  Predictor predictor(load_model("gpt2"), load_cluster("dgx-a100"));
  PlanRequest request = small_request();
  request.memory_limit = 0.9e9;
  const PlanResult result = search_plans(predictor, request);
  EXPECT_EQ(result.searched, result.feasible + sum_of_rejected(result));
  EXPECT_GT(result.rejected.at("memory"), 0);
  EXPECT_FALSE(result.explanation.empty());
  for (const PlanCandidate& candidate : result.best) {
    EXPECT_EQ(candidate.run.grid.world(), request.gpus);
    EXPECT_LE(candidate.prediction.memory().total(), request.memory_limit);
  }
}

TEST(Search, SplitsExpertsOverRanks) {
  Predictor predictor(load_model("mixtral-8x7b"), load_cluster("dgx-h100"));
  PlanRequest request = small_request();
  request.gpus = 48;
  request.global_batch = 96;
  request.schedules = {"1f1b"};
  const PlanResult result = search_plans(predictor, request);
  ASSERT_FALSE(result.best.empty());
  EXPECT_TRUE(std::any_of(result.best.begin(), result.best.end(),
                          [](const PlanCandidate& c) { return c.run.grid.degree(Axis::ep) > 1; }));
  EXPECT_GT(result.rejected.at("expert degree: does not divide the experts"), 0);
  EXPECT_EQ(result.searched, result.feasible + sum_of_rejected(result));
}

TEST(Search, CutsLongSequencesOverRanks) {
  Predictor predictor(load_model("llama3.2-1b"), load_cluster("dgx-h100"));
  PlanRequest request = small_request();
  request.global_batch = 2;  // fewer than devices: without cutting sequences, only tp and pp are left
  request.seq_len = 65536;
  const PlanResult result = search_plans(predictor, request);
  ASSERT_FALSE(result.best.empty());
  EXPECT_GT(result.best.front().run.grid.degree(Axis::cp), 1);
  EXPECT_NE(result.explanation.find("messages inside layers"), std::string::npos) << result.explanation;
  EXPECT_EQ(result.searched, result.feasible + sum_of_rejected(result));
  request.largest_cp = 1;
  const PlanResult whole = search_plans(predictor, request);
  for (const PlanCandidate& candidate : whole.best) EXPECT_EQ(candidate.run.grid.degree(Axis::cp), 1);
  ASSERT_FALSE(whole.best.empty());
  EXPECT_GT(whole.best.front().prediction.step_seconds, result.best.front().prediction.step_seconds);
  // Parts of fewer tokens are not looked at.
  request.largest_cp = 8;
  request.seq_len = 2 * kFewestTokensOfAPart;
  int largest = 1;
  for (const PlanCandidate& candidate : search_plans(predictor, request).pareto) {
    largest = std::max(largest, candidate.run.grid.degree(Axis::cp));
  }
  EXPECT_EQ(largest, 2);
}

// Activations that a schedule holds are counted in its rows for a few numbers of micro-batches, and for all others the
// next smaller one counts.
TEST(Bounds, OfMemoryAreBelowWhatIsFoundForAnyNumberOfMicroBatches) {
  ModelConfig model = load_model("gpt2");
  Predictor predictor(model, load_cluster("dgx-a100"));
  int compared = 0;
  int exact = 0;
  for (const std::string& schedule : schedule_names()) {
    for (const int ranks : {2, 3, 5}) {
      const int fewest = fewest_micro_batches(schedule, ranks);
      for (int micro_batches = fewest; micro_batches < fewest + 13; ++micro_batches) {
        for (const Recompute recompute : {Recompute::none, Recompute::full}) {
          RunConfig run;
          run.model = "gpt2";
          run.grid = Grid({{1, 1, 1, 1, ranks}}, Grid::kDefaultOrder);
          run.schedule = schedule;
          run.virtual_stages = default_virtual_stages(schedule);
          run.recompute = recompute;
          run.micro_batch = 2;
          run.global_batch = 2 * micro_batches;
          run.seq_len = 256;
          run.dtype = DType::bfloat16;
          const StepBound bound = predictor.bound(run);
          const double found = predictor.predict(run).memory().total();
          EXPECT_LE(bound.memory_bytes, found * (1 + 1e-12)) << schedule << " on " << ranks << ": " << micro_batches;
          EXPECT_GT(bound.memory_bytes, 0.7 * found) << schedule << " on " << ranks << ": " << micro_batches;
          exact += bound.memory_bytes > found * (1 - 1e-12);
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(exact, compared / 3);
}

// A bound that is not below what it bounds would lose candidates without a word.
TEST(Bounds, AreBelowWhatIsFound) {
  Predictor predictor(load_model("gpt2"), load_cluster("dgx-a100"));
  int compared = 0;
  for (const std::string& schedule : schedule_names()) {
    for (const int zero : {0, 1, 2, 3}) {
      for (const Recompute recompute : {Recompute::none, Recompute::full}) {
        for (const int micro_batch : {1, 4}) {
          RunConfig run;
          run.model = "gpt2";
          run.grid = Grid({{2, 1, 1, 2, 3}}, Grid::kDefaultOrder);
          run.schedule = schedule;
          run.virtual_stages = default_virtual_stages(schedule);
          run.zero = zero;
          run.recompute = recompute;
          run.micro_batch = micro_batch;
          run.global_batch = 64;
          run.seq_len = 512;
          run.dtype = DType::bfloat16;
          // Other predictions of the same schedule may have taught a better bound.
          const StepBound bound = predictor.bound(run);
          const StepPrediction found = predictor.predict(run);
          const double taught = predictor.bound(run).step_seconds;
          EXPECT_GE(taught, bound.step_seconds) << schedule << " zero " << zero;
          EXPECT_LE(taught, found.step_seconds * (1 + 1e-12)) << schedule << " zero " << zero;
          EXPECT_GT(taught, (1 - 1e-9) * found.step_seconds) << schedule << " zero " << zero;
          EXPECT_LE(bound.step_seconds, found.step_seconds * (1 + 1e-12)) << schedule << " zero " << zero;
          EXPECT_LE(bound.memory_bytes, found.memory().total() * (1 + 1e-12)) << schedule << " zero " << zero;
          // And near enough to be of use.
          EXPECT_GT(bound.step_seconds, 0.6 * found.step_seconds) << schedule << " zero " << zero;
          ++compared;
        }
      }
    }
  }
  EXPECT_GE(compared, 150);
}

TEST(Search, SaysWhyNothingFits) {
  Predictor predictor(load_model("llama2-70b"), load_cluster("dgx-a100"));
  PlanRequest request = small_request();
  request.gpus = 2;
  const PlanResult result = search_plans(predictor, request);
  EXPECT_TRUE(result.best.empty());
  EXPECT_EQ(result.feasible, 0);
  EXPECT_GT(result.rejected.at("memory"), 0);
  EXPECT_NE(result.explanation.find("needs at least"), std::string::npos) << result.explanation;
}

TEST(Search, RefusesWhatNoClusterCouldMeet) {
  Predictor predictor(load_model("gpt2"), load_cluster("dgx-a100"));
  PlanRequest request = small_request();
  request.gpus = 1 << 30;
  request.seq_len = 4096;
  try {
    search_plans(predictor, request);
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    EXPECT_NE(std::string(error.what()).find("--gpus"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("--seq-len"), std::string::npos) << error.what();
  }
}

TEST(ParetoFront, HasNoMemberThatAnotherBeats) {
  Predictor predictor(load_model("gpt2"), load_cluster("dgx-a100"));
  PlanRequest request = small_request();
  request.exhaustive = true;
  const PlanResult result = search_plans(predictor, request);
  ASSERT_GE(result.pareto.size(), 2U);
  EXPECT_EQ(result.pareto.front().prediction.step_seconds, result.best.front().prediction.step_seconds);
  for (std::size_t i = 1; i < result.pareto.size(); ++i) {
    EXPECT_GT(result.pareto[i].prediction.step_seconds, result.pareto[i - 1].prediction.step_seconds);
    EXPECT_LT(result.pareto[i].prediction.memory().total(), result.pareto[i - 1].prediction.memory().total());
  }
}

// A collective that goes axis by axis sends what one ring over all its ranks would.
TEST(MessagesOverAxes, SendWhatARingOverAllOfThemDoes) {
  const Grid grid({{5, 2, 3, 4, 1}}, Grid::kDefaultOrder);
  constexpr double kBytes = 2400;
  for (const Collective operation : {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather}) {
    for (const auto& [axes, ranks] : {std::pair(plan::kDenseCopies, 24), std::pair(plan::kExpertCopies, 8)}) {
      double sent = 0;
      for (const plan::AxisMessage& message : plan::messages_over(grid, axes, operation, kBytes)) {
        const double times = message.operation == Collective::all_reduce ? 2 : 1;
        const int degree = grid.degree(message.axis);
        sent += times * (degree - 1) * message.bytes / degree;
      }
      EXPECT_DOUBLE_EQ(sent, (operation == Collective::all_reduce ? 2 : 1) * kBytes * (ranks - 1) / ranks);
    }
  }
  EXPECT_TRUE(plan::messages_over(Grid(), plan::kDenseCopies, Collective::all_reduce, kBytes).empty());
}

// Bytes of a step by hand: rings over tensor and data groups, and boundaries both ways.
TEST(TrafficMap, HasTheBytesOfTheGrid) {
  Predictor predictor(load_model("gpt2"), load_cluster("dgx-a100"));
  RunConfig run;
  run.model = "gpt2";
  run.grid = Grid({{2, 1, 1, 1, 2}}, Grid::kDefaultOrder);
  run.micro_batch = 2;
  run.global_batch = 6;
  run.seq_len = 128;
  run.dtype = DType::bfloat16;
  const StepPrediction prediction = predictor.predict(run, {.spans = true});
  const RankTraffic traffic = rank_traffic(predictor, run, prediction);
  ASSERT_EQ(traffic.bytes.size(), 4U);
  EXPECT_EQ(traffic.ranks_per_cell, 1);
  const double boundary = 3.0 * 2 * 128 * 768 * 2;  // three micro-batches, bfloat16
  EXPECT_EQ(traffic.bytes[0][2], boundary);
  EXPECT_EQ(traffic.bytes[3][1], boundary);
  EXPECT_EQ(traffic.bytes[0][3], 0);
  EXPECT_GT(traffic.bytes[0][1], 0);
  EXPECT_EQ(traffic.bytes[0][1], traffic.bytes[1][0]);
  const RankTraffic coarse = rank_traffic(predictor, run, prediction, 2);
  EXPECT_EQ(coarse.ranks_per_cell, 2);
  EXPECT_EQ(coarse.bytes[0][1], 2 * boundary);
}

TEST(Report, IsOnePageWithItsData) {
  Predictor predictor(load_model("gpt2"), load_cluster("dgx-a100"));
  PlanRequest request = small_request();
  request.top = 2;
  const PlanResult result = search_plans(predictor, request);
  Report report;
  report.title = "gpt2 </script><b>";
  report.candidates = result.best;
  report.candidates_json = "[]";
  report.memory_limit = 80e9;
  const std::string page = report_page(predictor, report);
  EXPECT_EQ(page.find("@CUBOID_REPORT_DATA@"), std::string::npos);
  EXPECT_EQ(page.find("</script><b>"), std::string::npos) << "a name ends the data";
  for (const char* outside : {"http://", "https://", "src=", "@import", "url("}) {
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  }
}

}  // namespace
}  // namespace cuboid
