// Hugging Face folders to checkpoints and back: the same tensors, bit for bit.
#include "cuboid/train/convert.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "cuboid/formats/hf_config.h"
#include "cuboid/formats/safetensors.h"

#include "formats/files.h"

namespace cuboid {
namespace {

namespace fs = std::filesystem;
using test::expect_mentions;
using test::refusal;

void expect_same_weights(const std::string& a, const std::string& b) {
  const WeightFolder x = WeightFolder::open(a);
  const WeightFolder y = WeightFolder::open(b);
  ASSERT_EQ(x.names(), y.names());
  for (const std::string& name : x.names()) {
    ASSERT_EQ(x.at(name).shape(), y.at(name).shape()) << name;
    std::vector<float> u(static_cast<std::size_t>(x.at(name).shape().elements()));
    std::vector<float> v(u.size());
    x.at(name).read_float32(0, static_cast<std::int64_t>(u.size()), u.data());
    y.at(name).read_float32(0, static_cast<std::int64_t>(v.size()), v.data());
    ASSERT_EQ(u, v) << name;
  }
}

ModelConfig without_name(ModelConfig config) {
  config.name.clear();
  return config;
}

// gpt2-tiny: transposed layouts, tied. mixtral-tiny: experts. llama-odd: heads, KV heads, head_dim, ffn and vocabulary
// pairwise different.
TEST(Convert, HuggingFaceThereAndBackIsTheIdentity) {
  for (const char* model : {"gpt2-tiny", "llama-tiny", "mixtral-tiny", "llama-odd"}) {
    SCOPED_TRACE(model);
    const test::TemporaryFolder folder;
    const std::string from = test::oracle_path(model);
    import_hugging_face(from, folder / "checkpoint", 100'000);
    const Checkpoint checkpoint = Checkpoint::open(folder / "checkpoint");
    EXPECT_EQ(checkpoint.run(), nullptr);
    EXPECT_GT(checkpoint.index().files.size(), 2U);  // several parts, and config.json
    EXPECT_TRUE(checkpoint.verify().empty());
    export_hugging_face(checkpoint, folder / "one");
    EXPECT_TRUE(fs::exists(folder / "one/model.safetensors"));
    EXPECT_EQ(without_name(load_model(folder / "one")), without_name(load_model(from)));
    expect_same_weights(from, folder / "one");
    export_hugging_face(checkpoint, folder / "several", 50'000);
    EXPECT_TRUE(fs::exists(folder / "several/model.safetensors.index.json"));
    EXPECT_FALSE(fs::exists(folder / "several/model.safetensors"));
    expect_same_weights(from, folder / "several");
    EXPECT_FALSE(fs::exists(folder / "several.tmp"));
  }
}

TEST(Convert, ReshardChangesFilesOnly) {
  const test::TemporaryFolder folder;
  import_hugging_face(test::oracle_path("gpt2-tiny"), folder / "a", 1);  // a file a tensor
  const Checkpoint a = Checkpoint::open(folder / "a");
  reshard(a, folder / "b");
  const Checkpoint b = Checkpoint::open(folder / "b");
  EXPECT_EQ(b.index().files.size(), 2U);
  EXPECT_EQ(first_difference(a, b), std::nullopt);
  EXPECT_EQ(b.index().step, a.index().step);
}

TEST(Convert, DifferencesNameTensorAndElement) {
  const test::TemporaryFolder folder;
  import_hugging_face(test::oracle_path("gpt2-tiny"), folder / "a");
  CheckpointIndex index;
  const Checkpoint a = Checkpoint::open(folder / "a");
  fs::create_directory(folder / "b");
  std::vector<std::vector<float>> values;
  std::vector<SliceToWrite> slices;
  values.reserve(a.index().tensors.size());
  for (const auto& [name, tensor] : a.index().tensors) {
    values.push_back(a.read_whole(tensor));
    if (name == "weights/layers.1.mlp.up.weight") values.back()[64 * 3 + 5] = 2.5F;
    if (name == "weights/positions.weight") values.back()[0] += 1;  // a later one
    slices.push_back({name, tensor.shape, {0, tensor.shape.elements(), 0, 1}, values.back().data()});
  }
  merge_index(index, write_checkpoint_file(folder / "b", "f.safetensors", slices));
  write_checkpoint_end(folder / "b", index, a.model(), nullptr);
  const auto difference = first_difference(a, Checkpoint::open(folder / "b"));
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->tensor, "weights/layers.1.mlp.up.weight");
  expect_mentions(difference->what, {"element 197 (3,5) is ", " and 2.5"});
  EXPECT_EQ(difference->elements, 1);
}

TEST(Convert, FullFoldersAndForeignWeightsAreRefused) {
  const test::TemporaryFolder folder;
  folder.write("full/file", "x");
  expect_mentions(refusal([&] { import_hugging_face(test::oracle_path("gpt2-tiny"), folder / "full"); }),
                  {"full", "exists"});
  // The name under which a folder is built may be taken, too.
  folder.write("own.tmp/notes.txt", "kept");
  expect_mentions(refusal([&] { import_hugging_face(test::oracle_path("gpt2-tiny"), folder / "own"); }),
                  {"own.tmp, which exists"});
  EXPECT_TRUE(fs::exists(folder / "own.tmp/notes.txt"));
  EXPECT_FALSE(fs::exists(folder / "own"));
  fs::create_directory(folder / "mixed");
  fs::copy_file(test::oracle_path("llama-odd/config.json"), folder / "mixed/config.json");
  fs::copy_file(test::oracle_path("gpt2-tiny/model.safetensors"), folder / "mixed/model.safetensors");
  expect_mentions(refusal([&] { import_hugging_face(folder / "mixed", folder / "out"); }),
                  {"model.embed_tokens.weight is missing"});
  EXPECT_FALSE(fs::exists(folder / "out"));
  EXPECT_FALSE(fs::exists(folder / "out.tmp"));
}

}  // namespace
}  // namespace cuboid
