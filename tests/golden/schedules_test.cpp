// No schedule changes what is learned: every one of them, with virtual stages and in V placement, from a file and found
// by auto, gives the bits that one rank gives. Dropout is on.
#include <fstream>

#include <gtest/gtest.h>

#include "cuboid/parallel/pipeline/generators.h"
#include "cuboid/parallel/pipeline/passes.h"
#include "cuboid/value/schedule_csv.h"

#include "harness.h"

namespace cuboid::golden {
namespace {

struct Pipeline {
  std::string schedule;
  int pp = 2;
  int virtual_stages = 0;  // the schedule's own
  int max_activations = 0;
  Balance balance = Balance::flops;
};

// A schedule with its transfers, as a file that a run can name.
std::string file_of(const ScheduleRequest& request) {
  const std::string path = testing::TempDir() + "/" + request.name + ".csv";
  std::ofstream(path) << to_csv(add_transfers(make_schedule(request)));
  return "file:" + path;
}

std::string hash_of(const std::string& model, const Pipeline& pipeline) {
  RunConfig run = oracle_run({.model = model, .pp = pipeline.pp, .schedule = pipeline.schedule, .micro_batch = 1});
  run.virtual_stages = pipeline.virtual_stages;
  run.max_activations = pipeline.max_activations;
  run.balance = pipeline.balance;
  run.dropout = 0.1;
  return train(run, oracle_model(model)).weights_hash;
}

class Schedules : public testing::TestWithParam<const char*> {};

// Global batch 8 in micro-batches of 1: 8 of them, of 4 or 5 layers on up to 4 stages.
TEST_P(Schedules, OneHashOverAllOfThem) {
  const std::string model = GetParam();
  const std::string hash = hash_of(model, {.schedule = "1f1b", .pp = 1});
  for (const Pipeline& pipeline : {
           Pipeline{.schedule = "gpipe", .pp = 3},
           Pipeline{.schedule = "1f1b", .pp = 4},
           Pipeline{.schedule = "interleaved-1f1b", .virtual_stages = 2},
           Pipeline{.schedule = "looped-bfs", .virtual_stages = 2},
           Pipeline{.schedule = "looped-bfs", .pp = 1, .virtual_stages = 3},
           Pipeline{.schedule = "zb-h1", .pp = 3},
           Pipeline{.schedule = "zb-h2", .pp = 4},
           Pipeline{.schedule = "zb-v"},
           Pipeline{.schedule = "v-half"},
           Pipeline{.schedule = "v-min"},
           Pipeline{.schedule = "dualpipe-v"},
           Pipeline{.schedule = "auto", .pp = 4, .max_activations = 3},
           Pipeline{.schedule = "auto", .virtual_stages = 2, .balance = Balance::measured},
           Pipeline{.schedule = file_of({.name = "zb-h2", .ranks = 2, .micro_batches = 8})},
           Pipeline{.schedule = file_of({.name = "dualpipe-v", .ranks = 2, .micro_batches = 8})},
       }) {
    EXPECT_EQ(hash_of(model, pipeline), hash)
        << pipeline.schedule << ", pp " << pipeline.pp << ", virtual stages " << pipeline.virtual_stages;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Schedules, testing::Values("gpt2-tiny", "llama-odd"),
                         [](const auto& model) { return std::string(model.param) == "gpt2-tiny" ? "gpt2" : "llama"; });

}  // namespace
}  // namespace cuboid::golden
