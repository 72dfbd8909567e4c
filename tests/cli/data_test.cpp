// cuboid data: what is built can be inspected and trained on.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/run_cuboid.h"

namespace cuboid::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

json done(const std::vector<std::string>& words) {
  const Outcome outcome = run_cuboid(words);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return outcome.status == 0 ? json::parse(outcome.out) : json();
}

TEST(DataCommand, BuildsInspectsAndTrains) {
  const fs::path folder = fresh_folder("data");
  write(folder / "text" / "b.txt", std::string(300, 'b') + "\n");
  write(folder / "text" / "a.txt", "first\n\nsecond line\n");
  write(folder / "text" / ".hidden", "no");
  write(folder / "text" / ".git" / "config", "no");  // as train and inspect skip it
  const std::string out = folder / "set";
  const json built =
      done({"data", "build", folder / "text", "--out", out, "--documents", "lines", "--threads", "3", "--json"});
  EXPECT_EQ(built["documents"], 3);  // an empty line is none
  EXPECT_EQ(built["tokens"], 5 + 11 + 300);
  EXPECT_EQ(read_file(out + ".bin").substr(0, 4), std::string("f\0i\0", 4));
  const json seen = done({"data", "inspect", out, "--vocab-size", "256", "--seq-len", "16", "--json"});
  EXPECT_EQ(seen["tokens"], 316);
  EXPECT_EQ(seen["documents"], 3);
  EXPECT_EQ(seen["type"], "uint16");
  EXPECT_EQ(seen["largest_id"], 't');
  EXPECT_EQ(seen["samples"], 19);
  EXPECT_EQ(done({"data", "build", folder / "text", "--out", out, "--json"})["documents"], 2);

  const json trained = done({"train", "--model", "gpt2-nano", "--data", "2", out, "1", folder / "text" / "b.txt",
                             "--seq-len", "16", "--steps", "2", "--global-batch", "3", "--json"});
  EXPECT_EQ(trained["steps"], 2);
}

TEST(DataCommand, RefusalsAreNamed) {
  const fs::path folder = fresh_folder("bad-data");
  write(folder / "a.txt", "text");
  const auto expect = [](const std::vector<std::string>& words, const std::string& reason) {
    const Outcome outcome = run_cuboid(words);
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(reason));
  };
  const std::string text = folder / "a.txt";
  expect({"data"}, "say build or inspect");
  expect({"data", "inspect"}, "give at least one path");
  expect({"data", "inspect", text, "--vocab-size", "100"}, "id 116, the model's vocabulary is 100");
  expect({"data", "inspect", text, "--seq-len", "4"}, "needs 5 tokens, there are 4");
  expect({"data", "build", text}, "needs --out");
  expect({"data", "build", text, "--out", folder / "x", "--tokenizer", text}, "a.txt");
  EXPECT_FALSE(fs::exists(folder / "x.bin"));
  for (const auto& entry : fs::directory_iterator(CUBOID_TEST_DATA "/cases/megatron")) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("bad-") || !name.ends_with(".idx")) continue;
    expect({"data", "inspect", entry.path()}, name.substr(0, name.size() - 4));
  }
}

}  // namespace
}  // namespace cuboid::test
