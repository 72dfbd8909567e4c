// cuboid checkpoint: what each action prints, and its exit status.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/run_cuboid.h"

namespace cuboid::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

const std::string kOracle = CUBOID_TEST_DATA "/oracle/llama-odd";

Outcome checkpoint(Words words) {
  words.insert(words.begin(), "checkpoint");
  return run_cuboid(words);
}

// A checkpoint of the oracle's weights, and a copy with one number changed and checksums as they were.
class CheckpointCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(checkpoint({"from-hf", kOracle, a()}).status, 0);
    fs::copy(a(), b(), fs::copy_options::recursive);
    std::fstream file(b() + "/part_00000.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-4, std::ios::end);
    const float value = 2.5F;
    file.write(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  std::string a() const { return folder_ / "a"; }
  std::string b() const { return folder_ / "b"; }
  fs::path folder_ = fresh_folder("checkpoint");
};

TEST_F(CheckpointCommand, InspectSaysWhatIsInIt) {
  const json seen = json::parse(checkpoint({"inspect", a(), "--json"}).out);
  EXPECT_EQ(seen["step"], 0);
  EXPECT_EQ(seen["family"], "llama");
  EXPECT_TRUE(seen["loss"].is_null());
  const json weights = json::parse(checkpoint({"inspect", kOracle, "--json"}).out);
  EXPECT_EQ(weights["elements"], seen["parameters"]);
  EXPECT_EQ(json::parse(checkpoint({"inspect", kOracle + "/model.safetensors", "--json"}).out)["tensors"],
            weights["tensors"]);
  EXPECT_THAT(checkpoint({"inspect", a()}).out, HasSubstr("parameters        "));
}

TEST_F(CheckpointCommand, VerifyNamesWhatIsDamaged) {
  EXPECT_THAT(checkpoint({"verify", a()}).out, HasSubstr("every byte is as it was written"));
  const Outcome damaged = checkpoint({"verify", b(), "--json"});
  EXPECT_EQ(damaged.status, 3);
  EXPECT_EQ(json::parse(damaged.out)["sound"], false);
  EXPECT_THAT(damaged.err, AllOf(HasSubstr("part_00000.safetensors"), HasSubstr("tensor weights/")));
  EXPECT_EQ(checkpoint({"verify", kOracle}).status, 0);
  // A run does not start from it either.
  const Outcome resumed = run_cuboid({"train", "--model", kOracle, "--data", kOracle + "/tokens.bin", "--resume", b(),
                                      "--seq-len", "16", "--steps", "1"});
  EXPECT_EQ(resumed.status, 2);
  EXPECT_THAT(resumed.err, HasSubstr("does not have its checksum"));
}

TEST_F(CheckpointCommand, DiffIsOneWhereTheyDiffer) {
  const Outcome equal = checkpoint({"diff", a(), a(), "--json"});
  EXPECT_EQ(equal.status, 0);
  EXPECT_EQ(json::parse(equal.out)["equal"], true);
  ASSERT_EQ(checkpoint({"reshard", a(), folder_ / "c", "--file-bytes", "40000"}).status, 0);
  EXPECT_EQ(checkpoint({"diff", a(), folder_ / "c"}).status, 0);
  // The same checkpoint from other weights: one whose files are sound.
  fs::create_directory(folder_ / "hf");
  fs::copy_file(kOracle + "/config.json", folder_ / "hf" / "config.json");
  fs::copy_file(kOracle + "/model.safetensors", folder_ / "hf" / "model.safetensors");
  std::fstream file(folder_ / "hf" / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-8, std::ios::end);
  const float value = 2.5F;
  file.write(reinterpret_cast<const char*>(&value), sizeof(value));
  file.close();
  ASSERT_EQ(checkpoint({"from-hf", folder_ / "hf", folder_ / "d"}).status, 0);
  const Outcome differ = checkpoint({"diff", a(), folder_ / "d", "--json"});
  EXPECT_EQ(differ.status, 1);
  EXPECT_THAT(json::parse(differ.out)["difference"].get<std::string>(), HasSubstr("and 2.5"));
  EXPECT_EQ(json::parse(differ.out)["elements"], 1);
}

TEST_F(CheckpointCommand, ToHuggingFaceAndTrainedFrom) {
  ASSERT_EQ(checkpoint({"to-hf", a(), folder_ / "hf"}).status, 0);
  EXPECT_EQ(checkpoint({"inspect", folder_ / "hf", "--json"}).status, 0);
  const auto first_loss = [&](const std::string& weights) {
    const Outcome outcome = run_cuboid({"train", "--model", weights, "--weights", weights, "--data",
                                        kOracle + "/tokens.bin", "--seq-len", "16", "--steps", "1", "--json"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return json::parse(outcome.out)["final_loss"];
  };
  EXPECT_EQ(first_loss(folder_ / "hf"), first_loss(kOracle));
}

TEST_F(CheckpointCommand, RefusalsAreNamed) {
  const auto expect = [](const Words& words, const std::string& reason) {
    const Outcome outcome = checkpoint(words);
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(reason));
  };
  expect({}, "say what to do: inspect, verify");
  expect({"inspct", a()}, "did you mean inspect?");
  expect({"diff", a()}, "needs 2 paths, 1 given");
  expect({"inspect", folder_}, "holds no checkpoint");
  expect({"to-hf", a(), b()}, "exists; give a new or empty folder");
  expect({"from-hf", a(), folder_ / "e"}, "neither model.safetensors nor");
}

}  // namespace
}  // namespace cuboid::test
