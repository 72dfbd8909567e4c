// cuboid simulate from outside: the record, what is infeasible and what is impossible, and published runs.
#include <cmath>
#include <fstream>

#include <gtest/gtest.h>

#include "cli/run_cuboid.h"

namespace cuboid::test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

Words simulate(const std::string& cluster, Words more) {
  Words words = {"simulate", "--model",        "llama3-8b", "--cluster",     cluster, "--dtype",   "bfloat16",
                 "--json",   "--global-batch", "48",        "--micro-batch", "1",     "--seq-len", "2048"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(SimulateCommand, PrintsTheRecordOfOneConfiguration) {
  const auto folder = fresh_folder("simulate");
  const auto svg = folder / "pipeline.svg";
  const auto html = folder / "report.html";
  const Outcome outcome =
      run_cuboid(simulate("dgx-h100", {"--tp", "2", "--pp", "4", "--dp", "2", "--zero", "1", "--sequence-parallel",
                                       "--svg", svg.string(), "--html", html.string()}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json record = json::parse(outcome.out);
  EXPECT_EQ(record["tp"], 2);
  EXPECT_EQ(record["pp"], 4);
  EXPECT_EQ(record["dp"], 2);
  EXPECT_EQ(record["virtual_stages"], 1);
  EXPECT_EQ(record["schedule"], "1f1b");
  EXPECT_EQ(record["feasible"], true);
  double seconds = 0;
  for (const auto& [cause, value] : record["seconds"].items()) seconds += value.get<double>();
  EXPECT_NEAR(seconds, record["step_seconds"].get<double>(), 1e-9);
  const json& memory = record["memory_bytes"];
  EXPECT_NEAR(memory["parameters"].get<double>() + memory["gradients"].get<double>() +
                  memory["optimizer"].get<double>() + memory["activations"].get<double>() +
                  memory["communication"].get<double>(),
              memory["total"].get<double>(), 3);  // each rounded to a byte
  EXPECT_NEAR(record["tokens_per_second_per_gpu"].get<double>() * 16 * record["step_seconds"].get<double>(), 48 * 2048,
              1e-3);
  EXPECT_EQ(record["stages"].size(), 4U);
  EXPECT_NE(read_file(svg).find("<svg"), std::string::npos);
  EXPECT_NE(read_file(html).find("llama3-8b on dgx-h100"), std::string::npos);
}

TEST(SimulateCommand, InfeasibleIsAnAnswer) {
  const Outcome outcome = run_cuboid(simulate("dgx-a100-40gb", {"--dp", "8"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json record = json::parse(outcome.out);
  EXPECT_EQ(record["feasible"], false);
  ASSERT_EQ(record["reasons"].size(), 1U);
}

TEST(SimulateCommand, ImpossibleRequestsAreRefusedWithEveryReason) {
  const auto file = fresh_folder("simulate") / "mine.toml";
  std::ofstream(file) << "base = 'dgx-a100'\n[device]\nmemory-bandwidth = -1.0\nspeed = 3\n";
  const Outcome cluster = run_cuboid(simulate(file.string(), {}));
  EXPECT_EQ(cluster.status, 2);
  EXPECT_NE(cluster.err.find("unknown key speed"), std::string::npos) << cluster.err;
  EXPECT_NE(cluster.err.find("memory-bandwidth = -1.0: must be above 0"), std::string::npos) << cluster.err;

  const Outcome grid = run_cuboid(simulate("cpu-local", {"--tp", "3", "--dp", "48"}));
  EXPECT_EQ(grid.status, 2);
  EXPECT_NE(grid.err.find("--tp 3"), std::string::npos) << grid.err;
  EXPECT_NE(grid.err.find("the grid has 144 ranks; the cluster cpu-local has 64 devices"), std::string::npos)
      << grid.err;
  EXPECT_EQ(run_cuboid({"simulate"}).status, 2);
}

TEST(SimulateCommand, ValidatesAFileOfPublishedRuns) {
  const auto folder = fresh_folder("simulate");
  json runs = json::parse(read_file(CUBOID_SOURCE_DIR "/benchmarks/published/published-runs.json"));
  json few = json::array({runs[0], runs[1]});
  few[1]["hardware"]["gpu"] = "abacus";
  std::ofstream(folder / "runs.json") << few;
  const Outcome outcome = run_cuboid({"simulate", "--validate", (folder / "runs.json").string(), "--json", "--svg",
                                      (folder / "scatter.svg").string()});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json report = json::parse(outcome.out);
  ASSERT_EQ(report["runs"].size(), 2U);
  const json& run = report["runs"][0];
  const double error = run["predicted_step_seconds"].get<double>() / run["measured_step_seconds"].get<double>() - 1;
  EXPECT_NEAR(report["mean_absolute_error"].get<double>(), std::abs(error), 1e-12);
  EXPECT_EQ(report["by_source"][run["source"].get<std::string>()]["runs"], 1);
  EXPECT_EQ(report["not_predicted"], 1);
  EXPECT_TRUE(report["runs"][1]["predicted_step_seconds"].is_null());
  EXPECT_NE(report["runs"][1]["note"].get<std::string>().find("no preset describes abacus"), std::string::npos);
  EXPECT_NE(read_file(folder / "scatter.svg").find("sc21-t1-7.5b"), std::string::npos);
  EXPECT_EQ(run_cuboid({"simulate", "--validate", "nowhere.json"}).status, 2);
  const Outcome refused = run_cuboid({"simulate", "--validate", (folder / "runs.json").string(), "--tp", "2"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.err.find("--tp: --validate takes models and grids from its file's runs"), std::string::npos);
}

}  // namespace
}  // namespace cuboid::test
