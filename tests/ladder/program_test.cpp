// The program on emulated GPUs: which of them it sees and takes, and its benchmarks.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cluster/shell.h"

namespace cuboid::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kSecond = "GPU-00000000-0000-0000-0000-000000000002";

json document(const std::string& line) {
  const Ended ended = shell(line);
  EXPECT_EQ(ended.status, 0) << line << "\n" << ended.err;
  return json::parse(ended.out, nullptr, false);
}

TEST(EmulatedProgram, SeesWhatTheEnvironmentLetsIt) {
  const auto gpus = [](const std::string& visible) {
    return document("EMULATED_CUDA_DEVICES=3 " + visible + " $CUBOID doctor --json").at("cuda").at("gpus");
  };
  EXPECT_EQ(gpus("").size(), 3U);
  const json chosen = gpus("CUDA_VISIBLE_DEVICES=2," + kSecond);
  ASSERT_EQ(chosen.size(), 2U);
  EXPECT_THAT(chosen[0].get<std::string>(), HasSubstr("0: Emulated GPU"));
  EXPECT_THAT(chosen[0].get<std::string>(), HasSubstr("-000000000003"));
  EXPECT_THAT(chosen[1].get<std::string>(), HasSubstr(kSecond));
  const json part = gpus("EMULATED_CUDA_MIG=1 CUDA_VISIBLE_DEVICES=MIG-00000000-0000-0000-0000-000000000002");
  ASSERT_EQ(part.size(), 1U);
  EXPECT_THAT(part[0].get<std::string>(), HasSubstr("MIG-00000000-0000-0000-0000-000000000002"));
  const json none = document("CUDA_VISIBLE_DEVICES=7 $CUBOID doctor --json").at("cuda");
  EXPECT_TRUE(none.at("gpus").empty());
  EXPECT_EQ(none.at("visible_devices"), "7");
  EXPECT_THAT(none.at("no_gpu_because").get<std::string>(), HasSubstr("CUDA_VISIBLE_DEVICES is \"7\""));
}

TEST(EmulatedProgram, RefusesWhatTheEnvironmentHides) {
  for (const char* command : {"gemm", "step", "comm"}) {
    const Ended ended = shell(std::string("CUDA_VISIBLE_DEVICES=7 $CUBOID bench ") + command + " --device cuda");
    EXPECT_EQ(ended.status, 2) << command;
    EXPECT_THAT(ended.err, HasSubstr("--device cuda: no GPU to use: ")) << command;
    EXPECT_THAT(ended.err, HasSubstr("CUDA_VISIBLE_DEVICES is \"7\"")) << command;
  }
}

TEST(EmulatedProgram, TwoProcessesOnOneGpuAreRefused) {
  if (!CUBOID_HAS_MPI) GTEST_SKIP() << "this build has no MPI";
  const std::string step = "$CUBOID bench step --device cuda --tp 2 --global-batch 2 --seq-len 16 --rounds 1";
  // Each process is shown one GPU, as launchers do: both the same.
  const Ended ended = shell("EMULATED_CUDA_DEVICES=2 CUDA_VISIBLE_DEVICES=1 $MPIRUN -n 2 " + step);
  EXPECT_EQ(ended.status, 2) << ended.err;
  for (const std::string& part : {std::string("ranks 0 and 1 use the same GPU"), kSecond, std::string("on host ")}) {
    EXPECT_THAT(ended.err, HasSubstr(part));
  }
  const Ended few = shell("$MPIRUN -n 2 " + step + " --ranks-per-process 2 --dp 2");
  EXPECT_EQ(few.status, 2);
  EXPECT_THAT(few.err, HasSubstr("2 ranks of this process on "));
}

TEST(EmulatedProgram, MeasuresProducts) {
  const json gemm =
      document("$CUBOID bench gemm --device cuda --dtype bfloat16 --shapes 24,40,56 --seconds 0.01 --json");
  EXPECT_EQ(gemm.at("device"), "cuda");
  ASSERT_EQ(gemm.at("results").size(), 1U);
  EXPECT_EQ(gemm["results"][0].at("k"), 56);
  const double seconds = gemm["results"][0].at("seconds");
  EXPECT_GT(seconds, 0);
  EXPECT_DOUBLE_EQ(gemm["results"][0].at("flops_per_second").get<double>(), 2.0 * 24 * 40 * 56 / seconds);
  const Ended saved =
      shell("$CUBOID bench gemm --device cuda --shapes 24,40,56 --seconds 0.01 --save no-such-preset.toml");
  EXPECT_EQ(saved.status, 2);
  EXPECT_THAT(saved.err, HasSubstr("no cluster preset has the Emulated GPU"));
}

TEST(EmulatedProgram, MeasuresStepsAgainstARatedPeak) {
  const std::string step =
      "EMULATED_CUDA_DEVICES=2 $CUBOID bench step --device cuda --json --tp 2 --global-batch 2 --micro-batch 1 "
      "--seq-len 24 --rounds 1 --product-size 64 ";
  const json unknown = document(step);
  EXPECT_TRUE(unknown.at("mfu").is_null());
  EXPECT_TRUE(unknown.at("peak_source").is_null());
  EXPECT_EQ(unknown.at("device"), "cuda");
  EXPECT_EQ(unknown.at("world"), 2);
  const json rated = document(step + "--cluster dgx-h100 --recompute full --dtype bfloat16");
  EXPECT_THAT(rated.at("peak_source").get<std::string>(), HasSubstr("H100"));
  EXPECT_DOUBLE_EQ(rated.at("mfu").get<double>(), rated.at("model_flops_per_second_per_rank").get<double>() /
                                                      rated.at("peak_flops_per_second").get<double>());
  // Layers are computed forward once more: 4 to 3, with attention a little more and the head less.
  const double more = rated.at("hfu").get<double>() / rated.at("mfu").get<double>();
  EXPECT_GT(more, 1.1);
  EXPECT_LT(more, 1.4);
}

TEST(EmulatedProgram, MeasuresCommunicationOnOneGpuAndOnSeveral) {
  for (const char* gpus : {"1", "4"}) {
    const json comm = document(std::string("EMULATED_CUDA_DEVICES=") + gpus +
                               " $CUBOID bench comm --device cuda --tp 2 --dp 2 --min-bytes 4100 --max-bytes 4100 "
                               "--seconds 0.001 --json");
    EXPECT_EQ(comm.at("results").size(), 12U) << "six operations along two axes";
    for (const auto& result : comm.at("results")) EXPECT_GT(result.at("seconds").get<double>(), 0) << result;
    EXPECT_EQ(comm.at("pairs").size(), 6U);
  }
  const Ended saved = shell("$CUBOID bench comm --device cuda --tp 2 --save x.toml");
  EXPECT_EQ(saved.status, 2);
  EXPECT_THAT(saved.err, HasSubstr("--save x.toml: the ranks share one GPU"));
}

}  // namespace
}  // namespace cuboid::test
