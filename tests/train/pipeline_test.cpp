// How layers are split and schedules chosen, and what a run says about its pipeline: predicted beside measured, and the
// timeline against the schedule.
#include <map>
#include <numeric>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "cuboid/formats/hf_config.h"
#include "cuboid/models/registry.h"
#include "cuboid/parallel/pipeline/verify.h"
#include "cuboid/train/pipeline_plan.h"
#include "cuboid/train/trainer.h"

#include "formats/files.h"

namespace cuboid {
namespace {

using testing::ElementsAre;

class Pipeline : public testing::Test {
 protected:
  Pipeline() {
    run_.data.paths = {test::oracle_path("gpt2-tiny/tokens.bin")};
    run_.micro_batch = 2;
    run_.global_batch = 12;
    run_.seq_len = 16;
    run_.steps = 3;
    set_grid(1, 2);
  }
  void set_grid(int tp, int pp) { run_.grid = Grid({{tp, 1, 1, 1, pp}}, Grid::kDefaultOrder); }
  PipelineLayout plan(const BlockCosts& blocks) { return plan_pipeline(run_, model_, blocks); }

  ModelConfig model_ = load_model(test::oracle_path("gpt2-tiny"));  // 4 layers
  RunConfig run_;
  test::TemporaryFolder folder_;
};

// 12 layers of 768, T = 512, vocabulary 50257; a row kernel counts 200 FLOPs an element, the loss 50 a logit.
TEST(BlockCosts, AreTheModelsArithmetic) {
  const ModelConfig gpt2 = load_model("gpt2");
  RunConfig run;
  run.seq_len = 512;
  run.micro_batch = 3;
  const double tokens = 512 * 3;
  const double layer = tokens * (2.0 * 12 * 768 * 768 + 2.0 * 512 * 768 + 200 * 768);
  const double norm = tokens * 200 * 768;
  const double output = tokens * (2.0 * 50257 * 768 + 50.0 * 50257);
  const BlockCosts costs = modelled_block_costs(run, gpt2);
  EXPECT_DOUBLE_EQ(costs.layer.forward, layer);
  EXPECT_DOUBLE_EQ(costs.layer.backward, 2 * layer);
  EXPECT_DOUBLE_EQ(costs.layer.input_gradient, layer);
  EXPECT_DOUBLE_EQ(costs.layer.weight_gradient, layer);
  EXPECT_DOUBLE_EQ(costs.embedding.forward, norm);
  EXPECT_DOUBLE_EQ(costs.embedding.input_gradient, 0);
  EXPECT_DOUBLE_EQ(costs.embedding.backward, costs.embedding.weight_gradient);
  // The output matrix is multiplied in backward: three products in B, two in I and two in W.
  EXPECT_DOUBLE_EQ(costs.head.forward, norm);
  EXPECT_DOUBLE_EQ(costs.head.backward, 3 * output + 2 * norm);
  EXPECT_DOUBLE_EQ(costs.head.input_gradient, 2 * output + norm);
  EXPECT_DOUBLE_EQ(costs.head.weight_gradient, 2 * output + norm);

  run.recompute = Recompute::full;
  const BlockCosts again = modelled_block_costs(run, gpt2);
  EXPECT_DOUBLE_EQ(again.layer.backward, 3 * layer);
  EXPECT_DOUBLE_EQ(again.layer.input_gradient, 2 * layer);
  EXPECT_DOUBLE_EQ(again.layer.weight_gradient, layer);
  run.grid = Grid({{4, 1, 1, 1, 1}}, Grid::kDefaultOrder);
  EXPECT_DOUBLE_EQ(modelled_block_costs(run, gpt2).layer.forward, layer / 4);
}

// A layer costs 3, the embedding 1; the head 5 in a B but 4 + 4 as I and W.
const BlockCosts kHeavyHead = {.embedding = {1, 0, 0, 0}, .layer = {1, 2, 1, 1}, .head = {0, 5, 4, 4}};

TEST_F(Pipeline, TheSplitMinimisesTheSlowestStageAsTheScheduleRunsIt) {
  const PipelineLayout whole = plan(kHeavyHead);  // 1f1b: 1 + 3·3 against 3 + 5
  EXPECT_THAT(whole.stage_layers, ElementsAre(3, 1));
  EXPECT_THAT(whole.stage_work, ElementsAre(10, 8));
  run_.schedule = "zb-h1";
  EXPECT_THAT(plan(kHeavyHead).stage_work, ElementsAre(10, 3 + 8));
  run_.stage_layers = {1, 3};
  EXPECT_THAT(plan(kHeavyHead).stage_work, ElementsAre(4, 9 + 8));
  run_.schedule = "1f1b";
  const PipelineLayout given = plan(kHeavyHead);
  EXPECT_THAT(given.stage_layers, ElementsAre(1, 3));
  EXPECT_THAT(given.stage_work, ElementsAre(4, 14));
  EXPECT_GT(given.bubble, whole.bubble);
}

TEST_F(Pipeline, AutoSearchesWithTheStagesCosts) {
  run_.schedule = "auto";
  const PipelineLayout found = plan(kHeavyHead);
  ASSERT_TRUE(found.chosen.has_value());
  EXPECT_EQ(found.schedule.name, "auto");
  EXPECT_EQ(std::accumulate(found.stage_layers.begin(), found.stage_layers.end(), 0), 4);
  EXPECT_DOUBLE_EQ(simulate(found.schedule, found.costs).makespan, found.chosen->makespan);
  EXPECT_LE(found.chosen->lower_bound, found.chosen->makespan * (1 + 1e-12));
  // Not slower than any named schedule on any split.
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "zb-h2"}) {
    run_.schedule = name;
    const PipelineLayout named = plan(kHeavyHead);
    EXPECT_LE(found.chosen->makespan, simulate(named.schedule, named.costs).makespan) << name;
  }
  // What a cap forbids is not chosen.
  run_.schedule = "auto";
  run_.max_activations = 1;
  const PipelineLayout capped = plan(kHeavyHead);
  EXPECT_THAT(peak_activations(capped.schedule), ElementsAre(1, 1));
  EXPECT_GT(capped.chosen->makespan, found.chosen->makespan);
}

// A clock is no oracle; but a layer has work, the head's matrix is multiplied in backward, and all ranks get one
// answer.
TEST_F(Pipeline, AProfileMeasuresEveryBlock) {
  run_.balance = Balance::measured;
  run_.dropout = 0.1;
  for (const auto& [tp, cp] : {std::pair(1, 1), std::pair(2, 1), std::pair(2, 2)}) {
    run_.grid = Grid({{tp, cp, 1, 1, 2}}, Grid::kDefaultOrder);
    const BlockCosts costs = measured_block_costs(run_, model_);
    EXPECT_EQ(costs.source, Balance::measured);
    for (const StageCosts& block : {costs.embedding, costs.layer, costs.head}) {
      for (const double time : {block.forward, block.backward, block.input_gradient, block.weight_gradient}) {
        EXPECT_GT(time, 0);
        EXPECT_LT(time, 60);
      }
    }
    EXPECT_GT(costs.transfer, 0);
    EXPECT_LT(costs.transfer, 60);
    EXPECT_STREQ(plan(costs).unit, "s");
  }
}

struct Event {
  std::string name;
  double begin, end;  // microseconds
};

class PipelineTimeline : public Pipeline {
 protected:
  void train_with(const std::string& schedule) {
    run_.schedule = schedule;
    run_.timeline = true;
    run_.out = folder_.path();
    TrainEvents listener;
    listener.on_start = [this](const RunStart& start) { run_.stage_layers = start.stage_layers; };
    listener.on_step = [this](const StepMetrics& m) { steps_.push_back(m); };
    result_ = train(run_, model_, listener);
    document_ = nlohmann::json::parse(test::contents(folder_ / "timeline.json"));
    for (const auto& e : document_.at("traceEvents")) {
      if (e.at("ph") != "X") continue;
      const double begin = e.at("ts");
      lanes_[{e.at("args").at("step"), e.at("tid")}].push_back(
          {e.at("name"), begin, begin + e.at("dur").get<double>()});
    }
  }

  std::vector<StepMetrics> steps_;
  TrainResult result_;
  nlohmann::json document_;
  std::map<std::pair<int, int>, std::vector<Event>> lanes_;  // by step and rank
};

// The trace event format: complete events with numbers, names for process and lanes, one lane a rank in which nothing
// overlaps, and in it the schedule's row, action by action.
TEST_F(PipelineTimeline, IsATraceOfTheSchedule) {
  for (const char* schedule : {"zb-v", "1f1b"}) {
    lanes_.clear();
    run_.stage_layers = {};
    train_with(schedule);
    std::map<std::string, int> named;
    for (const auto& e : document_.at("traceEvents")) {
      ASSERT_TRUE(e.at("name").is_string() && e.at("pid").is_number_integer() && e.at("tid").is_number_integer());
      const std::string phase = e.at("ph");
      ASSERT_TRUE(phase == "X" || phase == "M") << phase;
      if (phase == "M") {
        ++named[e.at("name")];
        ASSERT_TRUE(e.at("args").is_object());
        continue;
      }
      ASSERT_TRUE(e.at("ts").is_number() && e.at("dur").is_number() && e.at("cat").is_string());
    }
    EXPECT_EQ(named["process_name"], 1);
    EXPECT_EQ(named["thread_name"], 2);
    EXPECT_EQ(named["thread_sort_index"], 2);
    EXPECT_EQ(document_.at("displayTimeUnit"), "ms");

    const PipelineLayout layout = plan_pipeline(run_, model_);
    ASSERT_EQ(lanes_.size(), static_cast<std::size_t>(2 * run_.steps));
    for (const auto& [lane, events] : lanes_) {
      std::vector<std::string> ran;
      double before = 0;
      for (const Event& event : events) {
        EXPECT_GE(event.begin, before - 1e-3) << event.name;  // printed in microseconds: rounding
        before = event.end;
        if (event.name.find("RECV") == std::string::npos) ran.push_back(event.name);
      }
      std::vector<std::string> scheduled;
      for (const Action& a : layout.training.rows[static_cast<std::size_t>(lane.second)]) {
        if (a.kind != ActionKind::recv_forward && a.kind != ActionKind::recv_backward)
          scheduled.push_back(to_string(a));
      }
      EXPECT_EQ(ran, scheduled) << schedule << ", step " << lane.first << ", rank " << lane.second;
    }
  }
}

// The bubble reported for the schedule is the one at the mean times of the timeline's own events.
TEST_F(PipelineTimeline, TheSchedulesBubbleIsThatOfTheMeasuredTimes) {
  train_with("zb-h1");
  const PipelineLayout layout = plan_pipeline(run_, model_);
  double mean = 0;
  for (const StepMetrics& step : steps_) {
    std::map<std::string, std::vector<double>> times;  // "1F": of all micro-batches
    for (const int rank : {0, 1}) {
      for (const Event& event : lanes_.at({step.step, rank})) {
        times[event.name.substr(0, event.name.find_last_not_of("0123456789") + 1)].push_back(event.end - event.begin);
      }
    }
    PipelineCosts costs;
    costs.stages.clear();
    for (const int stage : {0, 1}) {
      const auto of = [&](const char* letter) {
        const auto& all = times.at(std::to_string(stage) + letter);
        EXPECT_EQ(all.size(), 6U);
        return std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
      };
      costs.stages.push_back({of("F"), 0, of("I"), of("W")});
    }
    // Times in the file are absolute microseconds in double: 1e-3 each at worst, of some hundred.
    EXPECT_NEAR(step.schedule_bubble_fraction, simulate(layout.schedule, costs).bubble_fraction, 1e-4);
    EXPECT_GT(step.schedule_bubble_fraction, 0);
    if (step.step > 0) mean += step.schedule_bubble_fraction / (run_.steps - 1);
  }
  EXPECT_NEAR(result_.schedule_bubble_fraction, mean, 1e-12);
}

}  // namespace
}  // namespace cuboid
