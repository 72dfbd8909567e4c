// Megatron data sets: every case, the writer, files beyond 2 GB.
#include "cuboid/formats/megatron.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "cuboid/formats/tokenizer.h"
#include "cuboid/formats/tokens.h"

#include "files.h"

namespace cuboid {
namespace {

namespace fs = std::filesystem;
using test::bytes_of;
using test::case_path;
using test::expect_mentions;
using test::refusal;

std::vector<std::int32_t> document(const MegatronIndex& index, std::int64_t i) {
  const TokenStream stream = TokenStream::open({index.bin_path()}, DataFormat::megatron);
  const auto width = static_cast<std::int64_t>(size_of(index.type()));
  const std::int64_t first = index.document_begin(i);
  const std::int64_t last = index.document_begin(i + 1);
  std::int64_t count = 0;
  for (std::int64_t s = first; s < last; ++s) count += index.length(s);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  stream.read(index.pointer(first) / width, ids);
  return ids;
}

TEST(Megatron, SoundCases) {
  const auto narrow = MegatronIndex::open(case_path("megatron/ok-uint16"));
  EXPECT_EQ(narrow.type(), TokenType::u16);
  EXPECT_EQ(narrow.documents(), 3);
  EXPECT_EQ(narrow.tokens(), 15);
  EXPECT_EQ(document(narrow, 1), (std::vector<std::int32_t>{20, 21, 22}));
  const auto wide = MegatronIndex::open(case_path("megatron/ok-int32-two-seq-doc.idx"));
  EXPECT_EQ(wide.type(), TokenType::i32);
  EXPECT_EQ(wide.documents(), 2);
  EXPECT_EQ(wide.sequences(), 3);
  EXPECT_EQ(document(wide, 0).size(), 10U);
  EXPECT_EQ(wide.length(0), 4);
  const auto modes = MegatronIndex::open(case_path("megatron/ok-with-modes.bin"));
  EXPECT_TRUE(modes.has_modes());
  EXPECT_EQ(modes.tokens(), 15);
  const auto empty = MegatronIndex::open(case_path("megatron/ok-empty"));
  EXPECT_EQ(empty.tokens(), 0);
  EXPECT_EQ(empty.documents(), 0);
}

TEST(Megatron, FaultyCasesAreNamed) {
  const auto expect = [](const char* name, std::initializer_list<std::string_view> parts) {
    const std::string message = refusal([&] { MegatronIndex::open(case_path(std::string("megatron/") + name)); });
    expect_mentions(message, {name});
    expect_mentions(message, parts);
  };
  expect("bad-bin-odd-extra", {"31 bytes", "30 bytes of uint16"});
  expect("bad-count-huge", {"2305843009213693952 sequences", "do not fit its 102 bytes"});
  expect("bad-cut-in-header", {"30 bytes are too few"});
  expect("bad-cut-in-pointers", {"3 sequences and 4 document boundaries", "66 bytes"});
  expect("bad-doc-index-not-from-zero", {"begin at", "not at 0"});
  expect("bad-dtype-0", {"type 0 is unknown"});
  expect("bad-dtype-int32-bin-uint16", {"has 30 bytes", "int32"});
  expect("bad-merged-doc-index-restarts", {"goes back from"});
  expect("bad-old-format-magic", {"older format"});
  expect("bad-pointer-not-cumulative", {"pointer of sequence 1 is 12", "end at byte 10"});
  expect("bad-version-2", {"version 2"});
}

// Every prefix and every flipped byte of a sound index is refused or read, and never read beyond.
TEST(Megatron, NoDamageIsBelievedBeyondTheFile) {
  const test::TemporaryFolder folder;
  const std::string sound = test::contents(case_path("megatron/ok-uint16.idx"));
  fs::copy_file(case_path("megatron/ok-uint16.bin"), folder / "d.bin");
  for (std::size_t size = 0; size < sound.size(); ++size) {
    folder.write("d.idx", sound.substr(0, size));
    EXPECT_THROW(MegatronIndex::open(folder / "d"), Error) << size;
  }
  for (std::size_t i = 0; i < 34; ++i) {  // the header
    std::string damaged = sound;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x40);
    folder.write("d.idx", damaged);
    EXPECT_THROW(MegatronIndex::open(folder / "d"), Error) << i;
  }
}

TEST(Megatron, WhatIsWrittenIsRead) {
  for (const TokenType type : {TokenType::u16, TokenType::i32}) {
    const test::TemporaryFolder folder;
    const std::vector<std::vector<std::int32_t>> documents = {{1, 2, 65535}, {}, {7}, {5, 6, 0, 9, 10}};
    MegatronWriter writer(folder / "set", type);
    for (const auto& ids : documents) writer.add_document(ids);
    EXPECT_FALSE(MegatronIndex::is_pair(folder / "set"));  // nothing appears before the end
    EXPECT_EQ(writer.tokens(), 9);
    writer.finish();
    ASSERT_TRUE(MegatronIndex::is_pair(folder / "set"));
    const MegatronIndex index = MegatronIndex::open(folder / "set");
    EXPECT_EQ(index.type(), type);
    ASSERT_EQ(index.documents(), 4);
    for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(document(index, i), documents[static_cast<std::size_t>(i)]);
  }
  // Megatron's own bytes: the same data give the same files.
  const test::TemporaryFolder folder;
  const MegatronIndex given = MegatronIndex::open(case_path("megatron/ok-uint16"));
  MegatronWriter writer(folder / "same", TokenType::u16);
  for (std::int64_t i = 0; i < given.documents(); ++i) writer.add_document(document(given, i));
  writer.finish();
  EXPECT_EQ(test::contents(folder / "same.idx"), test::contents(case_path("megatron/ok-uint16.idx")));
  EXPECT_EQ(test::contents(folder / "same.bin"), test::contents(case_path("megatron/ok-uint16.bin")));
}

TEST(Megatron, IdsMustFitTheType) {
  const test::TemporaryFolder folder;
  MegatronWriter writer(folder / "set", TokenType::u16);
  expect_mentions(refusal([&] { writer.add_document(std::vector<std::int32_t>{65536}); }), {"65536", "uint16"});
  expect_mentions(refusal([&] { writer.add_document(std::vector<std::int32_t>{-1}); }), {"-1"});
}

// A hand-made index over a sparse .bin.
void write_index(const test::TemporaryFolder& folder, const std::string& name, std::uint8_t code, std::int64_t width,
                 const std::vector<std::int32_t>& lengths) {
  std::string text("MMIDIDX\0\0", 9);
  text += bytes_of<std::uint64_t>({1}) + static_cast<char>(code) +
          bytes_of<std::uint64_t>({lengths.size(), lengths.size() + 1}) + bytes_of(lengths);
  std::vector<std::int64_t> pointers;
  std::vector<std::int64_t> documents = {0};
  std::int64_t at = 0;
  for (const std::int32_t length : lengths) {
    pointers.push_back(std::exchange(at, at + length * width));
    documents.push_back(static_cast<std::int64_t>(pointers.size()));
  }
  folder.write(name + ".idx", text + bytes_of(pointers) + bytes_of(documents));
  folder.write(name + ".bin", "");
  fs::resize_file(folder / (name + ".bin"), static_cast<std::uintmax_t>(at));  // sparse
}

TEST(Megatron, PointersBeyondTwoGigabytes) {
  const test::TemporaryFolder folder;
  write_index(folder, "large", 4, 4, {600'000'000, 150'000'000, 10});
  const std::vector<std::int32_t> last = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3};
  std::fstream file(folder / "large.bin", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(3'000'000'000);
  file << bytes_of(last);
  file.close();
  const MegatronIndex index = MegatronIndex::open(folder / "large");
  EXPECT_EQ(index.pointer(1), 2'400'000'000);
  EXPECT_EQ(index.pointer(2), 3'000'000'000);
  EXPECT_EQ(index.tokens(), 750'000'010);
  EXPECT_EQ(document(index, 2), last);
}

TEST(Megatron, EveryElementType) {
  const test::TemporaryFolder folder;
  const auto expect = [&](std::uint8_t code, const std::string& bytes, std::int64_t width) {
    write_index(folder, "t", code, width, {2});
    folder.write("t.bin", bytes);
    const TokenStream stream = TokenStream::open({folder / "t"}, DataFormat::automatic);
    stream.check_tokens(100);
    std::vector<std::int32_t> ids(2);
    stream.read(0, ids);
    EXPECT_EQ(ids, (std::vector<std::int32_t>{7, 99})) << int{code};
    expect_mentions(refusal([&] { stream.check_tokens(99); }), {"token 1 ", "id 99"});
  };
  expect(1, bytes_of<std::uint8_t>({7, 99}), 1);
  expect(2, bytes_of<std::int8_t>({7, 99}), 1);
  expect(3, bytes_of<std::int16_t>({7, 99}), 2);
  expect(4, bytes_of<std::int32_t>({7, 99}), 4);
  expect(5, bytes_of<std::int64_t>({7, 99}), 8);
  expect(8, bytes_of<std::uint16_t>({7, 99}), 2);
  for (const std::uint8_t code : {std::uint8_t{6}, std::uint8_t{7}}) {
    write_index(folder, "t", code, 4, {2});
    expect_mentions(refusal([&] { MegatronIndex::open(folder / "t"); }), {"floating-point"});
  }
  // Ids that a narrower reading would hide.
  write_index(folder, "t", 5, 8, {2});
  folder.write("t.bin", bytes_of<std::int64_t>({7, (std::int64_t{1} << 32) + 7}));
  expect_mentions(refusal([&] { TokenStream::open({folder / "t"}, DataFormat::automatic).check_tokens(100); }),
                  {"token 1 ", "id 4294967303"});
  write_index(folder, "t", 2, 1, {2});
  folder.write("t.bin", bytes_of<std::int8_t>({7, -1}));
  expect_mentions(refusal([&] { TokenStream::open({folder / "t"}, DataFormat::automatic).check_tokens(300); }),
                  {"token 1 ", "id -1"});
}

TEST(Tokenizer, BytesAreIds) {
  const auto tokenizer = make_byte_tokenizer();
  EXPECT_EQ(tokenizer->encode("a\xff"), (std::vector<std::int32_t>{97, 255}));
  EXPECT_EQ(tokenizer->vocab(), 256);
  EXPECT_EQ(tokenizer->end_of_document(), -1);
  const test::TemporaryFolder folder;
  expect_mentions(refusal([&] { make_sentencepiece_tokenizer(folder.write("m.model", "no model")); }), {"m.model"});
}

}  // namespace
}  // namespace cuboid
