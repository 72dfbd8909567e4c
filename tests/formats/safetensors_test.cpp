#include "cuboid/formats/safetensors.h"

#include <bit>
#include <cmath>

#include "files.h"

namespace cuboid {
namespace {

using test::case_path;
using test::expect_mentions;
using test::refusal;
using test::TemporaryFolder;
using Floats = std::vector<float>;
using Names = std::vector<std::string>;

/// A file from its header text and data bytes.
std::string file_of(std::string header, const std::string& data) {
  std::uint64_t length = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + header + data;
}

std::vector<float> floats(const WeightTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.shape().elements()));
  tensor.read_float32(0, tensor.shape().elements(), values.data());
  return values;
}

/// The refusal of a file made of this header and data.
std::string refusal_of(const std::string& header, const std::string& data) {
  const TemporaryFolder folder;
  const std::string path = folder.write("t.safetensors", file_of(header, data));
  std::string message = refusal([&] { SafetensorsFile::open(path); });
  expect_mentions(message, {path});
  return message;
}

// ---------------------------------------------------------------- the shared cases

TEST(Safetensors, BadFilesAreRefusedNamingFileAndFault) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"bad-begin-after-end", "tensor t data_offsets begin 4 after their end 0"},
      {"bad-duplicate-key", "duplicate key t"},
      {"bad-float-offset", "tensor t data offset 4.5 is not a whole number"},
      {"bad-header-length-past-eof", "the header is said to be 4096 bytes long, past the end of the file: 60 bytes"},
      {"bad-header-not-object", "the header is not a JSON object"},
      {"bad-hole", "a hole: bytes 4 to 8 of the data, before tensor b"},
      {"bad-metadata-not-string", "__metadata__ entry step must be a string, is 3"},
      {"bad-negative-offset", "tensor t data offset -4 is negative"},
      {"bad-shape-product-overflow", "tensor t shape [4294967296,4294967296] has more than 2^63 - 1 elements"},
  };
  for (const auto& [name, fault] : cases) {
    const std::string path = case_path("safetensors/" + name + ".safetensors");
    const std::string message = refusal([&] { SafetensorsFile::open(path); });
    expect_mentions(message, {path, fault});
    EXPECT_EQ(refusal([&] { WeightFolder::open(path); }), message);
  }
}

TEST(Safetensors, EveryBadCaseIsCovered) {
  // A case file that is added later must not go untested: none of them opens, bar the one whose fault is its use.
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(case_path("safetensors"))) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("bad-") || name == "bad-unknown-dtype.safetensors") continue;
    refusal([&] { SafetensorsFile::open(entry.path().string()); });
    ++seen;
  }
  EXPECT_GE(seen, 9);
}

TEST(Safetensors, UnknownTypeIsRefusedWhenUsedAndItsOffsetsAreChecked) {
  const std::string path = case_path("safetensors/bad-unknown-dtype.safetensors");
  const WeightFolder folder = WeightFolder::open(path);
  expect_mentions(refusal([&] { folder.at("t"); }), {path, "tensor t has dtype F31"});
  expect_mentions(refusal_of(R"({"t":{"dtype":"F31","shape":[1],"data_offsets":[0,8]}})", "1234"),
                  {"tensor t ends at byte 8 of the data, the file holds 4"});
  expect_mentions(refusal_of(R"({"t":{"dtype":"F31","shape":[1],"data_offsets":[0,2]}})", "1234"),
                  {"the last 2 of 4 bytes of data belong to no tensor"});
}

TEST(Safetensors, OkFilesAreRead) {
  const auto two = SafetensorsFile::open(case_path("safetensors/ok-two-tensors.safetensors"));
  ASSERT_EQ(two.tensors().size(), 2U);
  EXPECT_EQ(two.metadata().at("format"), "pt");
  EXPECT_EQ(two.find("w")->shape, (Shape{2, 3}));
  EXPECT_EQ(two.find("v")->dtype, "BF16");
  EXPECT_EQ(two.find("x"), nullptr);
  EXPECT_EQ(two.bytes(*two.find("v")).size(), 8U);
  for (const char* name : {"ok-two-tensors", "ok-header-order-differs"}) {
    const auto folder = WeightFolder::open(case_path(std::string("safetensors/") + name + ".safetensors"));
    EXPECT_EQ(folder.names(), (Names{"v", "w"}));
    EXPECT_EQ(floats(folder.at("w")), (Floats{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(floats(folder.at("v")), (Floats{1, -2, 0.5F, 3}));
  }
  EXPECT_TRUE(SafetensorsFile::open(case_path("safetensors/ok-no-tensors.safetensors")).tensors().empty());
  const auto small = WeightFolder::open(case_path("safetensors/ok-empty-and-scalar.safetensors"));
  EXPECT_EQ(small.at("none").shape(), (Shape{0, 4}));
  EXPECT_TRUE(floats(small.at("none")).empty());
  EXPECT_EQ(small.at("s").shape().rank(), 0);
  EXPECT_EQ(floats(small.at("s")), (Floats{7}));
}

TEST(WeightFolder, IndexDecides) {
  const auto folder = WeightFolder::open(case_path("safetensors/sharded"));
  EXPECT_EQ(folder.names(), (Names{"a", "b", "c"}));
  EXPECT_EQ(floats(folder.at("b")), (Floats{2, 2}));  // shard 1 holds a stale [9,9]
  EXPECT_EQ(floats(folder.at("a")), (Floats{1, 1}));
  EXPECT_EQ(floats(folder.at("c")), (Floats{3}));
  expect_mentions(refusal([&] { folder.at("bb"); }), {"no tensor bb; the nearest is b"});
}

TEST(WeightFolder, FaultyIndexesAreRefused) {
  const auto message = [](const std::string& name) {
    return refusal([&] { WeightFolder::open(case_path("safetensors/sharded/" + name)); });
  };
  expect_mentions(message("index-path-escape.json"),
                  {"shard \"../ok-two-tensors.safetensors\" is not a path within the index's folder"});
  expect_mentions(message("index-shard-file-missing.json"),
                  {"shard model-00003-of-00003.safetensors is missing from the folder"});
  expect_mentions(message("index-tensor-not-in-shard.json"), {"tensor e is not in its shard"});
}

TEST(WeightFolder, AllFaultsOfAnIndexAtOnce) {
  const TemporaryFolder folder;
  folder.write("bad.safetensors", test::contents(case_path("safetensors/bad-hole.safetensors")));
  folder.write("model.safetensors.index.json",
               R"({"weight_map": {"a": "bad.safetensors", "b": "gone.safetensors", "c": "/etc/passwd", "d": 4}})");
  expect_mentions(refusal([&] { WeightFolder::open(folder.path()); }),
                  {"a hole", "gone.safetensors is missing", "\"/etc/passwd\" is not a path",
                   "shard of tensor d must be a file name, is 4"});
  folder.write("model.safetensors.index.json", R"({"weight_map": ["a"]})");
  expect_mentions(refusal([&] { WeightFolder::open(folder.path()); }), {"no object weight_map"});
  folder.write("model.safetensors.index.json", R"({"weight_map": {"a": "x", "a": "y"}})");
  expect_mentions(refusal([&] { WeightFolder::open(folder.path()); }), {"duplicate key a"});
}

TEST(WeightFolder, MissingPathsAreNamed) {
  const TemporaryFolder folder;
  expect_mentions(refusal([&] { WeightFolder::open(folder.path()); }),
                  {folder.path() + ": the folder holds neither model.safetensors nor"});
  expect_mentions(refusal([&] { WeightFolder::open(folder / "none"); }),
                  {(folder / "none") + ": cannot be opened: No such file"});
}

// ---------------------------------------------------------------- faults made by hand

TEST(Safetensors, FaultsOfOneEntry) {
  const auto entry = [](const std::string& value) { return refusal_of(R"({"t":)" + value + "}", "1234"); };
  expect_mentions(entry("3"), {"tensor t must be an object, is a number"});
  expect_mentions(entry(R"({"dtype":"F32"})"), {"has no shape", "has no data_offsets"});
  expect_mentions(entry(R"({"dtype":4,"shape":[1],"data_offsets":[0,4]})"), {"dtype must be a string, is 4"});
  expect_mentions(entry(R"({"dtype":"F32","shape":1,"data_offsets":[0,4]})"), {"shape must be an array, is 1"});
  expect_mentions(entry(R"({"dtype":"F32","shape":["1"],"data_offsets":[0,4]})"),
                  {"shape entry \"1\" is not a number"});
  expect_mentions(entry(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})"), {"shape entry -1 is negative"});
  expect_mentions(entry(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,8]})"), {"must be two numbers"});
  expect_mentions(entry(R"({"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]})"), {"is too large"});
  expect_mentions(entry(R"({"dtype":"F32","shape":[1],"data_offsets":[0,1e400]})"), {"not valid JSON"});
  expect_mentions(entry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,4]})"),
                  {"of shape (3) and type F32 needs 12 bytes, its data_offsets give 4"});
  expect_mentions(entry(R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,4]})"), {"over 2^63"});
}

TEST(Safetensors, FaultsOfTheWhole) {
  expect_mentions(refusal_of(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                             R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                             "1234"),
                  {"tensors a and b overlap at byte 2"});
  expect_mentions(refusal_of(R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},)"
                             R"("b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
                             "12345"),
                  {"tensors a and b overlap at byte 2"});
  expect_mentions(refusal_of("{}", "12"), {"the last 2 of 2 bytes"});
  expect_mentions(refusal_of("{", ""), {"not valid JSON"});
  expect_mentions(refusal_of("{} x", ""), {"not valid JSON"});
  expect_mentions(refusal_of(R"({"__metadata__":"x"})", ""), {"__metadata__ must be an object of strings"});
  expect_mentions(refusal_of("{\"a\xff\":1}", ""), {"not valid JSON"});
  // Two faults, both named.
  expect_mentions(refusal_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]},"b":7})", "1234"),
                  {"tensor a", "tensor b must be an object"});
}

TEST(Safetensors, HostileDepthDoesNotOverflowTheStack) {
  const std::size_t depth = 200'000;
  const std::string nested = std::string(depth, '[') + std::string(depth, ']');
  expect_mentions(refusal_of(R"({"t":)" + nested + "}", ""), {"tensor t must be an object, is an array"});
  expect_mentions(refusal_of(R"({"t":{"dtype":)" + nested + R"(,"shape":[1],"data_offsets":[0,4]}})", "1234"),
                  {"dtype must be a string, is an array"});
}

TEST(Safetensors, EveryPrefixIsRefused) {
  // The header and the data must both be there in full, so no proper prefix is a valid file.
  for (const char* name : {"ok-two-tensors", "ok-empty-and-scalar", "ok-no-tensors", "ok-header-order-differs"}) {
    const std::string whole = test::contents(case_path(std::string("safetensors/") + name + ".safetensors"));
    const TemporaryFolder folder;
    for (std::size_t length = 0; length < whole.size(); ++length) {
      const std::string path = folder.write("cut.safetensors", whole.substr(0, length));
      expect_mentions(refusal([&] { SafetensorsFile::open(path); }), {path});
    }
  }
}

TEST(Safetensors, ChangedBytesAreRefusedOrRead) {
  // What opens must be readable within its bounds (the sanitizer build watches); all else is an Error{request}.
  const std::string whole = test::contents(case_path("safetensors/ok-two-tensors.safetensors"));
  const TemporaryFolder folder;
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int flip : {0x01, 0x10, 0x80, 0xff}) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ flip);
      const std::string path = folder.write("changed.safetensors", changed);
      try {
        const WeightFolder weights = WeightFolder::open(path);
        for (const std::string& name : weights.names()) floats(weights.at(name));
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::request);
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 300);  // nearly every change of the 152 header bytes matters
}

// ---------------------------------------------------------------- element types

/// A folder-less weight file with one tensor.
std::vector<float> converted(StoredType type, const std::string& bytes, std::int64_t n, std::int64_t first = 0) {
  const TemporaryFolder folder;
  const std::string path = folder / "x.safetensors";
  const TensorToWrite tensor{"x", type, Shape{n}, std::as_bytes(std::span(bytes))};
  write_safetensors(path, {&tensor, 1});
  std::vector<float> out(static_cast<std::size_t>(n - first));
  WeightFolder::open(path).at("x").read_float32(first, n - first, out.data());
  return out;
}

TEST(WeightTensor, EveryHalfFloatIsExact) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  const auto values = converted(StoredType::F16, test::bytes_of(halves), 65536);
  for (int i = 0; i < 65536; ++i) {
    // IEEE 754: (-1)^s · 2^(e-15) · 1.f; e = 0: 2^-14 · 0.f; e = 31: infinity or NaN.
    const int e = (i >> 10) & 31;
    const int f = i & 1023;
    const float value = values[static_cast<std::size_t>(i)];
    EXPECT_EQ(std::signbit(value), i >= 32768);
    if (e == 31 && f != 0) {
      EXPECT_TRUE(std::isnan(value)) << i;
      continue;
    }
    const double magnitude = e == 31 ? HUGE_VAL : e == 0 ? std::ldexp(f, -24) : std::ldexp(1024 + f, e - 25);
    ASSERT_EQ(std::fabs(value), magnitude) << i;
  }
}

TEST(WeightTensor, OtherTypes) {
  const std::vector<std::uint16_t> brain = {0x3f80, 0xc049, 0x0001, 0x7f80};
  EXPECT_EQ(converted(StoredType::BF16, test::bytes_of(brain), 4),
            (Floats{1, -3.140625F, std::ldexp(1.0F, -133), HUGE_VALF}));
  const std::vector<double> wide = {0.1, -1e300, 1 + std::ldexp(1.0, -24), 5};
  EXPECT_EQ(converted(StoredType::F64, test::bytes_of(wide), 4), (Floats{0.1F, -HUGE_VALF, 1, 5}));
  const std::vector<float> single = {1.5F, -2.25F, 3e-42F};
  EXPECT_EQ(converted(StoredType::F32, test::bytes_of(single), 3, 1), (Floats{-2.25F, 3e-42F}));
  const std::vector<std::int64_t> whole = {1, 2};
  expect_mentions(refusal([&] { converted(StoredType::I64, test::bytes_of(whole), 2); }),
                  {"tensor x has dtype I64; weights must be F64, F32, F16 or BF16"});
}

TEST(WeightTensor, RangesOutsideAreContractViolations) {
  const auto folder = WeightFolder::open(case_path("safetensors/ok-two-tensors.safetensors"));
  float out[6];
  EXPECT_THROW(folder.at("w").read_float32(4, 3, out), std::logic_error);
  EXPECT_THROW(folder.at("w").read_float32(-1, 2, out), std::logic_error);
  folder.at("w").read_float32(4, 2, out);
  EXPECT_EQ(out[1], 6);
}

TEST(WeightTensor, LargeFilesAreMapped) {
  const auto folder = WeightFolder::open(test::oracle_path("gpt2-tiny"));
  EXPECT_EQ(folder.at("transformer.wte.weight").shape(), (Shape{500, 64}));
  EXPECT_EQ(folder.at("transformer.h.3.attn.c_attn.weight").shape(), (Shape{64, 192}));
  double sum = 0;
  for (const std::string& name : folder.names()) {
    for (const float x : floats(folder.at(name))) sum += std::fabs(x);
  }
  EXPECT_GT(sum, 0);
  EXPECT_TRUE(std::isfinite(sum));
}

// ---------------------------------------------------------------- writing

TEST(WriteSafetensors, WhatIsWrittenIsRead) {
  const TemporaryFolder folder;
  const std::string path = folder / "out.safetensors";
  const std::vector<float> w = {1, -2, 3, 4, 5, 6};
  const std::vector<std::int32_t> steps = {7};
  const std::vector<TensorToWrite> tensors = {
      {"z \"quoted\" é", StoredType::F32, Shape{3, 2}, std::as_bytes(std::span(w))},
      {"none", StoredType::BF16, Shape{0, 5}, {}},
      {"a", StoredType::I32, Shape{}, std::as_bytes(std::span(steps))},
  };
  write_safetensors(path, tensors, {{"step", "20"}});
  const auto file = SafetensorsFile::open(path);
  ASSERT_EQ(file.tensors().size(), 3U);
  EXPECT_EQ(file.metadata().at("step"), "20");
  for (const TensorToWrite& tensor : tensors) {
    const StoredTensor* found = file.find(tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    EXPECT_EQ(found->type, tensor.type);
    EXPECT_EQ(found->shape, tensor.shape);
    EXPECT_TRUE(std::ranges::equal(file.bytes(*found), tensor.bytes));
  }
  EXPECT_EQ(file.find("z \"quoted\" é")->begin, 0U);
  std::uint64_t header = 0;
  std::memcpy(&header, test::contents(path).data(), 8);
  EXPECT_EQ(header % 8, 0U);
}

TEST(WriteSafetensors, FailureIsNamedAndLeavesNothing) {
  const TemporaryFolder folder;
  const std::string path = folder / "no/such/folder.safetensors";
  try {
    write_safetensors(path, {});
    FAIL() << "written";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failed);
    expect_mentions(error.what(), {path, "No such file"});
  }
  // The old file survives a write that cannot be renamed into place, and no temporary stays behind.
  std::filesystem::create_directories(folder / "taken.safetensors");
  EXPECT_THROW(write_safetensors(folder / "taken.safetensors", {}), Error);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(WriteSafetensors, ContractsAreChecked) {
  const TemporaryFolder folder;
  const std::string bytes = "1234";
  const TensorToWrite t{"t", StoredType::F32, Shape{1}, std::as_bytes(std::span(bytes))};
  TensorToWrite wrong = t;
  wrong.shape = Shape{2};
  EXPECT_THROW(write_safetensors(folder / "x", {&wrong, 1}), std::logic_error);
  const std::vector<TensorToWrite> twice = {t, t};
  EXPECT_THROW(write_safetensors(folder / "x", twice), std::logic_error);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace cuboid
