// cuboid plan from outside: its record, what it refuses, and that its plans can be run.
#include <cstdlib>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/run_cuboid.h"

namespace cuboid::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

// A request that takes a moment, with more words.
Words request(const Words& more = {}) {
  Words words = {"plan",           "--model", "gpt2",      "--cluster", "dgx-a100", "--gpus", "8",
                 "--global-batch", "16",      "--seq-len", "256",       "--top",    "3"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(PlanCommand, PrintsTheRecord) {
  const Outcome outcome = run_cuboid(request({"--json"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json record = json::parse(outcome.out);
  ASSERT_EQ(record["candidates"].size(), 3U);
  for (const json& candidate : record["candidates"]) {
    EXPECT_EQ(candidate["tp"].get<int>() * candidate["cp"].get<int>() * candidate["ep"].get<int>() *
                  candidate["pp"].get<int>() * candidate["dp"].get<int>(),
              8);
    double sum = 0;
    for (const auto& [cause, seconds] : candidate["seconds"].items()) sum += seconds.get<double>();
    EXPECT_NEAR(sum, candidate["step_seconds"].get<double>(), 1e-9);
    for (const char* key : {"virtual_stages", "schedule", "zero", "sequence_parallel", "recompute", "micro_batch",
                            "tokens_per_second_per_gpu", "model_tflops_per_gpu", "mfu", "bubble_fraction"}) {
      EXPECT_TRUE(candidate.contains(key)) << key;
    }
    EXPECT_GT(candidate["memory_bytes"]["total"].get<std::int64_t>(), 0);
  }
  EXPECT_LE(record["candidates"][0]["step_seconds"], record["candidates"][1]["step_seconds"]);
  std::int64_t counted = record["feasible"];
  for (const auto& [reason, count] : record["rejected"].items()) counted += count.get<std::int64_t>();
  EXPECT_EQ(record["searched"], counted);
}

TEST(PlanCommand, FindsNothingWithoutFailing) {
  const Outcome outcome = run_cuboid({"plan", "--model", "llama2-70b", "--cluster", "dgx-a100", "--gpus", "1",
                                      "--global-batch", "4", "--seq-len", "512", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json record = json::parse(outcome.out);
  EXPECT_EQ(record["feasible"], 0);
  EXPECT_TRUE(record["candidates"].empty());
  EXPECT_GT(record["rejected"]["memory"], 0);
}

TEST(PlanCommand, RefusesImpossibleRequests) {
  const auto refused = [](const Words& words, const std::string& reason) {
    const Outcome outcome = run_cuboid(words);
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(reason));
    EXPECT_TRUE(outcome.out.empty());
  };
  refused({"plan"}, "--cluster: must be given");
  refused({"plan", "--model", "gpt2", "--cluster", "dgx-a100", "--gpus", "0", "--global-batch", "4", "--seq-len", "8"},
          "--gpus");
  refused({"plan", "--model", "gpt2", "--cluster", "dgx-a1000", "--gpus", "8", "--global-batch", "4", "--seq-len", "8"},
          "dgx-a100");
  refused(request({"--schedules", "1f1b,zb-h9"}), "zb-h1");
  refused(request({"--emit", "deepspeed", "--schedules", "zb-h1"}), "--schedules");
}

TEST(PlanCommand, WritesARunFileThatTrainRuns) {
  const auto folder = fresh_folder("plan");
  const Outcome plan = run_cuboid({"plan", "--model", "gpt2-nano", "--cluster", "cpu-local", "--gpus", "2",
                                   "--global-batch", "8", "--seq-len", "64", "--dtype", "float32", "--emit", "cuboid"});
  ASSERT_EQ(plan.status, 0) << plan.err;
  std::ofstream(folder / "run.toml") << plan.out;
  std::ofstream(folder / "text.txt") << std::string(4000, 'a');
  const Outcome train = run_cuboid({"train", "--config", (folder / "run.toml").string(), "--data",
                                    (folder / "text.txt").string(), "--steps", "2", "--json"});
  EXPECT_EQ(train.status, 0) << train.err;
  EXPECT_EQ(json::parse(train.out)["world"], 2);
}

TEST(PlanCommand, SpeaksOtherProgramsWords) {
  const auto emitted = [](const char* format) {
    const Outcome outcome = run_cuboid(request({"--emit", format}));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_THAT(emitted("megatron"), HasSubstr("--tensor-model-parallel-size "));
  EXPECT_THAT(emitted("torchtitan"), HasSubstr("tensor_parallel_degree = "));
  EXPECT_EQ(json::parse(emitted("deepspeed"))["train_batch_size"], 16);
  EXPECT_THAT(emitted("slurm"), HasSubstr("#SBATCH --ntasks=8"));
}

TEST(PlanCommand, LooksAtItsOutputBeforeItSearches) {
  const Outcome outcome = run_cuboid(request({"--html", "/no/such/folder/plan.html", "--memory-limit", "40 GiB"}));
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("cuboid: error: --html /no/such/folder/plan.html: "));
}

TEST(PlanCommand, SaysHowSequencesAreCut) {
  const auto emitted = [](const char* format) {
    return run_cuboid({"plan", "--model", "llama3.2-1b", "--cluster", "dgx-h100", "--gpus", "8", "--global-batch", "1",
                       "--seq-len", "65536", "--emit", format})
        .out;
  };
  EXPECT_THAT(emitted("megatron"), HasSubstr("--context-parallel-size 8"));
  EXPECT_THAT(emitted("torchtitan"), HasSubstr("context_parallel_degree = 8"));
  EXPECT_THAT(emitted("slurm"), HasSubstr(" --cp 8"));
  EXPECT_THAT(emitted("cuboid"), HasSubstr("cp = 8"));
}

// torchtitan shards parameters over context ranks whatever is asked: what is planned for it must do the same.
TEST(PlanCommand, PlansForTorchtitanWhatItDoes) {
  const auto best = [](const char* format) {
    const Outcome outcome = run_cuboid({"plan", "--model", "qwen2-0.5b", "--cluster", "dgx-h100", "--gpus", "8",
                                        "--global-batch", "3", "--seq-len", "32768", "--emit", format, "--json"});
    return json::parse(outcome.out)["candidates"][0];
  };
  EXPECT_EQ(best("cuboid")["cp"], 8);
  EXPECT_LT(best("cuboid")["zero"], 3);
  EXPECT_EQ(best("torchtitan")["cp"], 8);
  EXPECT_EQ(best("torchtitan")["zero"], 3);
}

TEST(PlanCommand, WritesAReport) {
  const auto folder = fresh_folder("plan_report");
  const Outcome outcome = run_cuboid(request({"--html", (folder / "report.html").string()}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(read_file(folder / "report.html"), HasSubstr("\"gantt\":[["));
}

// What the page's own script makes of its data, in a real browser.
TEST(PlanCommand, AReportIsDrawnByABrowser) {
  if (std::system("command -v chromium >/dev/null 2>&1") != 0) GTEST_SKIP() << "there is no chromium";
  const auto folder = fresh_folder("plan_page");
  const Outcome outcome = run_cuboid(request({"--html", (folder / "report.html").string()}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string page = (folder / "page.html").string();
  const std::string browser =
      "timeout 60 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir='" +
      (folder / "profile").string() + "' --window-size=1300,2000 --dump-dom 'file://" +
      (folder / "report.html").string() + "' >'" + page + "' 2>/dev/null";
  ASSERT_EQ(std::system(browser.c_str()), 0);
  const std::string drawn = read_file(page);
  EXPECT_THAT(drawn, HasSubstr("<tr class=\"best\"><td>1</td>"));
  EXPECT_THAT(drawn, HasSubstr("<td>3</td>"));
  EXPECT_THAT(drawn, HasSubstr("<canvas id=\"traffic\""));
  // Canvases that were drawn have a size of their own; the traffic's is the last one.
  EXPECT_THAT(drawn.substr(drawn.find("<canvas id=\"traffic\"")), testing::ContainsRegex("^[^>]*height=\"[0-9]+\""));
}

}  // namespace
}  // namespace cuboid::test
