#include "cuboid/formats/tokens.h"

#include <algorithm>

#include <sys/stat.h>

#include "files.h"

namespace cuboid {
namespace {

using test::bytes_of;
using test::case_path;
using test::expect_mentions;
using test::refusal;
using test::TemporaryFolder;
using Ids = std::vector<std::int32_t>;

TokenStream open(const std::vector<std::string>& paths, DataFormat format = DataFormat::automatic) {
  return TokenStream::open(paths, format);
}

std::vector<std::int32_t> read(const TokenStream& stream, std::int64_t begin, std::int64_t count) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(count));
  stream.read(begin, out);
  return out;
}
std::vector<std::int32_t> all(const TokenStream& stream) {
  return read(stream, 0, stream.size());
}

/// An llm.c file.
template <typename Id>
std::string llmc(std::int32_t magic, std::int32_t version, const std::vector<Id>& ids) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = static_cast<std::int32_t>(ids.size());
  return bytes_of(header) + bytes_of(ids);
}

// ---------------------------------------------------------------- the shared cases

TEST(TokenFiles, BadFilesAreRefusedWithTheReason) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"llmc-bad-version", "llm.c magic 20240520 with version 7; this magic's version is 1"},
      {"llmc-count-one-too-few", "says 99 tokens of 2 bytes (198 bytes), but 200 bytes follow it"},
      {"llmc-eval-file-given-as-train", "is an llm.c evaluation file (magic 20240522)"},
      {"llmc-header-only-512-bytes", "an llm.c header (magic 20240520) of 512 bytes; the header is 1024 bytes long"},
      {"llmc-llama3-header-uint16-body", "but 200 bytes follow it; that would be as many uint16 tokens"},
      {"llmc-zero-tokens", "holds no tokens"},
      {"nanogpt-199-bytes", "199 bytes are no whole number of uint16 tokens"},
  };
  std::vector<std::string> paths;
  for (const auto& [name, reason] : cases) {
    paths.push_back(case_path("tokens/" + name + ".bin"));
    for (const DataFormat format : {DataFormat::automatic, DataFormat::bin}) {
      expect_mentions(refusal([&] { open({paths.back()}, format); }), {paths.back(), reason});
    }
  }
  // All reasons at once over several paths.
  const std::string together = refusal([&] { open(paths); });
  for (const auto& [name, reason] : cases) expect_mentions(together, {reason});
  EXPECT_EQ(std::count(together.begin(), together.end(), '\n') + 1, std::ssize(cases));
}

TEST(TokenFiles, LlmcHeaderIsNotData) {
  const auto stream = open({case_path("tokens/llmc-10-tokens.bin")});
  EXPECT_EQ(stream.size(), 10);
  EXPECT_EQ(stream.id_bound(), 65536);
  EXPECT_EQ(stream.position_of(3).byte, 1024 + 6);
}

TEST(TokenFiles, OracleTokensAreRaw) {
  const auto stream = open({test::oracle_path("gpt2-tiny/tokens.bin")});
  EXPECT_EQ(stream.size(), 20000);
  EXPECT_EQ(stream.description(), test::oracle_path("gpt2-tiny/tokens.bin"));
  stream.check_tokens(500);
}

// ---------------------------------------------------------------- formats

TEST(TokenFiles, Widths) {
  const TemporaryFolder folder;
  const std::vector<std::uint16_t> narrow = {7, 65535, 300};
  const std::vector<std::uint32_t> wide = {128255, 0, 70000, 5};
  EXPECT_EQ(all(open({folder.write("raw.bin", bytes_of(narrow))})), (Ids{7, 65535, 300}));
  EXPECT_EQ(all(open({folder.write("c.bin", llmc(20240520, 1, narrow))})), (Ids{7, 65535, 300}));
  const auto llama = open({folder.write("l.bin", llmc(20240801, 7, wide))});
  EXPECT_EQ(all(llama), (Ids{128255, 0, 70000, 5}));
  EXPECT_EQ(llama.id_bound(), std::int64_t{1} << 32);
  const auto text = open({folder.write("t.txt", "Aé\n")});
  EXPECT_EQ(all(text), (Ids{65, 0xc3, 0xa9, 10}));
  EXPECT_EQ(text.id_bound(), 256);
  // The format given decides over the extension.
  EXPECT_EQ(all(open({folder.write("raw.dat", bytes_of(narrow))}, DataFormat::bin)), (Ids{7, 65535, 300}));
  EXPECT_EQ(all(open({folder.write("text.bin", "ab")}, DataFormat::text)), (Ids{97, 98}));
}

TEST(TokenFiles, BinaryIsNotTakenForText) {
  const TemporaryFolder folder;
  const std::string path = folder.write("model.npy", std::string("NUMPY\0\1", 7));
  expect_mentions(refusal([&] { open({path}); }), {path, "a zero byte at offset 5"});
  EXPECT_EQ(open({path}, DataFormat::text).size(), 7);
}

TEST(TokenFiles, MegatronPairsAreKnownByTheirIndex) {
  for (const char* name : {"megatron/ok-uint16", "megatron/ok-uint16.bin", "megatron/ok-uint16.idx"}) {
    EXPECT_EQ(all(open({case_path(name)})), all(open({case_path("megatron/ok-uint16.bin")}, DataFormat::bin))) << name;
  }
  EXPECT_EQ(all(open({case_path("megatron/ok-int32-two-seq-doc")})).size(), 12U);
  expect_mentions(refusal([] { open({case_path("megatron/ok-empty")}); }), {"ok-empty.bin", "holds no tokens"});
  EXPECT_EQ(open({case_path("megatron/ok-uint16.bin")}, DataFormat::bin).size(), 15);
}

TEST(TokenFiles, TextAndTokensDoNotMix) {
  const TemporaryFolder folder;
  folder.write("a.txt", "ab");
  folder.write("b.bin", "cd");
  expect_mentions(refusal([&] { open({folder.path()}); }), {"cannot be one stream", "a.txt", "b.bin"});
  EXPECT_EQ(open({folder.path()}, DataFormat::text).size(), 4);
  EXPECT_EQ(open({folder.path()}, DataFormat::bin).size(), 2);
}

// ---------------------------------------------------------------- folders and several files

TEST(TokenStream, FolderInPathOrderWithoutHiddenFiles) {
  const TemporaryFolder folder;
  folder.write("b.txt", "BB");
  folder.write("a/z.txt", "z");
  folder.write("a/y/x.md", "xyz");
  folder.write("a.txt", "A");
  folder.write(".hidden", "no");
  folder.write(".git/config", "no");
  folder.write("empty.txt", "");
  const auto stream = open({folder.path()});
  std::string text;
  for (const std::int32_t id : all(stream)) text += static_cast<char>(id);
  EXPECT_EQ(text, "AxyzzBB");  // "a.txt" < "a/y/x.md" < "a/z.txt" < "b.txt"
  EXPECT_EQ(stream.description(), "4 text files");
  EXPECT_EQ(stream.position_of(0).file, folder / "a.txt");
  EXPECT_EQ(stream.position_of(3).file, folder / "a/y/x.md");
  EXPECT_EQ(stream.position_of(3).token, 2);
  EXPECT_EQ(stream.position_of(6).file, folder / "b.txt");
}

TEST(TokenStream, OrderOfPathsIsKept) {
  const TemporaryFolder folder;
  const std::vector<std::uint16_t> first = {1, 2, 3};
  const std::vector<std::uint32_t> second = {90000, 5};
  const std::string a = folder.write("a.bin", bytes_of(first));
  const std::string b = folder.write("b.bin", llmc(20240801, 7, second));
  const auto stream = open({b, a, b});
  EXPECT_EQ(stream.size(), 7);
  EXPECT_EQ(read(stream, 1, 5), (Ids{5, 1, 2, 3, 90000}));
  EXPECT_EQ(read(stream, 7, 0), (Ids{}));
  EXPECT_EQ(stream.position_of(6).byte, 1024 + 4);
  EXPECT_EQ(stream.description(), "3 token files");
  EXPECT_THROW(read(stream, 3, 5), std::logic_error);
  EXPECT_THROW(read(stream, -1, 1), std::logic_error);
  EXPECT_THROW(stream.position_of(7), std::logic_error);
}

TEST(TokenStream, FaultsOfPaths) {
  const TemporaryFolder folder;
  const std::string empty = folder.write("empty.txt", "");
  std::filesystem::create_directories(folder / "void");
  const std::string message = refusal([&] { open({folder / "none", empty, folder / "void"}); });
  expect_mentions(message, {(folder / "none") + ": cannot be opened: No such file", empty + ": is empty",
                            (folder / "void") + ": the folder holds no file"});
  expect_mentions(refusal([] { open({}); }), {"--data: no path is given"});
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_mentions(refusal([&] { open({folder / "pipe"}); }), {"is not a regular file"});
}

TEST(TokenStream, PositionsAre64Bit) {
  // A sparse file of 2^31 + 5 uint16 tokens: 32-bit counts of tokens or bytes would wrap.
  const TemporaryFolder folder;
  const std::string path = folder.write("large.bin", "");
  const std::int64_t tokens = (std::int64_t{1} << 31) + 5;
  std::filesystem::resize_file(path, static_cast<std::uintmax_t>(2 * tokens));
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const std::vector<std::uint16_t> last = {11, 12, 13};
  file.seekp(2 * (tokens - 3));
  file << bytes_of(last);
  file.close();
  const auto stream = open({path});
  EXPECT_EQ(stream.size(), tokens);
  EXPECT_EQ(read(stream, tokens - 4, 4), (Ids{0, 11, 12, 13}));
  EXPECT_EQ(stream.position_of(tokens - 1).byte, 2 * (tokens - 1));
}

TEST(TokenStream, AFolderOfTheWrongKindDoesNotFloodTheScreen) {
  const TemporaryFolder folder;
  for (int i = 10; i < 35; ++i) folder.write("f" + std::to_string(i), std::string(3, '\0'));
  const std::string message = refusal([&] { open({folder.path()}); });
  expect_mentions(message, {"f10: ", "f19: ", "15 more files cannot be read as tokens"});
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n') + 1, 11);
}

// ---------------------------------------------------------------- ids against the vocabulary

TEST(CheckTokens, NamesIdFileAndPosition) {
  const TemporaryFolder folder;
  std::vector<std::uint16_t> ids(10000, 4);
  const std::string good = folder.write("a.bin", bytes_of(ids));
  ids[8191] = 50257;
  ids[9000] = 60000;
  const std::string bad = folder.write("b.bin", bytes_of(ids));
  const auto stream = open({good, bad});
  expect_mentions(refusal([&] { stream.check_tokens(50257); }),
                  {bad + ": token 8191 (byte 16382) has id 50257, the model's vocabulary is 50257 (ids 0 to 50256)"});
  expect_mentions(refusal([&] { stream.check_tokens(50258); }), {"token 9000 (byte 18000) has id 60000"});
  stream.check_tokens(60001);
  stream.check_tokens(std::int64_t{1} << 40);
}

TEST(CheckTokens, TextAndWideIds) {
  const TemporaryFolder folder;
  const auto text = open({folder.write("t.txt", "abc~")});
  expect_mentions(refusal([&] { text.check_tokens(126); }), {"token 3 (byte 3) has id 126"});
  text.check_tokens(127);
  text.check_tokens(256);
  const std::vector<std::uint32_t> ids = {3, 0xfffffff0U};
  const auto wide = open({folder.write("w.bin", llmc(20240801, 7, ids))});
  expect_mentions(refusal([&] { wide.check_tokens(128256); }), {"token 1 (byte 1028) has id 4294967280"});
  // Ids at the storage's own limit: 65535 is the last uint16.
  const std::vector<std::uint16_t> top = {65535};
  const auto narrow = open({folder.write("n.bin", bytes_of(top))});
  expect_mentions(refusal([&] { narrow.check_tokens(65535); }), {"id 65535"});
  narrow.check_tokens(65536);
}

}  // namespace
}  // namespace cuboid
