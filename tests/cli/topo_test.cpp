// cuboid topo and bench from outside.
#include <cstdlib>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/run_cuboid.h"

namespace cuboid::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

const std::string kDgx = CUBOID_TEST_DATA "/cases/topo/dgx-a100-8gpu-10nic.txt";
const std::string kPcie = CUBOID_TEST_DATA "/cases/topo/pcie-only-4gpu-olddriver.txt";
const std::string kXml = CUBOID_TEST_DATA "/cases/nccl-xml/a100-2socket-4gpu-2nic.xml";

std::string printed(Words words) {
  words.insert(words.begin(), "topo");
  const Outcome outcome = run_cuboid(words);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return outcome.out;
}

json described(Words words) {
  words.emplace_back("--json");
  return json::parse(printed(words));
}

TEST(TopoCommand, DescribesFilesAndThisMachine) {
  const json dgx = described({"--from", kDgx});
  EXPECT_EQ(dgx["devices"].size(), 8U);
  EXPECT_EQ(dgx["devices"][3]["numa"], 1);
  EXPECT_EQ(dgx["devices"][2]["nics"], json({"mlx5_2", "mlx5_3"}));
  EXPECT_EQ(dgx["links"].size(), 8U * 7 / 2 + 8 * 10 + 10);
  EXPECT_EQ(dgx["levels"][0]["name"], "numa");
  EXPECT_EQ(dgx["levels"][1]["name"], "nvlink domain");
  EXPECT_FALSE(dgx.contains("placement"));
  EXPECT_EQ(described({"--from", kPcie})["devices"][0]["numa"], nullptr);
  const json xml = described({"--from", kXml});
  const auto slow =
      std::find_if(xml["links"].begin(), xml["links"].end(), [](const json& l) { return l["from"] == "mlx5_1"; });
  EXPECT_NEAR(slow->at("bandwidth_bytes_per_second").get<double>(), 7.88e9, 0.01e9);
  const json here = described({});
  EXPECT_GE(here["devices"].size(), 1U);
  EXPECT_THAT(printed({"--from", kXml, "--format", "svg"}), HasSubstr("mlx5_1"));
  EXPECT_THAT(printed({"--from", kXml}), HasSubstr("7.877 GB/s (PCIe; its wire could carry 25 GB/s)"));
}

TEST(TopoCommand, PlacesAndSaysWhatElseWouldCost) {
  const json placed =
      described({"--from", kPcie, "--grid", "tp=2,dp=2", "--traffic", "tp=all_reduce:1e8:50,dp=all_reduce:1e8"});
  EXPECT_EQ(placed["placement"], json({0, 1, 2, 3}));
  EXPECT_EQ(placed["axes"]["tp"]["slowest_link"]["kind"], "sys");  // GPU2 and GPU3 have nothing better
  ASSERT_EQ(placed["alternatives"].size(), 2U);
  EXPECT_GE(placed["alternatives"][1]["cost_seconds"], placed["alternatives"][0]["cost_seconds"]);
  EXPECT_TRUE(placed["exact"].get<bool>());
  // The model's own traffic, on two nodes like this one: tensor ranks stay on NVLink.
  const json model = described({"--from", kXml, "--nodes", "2", "--grid", "tp=2,dp=2,pp=2", "--order", "dp-pp-tp",
                                "--model", "gpt2-nano", "--seq-len", "64"});
  EXPECT_EQ(model["axes"]["tp"]["slowest_link"]["kind"], "nvlink");
  EXPECT_THAT(model["traffic"].get<std::string>(), HasSubstr("tp=all_reduce:"));
  EXPECT_THAT(model["traffic"].get<std::string>(), HasSubstr("pp=send:"));
  const json dgx = described({"--from", "dgx-a100", "--grid", "tp=8,dp=4,pp=2", "--model", "gpt2-medium", "--dtype",
                              "bfloat16", "--seq-len", "1024"});
  EXPECT_EQ(dgx["placement"].size(), 64U);
}

TEST(TopoCommand, EmitsWhatLaunchersRead) {
  const Words crossed = {"--from", kXml,        "--hosts",   "gpu[01-02]",
                         "--grid", "tp=2,dp=4", "--traffic", "tp=all_reduce:1e9:9,dp=all_reduce:1e6"};
  const auto emit = [&](const std::string& what) {
    Words words = crossed;
    words.insert(words.end(), {"--emit", what});
    return printed(words);
  };
  const std::string ranks = emit("rankfile");
  EXPECT_EQ(std::count(ranks.begin(), ranks.end(), '\n'), 8);
  EXPECT_THAT(ranks, HasSubstr("rank 0=gpu01 slot="));
  EXPECT_EQ(emit("hostfile"), "gpu01 slots=4\ngpu02 slots=4\n");
  EXPECT_THAT(emit("slurm"), HasSubstr("--ntasks-per-node=4"));
  EXPECT_THAT(emit("cuda"), HasSubstr("gpu02 CUDA_VISIBLE_DEVICES=0,1,2,3\n"));
  // A TOML is read back as the same.
  const auto folder = fresh_folder("topologies");
  std::ofstream(folder / "t.toml") << emit("toml");
  EXPECT_EQ(printed({"--from", folder / "t.toml", "--emit", "toml"}), emit("toml"));
  // Data parallel pairs that want to be near, numbered so that they are not.
  const std::string planes = printed({"--from", kXml, "--hosts", "a,b", "--grid", "tp=2,dp=4", "--order", "dp-tp",
                                      "--traffic", "tp=all_reduce:1e9:9,dp=all_reduce:1e6", "--emit", "slurm"});
  EXPECT_THAT(planes, HasSubstr("--distribution=plane=2"));
  EXPECT_EQ(run_cuboid({"topo", "--from", kXml, "--hosts", "a,b", "--grid", "tp=2,dp=4", "--order", "dp-tp",
                        "--traffic", "tp=all_reduce:1e9:9,dp=all_reduce:1e6", "--emit", "hostfile"})
                .status,
            2);
}

TEST(TopoCommand, NamesWhatIsHidden) {
  setenv("CUDA_VISIBLE_DEVICES", "3,6,5,4,0,7,1", 1);
  const json hidden = described({"--from", kDgx});
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(hidden["devices"][0]["name"], "GPU3");
  EXPECT_EQ(hidden["devices"][0]["numa"], 1);
  EXPECT_THAT(hidden["notes"].dump(), HasSubstr("hides GPU2"));
  EXPECT_EQ(described({"--from", kDgx, "--visible-devices", "3,6,5,4,0,7,1,2"})["devices"][7]["name"], "GPU2");
}

TEST(TopoCommand, RefusesWithEveryReason) {
  const auto refusal = [](Words words) {
    words.insert(words.begin(), "topo");
    const Outcome outcome = run_cuboid(words);
    EXPECT_EQ(outcome.status, 2) << outcome.out;
    return outcome.err;
  };
  EXPECT_THAT(refusal({"--from", CUBOID_TEST_DATA "/cases/topo/bad-asymmetric.txt"}), HasSubstr("GPU3 to GPU0 is SYS"));
  EXPECT_THAT(refusal({"--from", CUBOID_TEST_DATA "/cases/topo/bad-p2p-matrix.txt"}), HasSubstr("topo -p2p"));
  EXPECT_THAT(refusal({"--from", CUBOID_TEST_DATA "/cases/nccl-xml/bad-dup-dev-missing-arch-open-tag.xml"}),
              HasSubstr("line 10"));
  EXPECT_THAT(refusal({"--from", kXml, "--grid", "tp=5", "--traffic", "tp=send:1"}),
              HasSubstr("--grid tp=5: needs 5 devices"));
  EXPECT_THAT(refusal({"--from", kXml, "--grid", "tp=2,tp=2"}), HasSubstr("tp twice"));
  EXPECT_THAT(refusal({"--from", kXml, "--grid", "xp=2"}), HasSubstr("'xp=2' is not"));
  EXPECT_THAT(refusal({"--from", kXml, "--emit", "rankfile"}), HasSubstr("needs --grid"));
  EXPECT_THAT(refusal({"--from", kXml, "--traffic", "tp=send:1"}),
              HasSubstr("--traffic: nothing is placed without --grid"));
  EXPECT_THAT(refusal({"--from", "no-such-file"}), HasSubstr("no-such-file"));
  EXPECT_THAT(refusal({"--from", kDgx, "--visible-devices", "1,1"}), HasSubstr("GPU1 is named twice"));
}

TEST(BenchCommand, MeasuresChecksAndFits) {
  const auto folder = fresh_folder("bench");
  const Outcome outcome = run_cuboid({"bench",       "comm",
                                      "--tp",        "2",
                                      "--dp",        "2",
                                      "--together",  "tp+dp",
                                      "--min-bytes", "4096",
                                      "--max-bytes", "65536",
                                      "--factor",    "16",
                                      "--seconds",   "0.004",
                                      "--svg",       folder / "pairs.svg",
                                      "--save",      folder / "here.toml",
                                      "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  EXPECT_EQ(result["results"].size(), 3U * 6 * 2);  // tp, dp, both; operations; sizes
  EXPECT_EQ(result["pairs"].size(), 6U);
  for (const json& sample : result["results"]) {
    const double algbw = sample["bytes"].get<double>() / sample["seconds"].get<double>();
    EXPECT_DOUBLE_EQ(sample["algbw_bytes_per_second"].get<double>(), algbw);
    if (sample["operation"] == "all_gather") {
      EXPECT_DOUBLE_EQ(sample["busbw_bytes_per_second"].get<double>(), algbw / 2);
    }
    EXPECT_LE(sample["seconds"], sample["p99_seconds"]);
    EXPECT_GE(sample["rounds"], 5);
  }
  ASSERT_EQ(result["levels"].size(), 1U);
  EXPECT_EQ(result["levels"][0]["name"], "host");
  EXPECT_THAT(read_file(folder / "pairs.svg"), HasSubstr("GB/s one way"));
  // What was saved is a cluster like any other.
  EXPECT_EQ(described({"--from", folder / "here.toml"})["devices"].size(), 64U);  // threads, as cpu-local has
  EXPECT_EQ(run_cuboid({"bench", "comm", "--ops", "all_reduce", "fly"}).status, 2);
  EXPECT_EQ(run_cuboid({"bench", "comm", "--tp", "1"}).status, 2);
  EXPECT_THAT(run_cuboid({"bench", "comm", "--pairs=false", "--svg", folder / "none.svg"}).err,
              HasSubstr("none.svg: draws the pairs of ranks"));
  EXPECT_FALSE(std::filesystem::exists(folder / "none.svg"));
  EXPECT_EQ(run_cuboid({"bench", "speed"}).status, 2);
}

TEST(BenchCommand, MeasuresProductsStepsAndMappings) {
  const auto folder = fresh_folder("bench-more");
  const Outcome gemm = run_cuboid({"bench", "gemm", "--shapes", "64,96,128", "--model", "gpt2-nano", "--seq-len", "32",
                                   "--seconds", "0.001", "--save", folder / "c.toml", "--json", "--device", "cpu"});
  ASSERT_EQ(gemm.status, 0) << gemm.err;
  const json rates = json::parse(gemm.out);
  EXPECT_GE(rates["results"].size(), 4U);
  EXPECT_THAT(read_file(folder / "c.toml"), HasSubstr("float32-flops = "));
  const Words step = {"--model", "gpt2-nano",      "--tp", "2",        "--pp", "2",     "--seq-len",
                      "32",      "--global-batch", "4",    "--rounds", "1",    "--json"};
  Words words = {"bench", "step"};
  words.insert(words.end(), step.begin(), step.end());
  const Outcome steps = run_cuboid(words);
  ASSERT_EQ(steps.status, 0) << steps.err;
  EXPECT_GT(json::parse(steps.out)["rank_0_seconds"]["F"], 0);
  words.insert(words.end(), {"--save", folder / "c.toml", "--samples", "3"});
  const Outcome fitted = run_cuboid(words);
  ASSERT_EQ(fitted.status, 0) << fitted.err;
  EXPECT_THAT(read_file(folder / "c.toml"), HasSubstr("shared-cores = "));
  words.resize(words.size() - 4);
  EXPECT_TRUE(json::parse(steps.out).at("mfu").is_null()) << "nothing is known of this machine's peak";
  Words rated = words;
  rated.insert(rated.end(), {"--cluster", folder / "c.toml", "--recompute", "full"});
  const Outcome with_peak = run_cuboid(rated);
  ASSERT_EQ(with_peak.status, 0) << with_peak.err;
  const json shares = json::parse(with_peak.out);
  EXPECT_GT(shares["mfu"], 0);
  EXPECT_GT(shares["hfu"].get<double>(), 1.1 * shares["mfu"].get<double>());
  EXPECT_LT(shares["hfu"].get<double>(), 1.4 * shares["mfu"].get<double>());
  words[1] = "map";
  words.insert(words.end(), {"--svg", folder / "map.svg"});
  const Outcome mapped = run_cuboid(words);
  ASSERT_EQ(mapped.status, 0) << mapped.err;
  const json map = json::parse(mapped.out);
  EXPECT_EQ(map["mappings"].size(), 2U);
  for (const json& m : map["mappings"]) {
    EXPECT_GT(m["comm_seconds"], 0);
    EXPECT_GT(m["predicted_comm_seconds"], 0);
    EXPECT_GT(m["step_seconds"], 0);
  }
  EXPECT_THAT(read_file(folder / "map.svg"), HasSubstr("Step time by placement"));
}

}  // namespace
}  // namespace cuboid::test
