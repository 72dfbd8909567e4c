// The index and files of checkpoints: what is written is read, and nothing damaged or hostile is believed.
#include "cuboid/formats/checkpoint.h"

#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "cuboid/formats/durable.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/formats/run_file.h"

#include "files.h"

namespace cuboid {
namespace {

using test::expect_mentions;
using test::refusal;

// A (3,5) matrix in three slices: columns 0-1 and 2-4 of the first two rows, the last row. And a vector, whole.
struct Example {
  std::vector<float> left = {0, 1, 5, 6};
  std::vector<float> right = {2, 3, 4, 7, 8, 9};
  std::vector<float> last = {10, 11, 12, 13, 14};
  std::vector<float> bias = {-1, -2, -3, -4};

  std::string write(const test::TemporaryFolder& folder) const {
    const Shape shape = {3, 5};
    const std::vector<SliceToWrite> first = {{"weights/w", shape, {0, 2, 5, 2}, left.data()},
                                             {"weights/b", {4}, {0, 4, 0, 1}, bias.data()}};
    const std::vector<SliceToWrite> second = {{"weights/w", shape, {10, 5, 0, 1}, last.data()},
                                              {"weights/w", shape, {2, 3, 5, 2}, right.data()}};
    CheckpointIndex index;
    index.step = 7;
    index.samples = 56;
    index.seed = ~std::uint64_t{0};
    index.optimizer_steps = 7;
    index.loss = 2.5;
    merge_index(index, write_checkpoint_file(folder.path(), "rank_00000.safetensors", first));
    merge_index(index, write_checkpoint_file(folder.path(), "rank_00001.safetensors", second));
    RunConfig run;
    run.model = "gpt2-nano";
    write_checkpoint_end(folder.path(), index, load_model("gpt2-nano"), &run);
    return folder.path();
  }
};

std::vector<float> counted(std::size_t n) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

TEST(Checkpoint, WhatIsWrittenIsRead) {
  const test::TemporaryFolder folder;
  const Example example;
  const Checkpoint read = Checkpoint::open(example.write(folder));
  EXPECT_EQ(read.index().step, 7);
  EXPECT_EQ(read.index().samples, 56);
  EXPECT_EQ(read.index().seed, ~std::uint64_t{0});
  EXPECT_EQ(read.index().loss, 2.5);
  EXPECT_EQ(read.run()->model, "gpt2-nano");
  EXPECT_EQ(read.model().hidden, load_model("gpt2-nano").hidden);
  EXPECT_EQ(read.read_whole(*read.find_tensor("weights/w")), counted(15));
  EXPECT_EQ(read.read_whole(*read.find_tensor("weights/b")), example.bias);
  EXPECT_EQ(read.find_tensor("weights/c"), nullptr);
  EXPECT_TRUE(read.verify().empty());
  // Any safetensors reader finds whole tensors under their names and shapes.
  EXPECT_EQ(SafetensorsFile::open(folder / "rank_00000.safetensors").find("weights/b")->shape, (Shape{4}));
  EXPECT_EQ(SafetensorsFile::open(folder / "rank_00001.safetensors").find("weights/w@2")->shape, (Shape{2, 3}));
}

// Every pair of bounds: the part between them, gathered from whatever slices hold it.
TEST(Checkpoint, AnyPartIsRead) {
  const test::TemporaryFolder folder;
  const Checkpoint read = Checkpoint::open(Example().write(folder));
  const CheckpointTensor& tensor = *read.find_tensor("weights/w");
  for (std::int64_t a = 0; a < 15; ++a) {
    for (std::int64_t b = a + 1; b <= 15; ++b) {
      const std::vector<WantedRun> wanted = {{0, a, b - a}, {a, b - a, 0}};  // the part first, what is before it behind
      std::vector<float> out(static_cast<std::size_t>(b), -1);
      read.read(tensor, std::span(wanted).subspan(a == 0 ? 1 : 0), out.data());
      for (std::int64_t i = 0; i < b; ++i) {
        EXPECT_EQ(out[static_cast<std::size_t>(i)], static_cast<float>(i < b - a ? a + i : i - (b - a)));
      }
    }
  }
}

// Every bit of every file: opening or verifying says which file it is, and which tensor where it lies in one.
TEST(Checkpoint, EveryFlippedBitIsFound) {
  const test::TemporaryFolder folder;
  Example().write(folder);
  for (const char* name :
       {"rank_00000.safetensors", "rank_00001.safetensors", "config.json", "run.toml", "index.json"}) {
    const std::string sound = test::contents(folder / name);
    // One bit of every byte; of long texts, which are hashed as a whole, of some.
    const std::size_t stride = name == std::string("run.toml") ? 37 : 1;
    for (std::size_t i = 0; i < sound.size(); i += stride) {
      std::string damaged = sound;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
      folder.write(name, damaged);
      std::string message;
      try {
        const auto faults = Checkpoint::open(folder.path()).verify();
        ASSERT_FALSE(faults.empty()) << name << " byte " << i;
        message = faults.front();
      } catch (const Error& error) {
        message = error.what();
      }
      ASSERT_NE(message.find(name), std::string::npos) << "byte " << i << ": " << message;
    }
    folder.write(name, sound);
  }
  const std::string path = folder / "rank_00001.safetensors";
  std::string damaged = test::contents(path);
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  folder.write("rank_00001.safetensors", damaged);
  const auto faults = Checkpoint::open(folder.path()).verify();
  ASSERT_EQ(faults.size(), 1U);
  expect_mentions(faults[0], {"rank_00001.safetensors", "tensor weights/w", "weights/w@2"});
  const Checkpoint read = Checkpoint::open(folder.path());
  expect_mentions(refusal([&] { read.read_whole(*read.find_tensor("weights/w")); }),
                  {"rank_00001.safetensors", "weights/w@2 does not have its checksum"});
  read.read_whole(*read.find_tensor("weights/b"));
}

// An index whose checksum is right, so that its content is looked at.
std::string index_of(const std::string& rest) {
  const std::string body = "\"format\":\"cuboid checkpoint\"," + rest;
  char checksum[17];
  std::snprintf(checksum, sizeof(checksum), "%016llx",
                static_cast<unsigned long long>(checksum_of(body.data(), body.size())));
  return std::string("{\"checksum\":\"") + checksum + "\",\n" + body;
}
std::string tensor_index(const std::string& shape, const std::string& slices) {
  return index_of(
      R"("version":1,"step":1,"samples":8,"seed":"0000000000000000","optimizer_steps":1,"loss":1.0,"files":{"f":{"bytes":9,"checksum":"00000000000000ff"}},"tensors":{"t":{"dtype":"F32","shape":)" +
      shape + R"(,"slices":[)" + slices + "]}}}");
}
std::string slice(const std::string& numbers, const std::string& file = "f") {
  return R"({"file":")" + file + R"(","entry":"t","checksum":"0123456789abcdef",)" + numbers + "}";
}

TEST(CheckpointIndex, SoundOnesAreRead) {
  const auto index =
      read_checkpoint_index(tensor_index("[2,3]", slice(R"("start":0,"length":1,"stride":3,"repeat":2)") + "," +
                                                      slice(R"("start":1,"length":2,"stride":3,"repeat":2)")),
                            "index.json");
  EXPECT_EQ(index.tensors.at("t").slices[1].slice, (Slice{1, 2, 3, 2}));
  EXPECT_EQ(index.tensors.at("t").slices[1].slice.end(), 6);
  EXPECT_EQ(index.tensors.at("t").slices[1].checksum, 0x0123456789abcdefU);
  EXPECT_EQ(index.files.at("f").checksum, 0xffU);
}

TEST(CheckpointIndex, FaultsAreNamed) {
  const auto fault = [](const std::string& text) {
    return refusal([&] { read_checkpoint_index(text, "index.json"); });
  };
  const auto of = [&](const std::string& numbers) { return fault(tensor_index("[4]", slice(numbers))); };
  expect_mentions(fault(""), {"index.json", "holds no checksum"});
  expect_mentions(fault("{\"checksum\":\"0123456789abcdef\",\n\"format\":1}"), {"is damaged", "0123456789abcdef"});
  expect_mentions(fault(index_of("\"version\":2}")), {"version 2", "reads version 1"});
  expect_mentions(fault(index_of("\"version\":1,\"step\":-1}")), {"\"step\" is -1", "\"samples\" is missing"});
  expect_mentions(of(R"("start":0,"length":3)"), {"tensor t", "element 3 is missing"});
  expect_mentions(of(R"("start":1,"length":3)"), {"element 0 is missing"});
  expect_mentions(of(R"("start":1,"length":4)"), {"leaves its 4 elements"});
  expect_mentions(of(R"("start":9223372036854775807,"length":4)"), {"leaves its 4 elements"});
  expect_mentions(of(R"("start":0,"length":1,"stride":9223372036854775807,"repeat":9223372036854775807)"),
                  {"leaves its 4 elements"});
  expect_mentions(of(R"("start":0,"length":2,"stride":1,"repeat":2)"), {"leaves its 4 elements"});
  expect_mentions(of(R"("start":0,"length":0)"), {"leaves its 4 elements"});
  expect_mentions(of(R"("start":0.5,"length":4)"), {"\"start\" is 0.5"});
  expect_mentions(fault(tensor_index("[4]", slice(R"("start":0,"length":3)") + "," + slice(R"("start":2,"length":1)"))),
                  {"element 2 is stored twice"});
  expect_mentions(fault(tensor_index("[4]", slice(R"("start":0,"length":4)") + "," + slice(R"("start":0,"length":4)"))),
                  {"hold more than its 4 elements"});
  const std::string largest = slice(R"("start":0,"length":4611686018427387904)");
  expect_mentions(fault(tensor_index("[4611686018427387904]", largest + "," + largest)),
                  {"hold more than its 4611686018427387904 elements"});
  expect_mentions(fault(tensor_index("[4]", slice(R"("start":0,"length":4)", "../f"))),
                  {"\"../f\", which is not listed"});
  expect_mentions(fault(tensor_index("[4611686018427387904,4]", "")), {"too many elements"});
  expect_mentions(fault(tensor_index("[-4]", "")), {"faulty dim"});
}

TEST(Checkpoint, FilesMustFitTheIndex) {
  const test::TemporaryFolder folder;
  Example().write(folder);
  std::filesystem::copy_file(folder / "rank_00000.safetensors", folder / "rank_00001.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  expect_mentions(refusal([&] { Checkpoint::open(folder.path()); }),
                  {"tensor weights/w", "rank_00001.safetensors does not hold weights/w@2"});
  std::filesystem::remove(folder / "rank_00001.safetensors");
  expect_mentions(refusal([&] { Checkpoint::open(folder.path()); }), {"rank_00001.safetensors", "cannot be opened"});
  // Whether slices cover a tensor is asked once their files are known to hold them.
  folder.write("index.json", tensor_index("[2097152]", slice(R"("start":0,"length":1,"stride":2,"repeat":1048576)")));
  const std::string message = refusal([&] { Checkpoint::open(folder.path()); });
  expect_mentions(message, {"tensor t: f does not hold t"});
  EXPECT_EQ(message.find("is missing"), std::string::npos) << message;
}

TEST(Checkpoint, TheLatestIsFoundFromAnyFolder) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(Checkpoint::find(folder.path()), std::nullopt);
  expect_mentions(refusal([&] { Checkpoint::open(folder.path()); }), {folder.path(), "holds no checkpoint"});
  for (const char* name : {"step_00000009", "step_00000010", "step_00000011.tmp", "step_00000012.removed.tmp"}) {
    folder.write(std::string("run/checkpoints/") + name + "/index.json", "");
  }
  const std::string checkpoints = folder / "run/checkpoints";
  EXPECT_EQ(list_checkpoints(checkpoints).size(), 2U);
  EXPECT_EQ(Checkpoint::find(folder / "run"), checkpoints + "/step_00000010");  // no latest: the newest whole one
  switch_link(checkpoints + "/latest", "step_00000010");
  switch_link(checkpoints + "/latest", "step_00000009");
  for (const char* given : {"run", "run/checkpoints", "run/checkpoints/step_00000009"}) {
    EXPECT_EQ(Checkpoint::find(folder / given), checkpoints + "/step_00000009") << given;
  }
  remove_partial_checkpoints(checkpoints);
  EXPECT_FALSE(std::filesystem::exists(checkpoints + "/step_00000011.tmp"));
  EXPECT_FALSE(std::filesystem::exists(checkpoints + "/step_00000012.removed.tmp"));
}

TEST(Durable, FoldersAreReplacedWhole) {
  const test::TemporaryFolder folder;
  folder.write("a.tmp/new", "1");
  replace_folder(folder / "a.tmp", folder / "a");
  EXPECT_TRUE(std::filesystem::exists(folder / "a/new"));
  folder.write("a.tmp/newer", "2");
  replace_folder(folder / "a.tmp", folder / "a");
  EXPECT_FALSE(std::filesystem::exists(folder / "a/new"));
  EXPECT_TRUE(std::filesystem::exists(folder / "a/newer"));
  EXPECT_FALSE(std::filesystem::exists(folder / "a.tmp"));
}

TEST(Durable, LocksAreTakenOnce) {
  const test::TemporaryFolder folder;
  auto lock = FolderLock::take(folder / ".lock");
  expect_mentions(refusal([&] { FolderLock::take(folder / ".lock"); }), {folder.path(), "in use", "process "});
  lock.reset();
  FolderLock::take(folder / ".lock");
}

TEST(RunFile, DifferencesAreListedByKey) {
  RunConfig a;
  RunConfig b;
  EXPECT_TRUE(compare_runs(a, b).empty());
  b.optimizer.lr = 0.5;
  b.grid = Grid({{2, 1, 1, 1, 1}}, Grid::kDefaultOrder);
  b.data.mask_token = 3;
  b.data.paths = {"a # b"};
  const auto differences = compare_runs(a, b);
  ASSERT_EQ(differences.size(), 4U);
  EXPECT_EQ(differences[0].key, "data");
  EXPECT_EQ(differences[0].now, "[\"a # b\"]");
  EXPECT_EQ(differences[1].key, "mask-token");
  EXPECT_EQ(differences[1].stored, "(none)");
  EXPECT_EQ(differences[1].now, "3");
  EXPECT_EQ(differences[2].section, "Process grid");
  EXPECT_EQ(differences[3].key, "lr");
  EXPECT_EQ(differences[3].stored, "0.001");
  EXPECT_EQ(differences[3].now, "0.5");
}

}  // namespace
}  // namespace cuboid
