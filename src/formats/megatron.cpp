#include "cuboid/formats/megatron.h"

#include <array>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include "cuboid/core/error.h"

namespace cuboid {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr std::string_view kOldMagic{"TNTIDX\0\0", 8};
constexpr std::uint64_t kVersion = 1;
constexpr std::uint64_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;  // magic, version, type, sequences, document entries
constexpr std::uint64_t kSequenceBytes = 4 + 8;            // length, pointer
constexpr std::uint64_t kDocumentBytes = 8;

struct TypeRow {
  TokenType type;
  const char* name;
  std::size_t size;
  int code;  // Megatron's; 0: none
};
constexpr std::array kTypes = {TypeRow{TokenType::u8, "uint8", 1, 1},  TypeRow{TokenType::i8, "int8", 1, 2},
                               TypeRow{TokenType::i16, "int16", 2, 3}, TypeRow{TokenType::i32, "int32", 4, 4},
                               TypeRow{TokenType::i64, "int64", 8, 5}, TypeRow{TokenType::u16, "uint16", 2, 8},
                               TypeRow{TokenType::u32, "uint32", 4, 0}};
constexpr int kFloat64Code = 6;
constexpr int kFloat32Code = 7;

const TypeRow& row_of(TokenType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row;
  }
  contract_violation("token type", __FILE__, __LINE__, std::to_string(static_cast<int>(type)));
}

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw Error(ErrorKind::request, path + ": " + reason);
}

/// A number at any alignment. @pre it lies in the bytes
template <typename T>
T load(std::span<const std::byte> bytes, std::uint64_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

std::string prefix_of(const std::string& path) {
  for (const std::string_view extension : {".bin", ".idx"}) {
    if (path.ends_with(extension)) return path.substr(0, path.size() - extension.size());
  }
  return path;
}

TokenType type_of(int code, const std::string& path) {
  for (const TypeRow& row : kTypes) {
    if (code != 0 && row.code == code) return row.type;
  }
  if (code == kFloat64Code || code == kFloat32Code) {
    refuse(path, fmt::format("element type {} is floating-point; tokens are whole numbers", code));
  }
  refuse(path, fmt::format("element type {} is unknown; known are 1 to 8", code));
}

}  // namespace

std::size_t size_of(TokenType type) {
  return row_of(type).size;
}
const char* name_of(TokenType type) {
  return row_of(type).name;
}

bool MegatronIndex::is_pair(const std::string& path) {
  const std::string prefix = prefix_of(path);
  std::error_code ignored;
  if (!fs::is_regular_file(prefix + ".idx", ignored) || !fs::is_regular_file(prefix + ".bin", ignored)) return false;
  const auto file = MappedFile::open(prefix + ".idx");
  const auto bytes = file->bytes();
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), kMagic.size()));
  // A file that was cut inside its header is one, too: it is refused with its fault.
  return head.size() >= kOldMagic.size() && (head == kMagic || head.starts_with(kOldMagic));
}

MegatronIndex MegatronIndex::open(const std::string& path) {
  const std::string prefix = prefix_of(path);
  MegatronIndex index;
  index.bin_path_ = prefix + ".bin";
  index.file_ = MappedFile::open(prefix + ".idx");
  std::error_code fault;
  const auto bin_bytes = fs::file_size(index.bin_path_, fault);
  if (fault) refuse(index.bin_path_, "cannot be opened: " + fault.message());
  index.check(*index.file_, bin_bytes);
  return index;
}

void MegatronIndex::check(const MappedFile& file, std::uint64_t bin_bytes) {
  const auto bytes = file.bytes();
  const std::string& path = file.path();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with(kOldMagic)) {
    refuse(path, "is of Megatron's older format (TNTIDX), which is not read; preprocess the data anew");
  }
  if (!text.starts_with(kMagic.substr(0, std::min(text.size(), kMagic.size())))) {
    refuse(path, "is not a Megatron index: it does not begin with MMIDIDX");
  }
  if (bytes.size() < kHeaderBytes) {
    refuse(path, fmt::format("{} bytes are too few: the header alone has {}", bytes.size(), kHeaderBytes));
  }
  if (const auto version = load<std::uint64_t>(bytes, 9); version != kVersion) {
    refuse(path, fmt::format("has version {}; only version {} is known", version, kVersion));
  }
  type_ = type_of(load<std::uint8_t>(bytes, 17), path);
  const auto sequences = load<std::uint64_t>(bytes, 18);
  const auto entries = load<std::uint64_t>(bytes, 26);
  // Counts against the size, in a way that no count can overflow.
  const std::uint64_t body = bytes.size() - kHeaderBytes;
  const bool plausible = sequences <= body / kSequenceBytes && entries <= body / kDocumentBytes;
  const std::uint64_t needed = plausible ? sequences * kSequenceBytes + entries * kDocumentBytes : 0;
  has_modes_ = plausible && body == needed + sequences && sequences > 0;
  if (!plausible || (body != needed && !has_modes_)) {
    refuse(path, fmt::format("says {} sequences and {} document boundaries, which do not fit its {} bytes", sequences,
                             entries, bytes.size()));
  }
  if (entries == 0) refuse(path, "has no document boundaries; the first must be 0");
  sequences_ = static_cast<std::int64_t>(sequences);
  document_entries_ = static_cast<std::int64_t>(entries);
  const auto width = static_cast<std::int64_t>(size_of(type_));
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < sequences_; ++i) {
    if (length(i) < 0) refuse(path, fmt::format("sequence {} has {} tokens", i, length(i)));
    if (pointer(i) != at) {
      refuse(path, fmt::format("the pointer of sequence {} is {}; the sequences before it end at byte {}", i,
                               pointer(i), at));
    }
    at += length(i) * width;  // 2^31 · 8 a sequence, and fewer than 2^60 / 12 of them: checked against the size below
    if (static_cast<std::uint64_t>(at) > bin_bytes) break;
  }
  if (static_cast<std::uint64_t>(at) != bin_bytes) {
    refuse(bin_path_,
           fmt::format("has {} bytes, but its index holds {}{} bytes of {} tokens; are .bin and .idx of one "
                       "data set?",
                       bin_bytes, static_cast<std::uint64_t>(at) > bin_bytes ? "at least " : "", at, name_of(type_)));
  }
  tokens_ = at / width;
  if (document_begin(0) != 0) {
    refuse(path, fmt::format("the document boundaries begin at {}, not at 0", document_begin(0)));
  }
  for (std::int64_t i = 1; i < document_entries_; ++i) {
    if (document_begin(i) < document_begin(i - 1)) {
      refuse(path, fmt::format("document boundary {} goes back from {} to {} (files joined without care?)", i,
                               document_begin(i - 1), document_begin(i)));
    }
  }
  if (document_begin(documents()) != sequences_) {
    refuse(path, fmt::format("the document boundaries end at sequence {}, there are {}", document_begin(documents()),
                             sequences_));
  }
}

std::int64_t MegatronIndex::length(std::int64_t i) const {
  return load<std::int32_t>(file_->bytes(), kHeaderBytes + 4 * static_cast<std::uint64_t>(i));
}

std::int64_t MegatronIndex::pointer(std::int64_t i) const {
  return load<std::int64_t>(
      file_->bytes(), kHeaderBytes + 4 * static_cast<std::uint64_t>(sequences_) + 8 * static_cast<std::uint64_t>(i));
}

std::int64_t MegatronIndex::document_begin(std::int64_t i) const {
  return load<std::int64_t>(file_->bytes(), kHeaderBytes + kSequenceBytes * static_cast<std::uint64_t>(sequences_) +
                                                8 * static_cast<std::uint64_t>(i));
}

MegatronWriter::MegatronWriter(const std::string& prefix, TokenType type)
    : prefix_(prefix), type_(type), bin_(prefix + ".bin") {
  CUBOID_CHECK(type == TokenType::u16 || type == TokenType::i32, "tokens are written as uint16 or int32");
}

void MegatronWriter::add_document(std::span<const std::int32_t> tokens) {
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw Error(ErrorKind::request, fmt::format("{}: a document of {} tokens; the format's lengths end at 2^31 - 1",
                                                prefix_, tokens.size()));
  }
  for (const std::int32_t id : tokens) {
    if (id >= 0 && (type_ == TokenType::i32 || id <= std::numeric_limits<std::uint16_t>::max())) continue;
    throw Error(ErrorKind::request, fmt::format("{}: id {} does not fit {}", prefix_, id, name_of(type_)));
  }
  if (type_ == TokenType::i32) {
    bin_.write(tokens.data(), tokens.size_bytes());
  } else {
    narrow_.assign(tokens.begin(), tokens.end());
    bin_.write(narrow_.data(), narrow_.size() * sizeof(std::uint16_t));
  }
  lengths_.push_back(static_cast<std::int32_t>(tokens.size()));
  bytes_ += static_cast<std::int64_t>(tokens.size() * size_of(type_));
}

void MegatronWriter::finish() {
  AtomicFile index(prefix_ + ".idx");
  const auto put = [&](const auto& value) { index.write(&value, sizeof(value)); };
  index.write(kMagic.data(), kMagic.size());
  put(kVersion);
  put(static_cast<std::uint8_t>(row_of(type_).code));
  put(static_cast<std::uint64_t>(lengths_.size()));
  put(static_cast<std::uint64_t>(lengths_.size() + 1));
  index.write(lengths_.data(), lengths_.size() * sizeof(std::int32_t));
  std::vector<std::int64_t> numbers;
  std::int64_t at = 0;
  for (const std::int32_t length : lengths_) {
    numbers.push_back(at);
    at += std::int64_t{length} * static_cast<std::int64_t>(size_of(type_));
  }
  index.write(numbers.data(), numbers.size() * sizeof(std::int64_t));
  numbers.clear();
  for (std::int64_t i = 0; i <= documents(); ++i) numbers.push_back(i);
  index.write(numbers.data(), numbers.size() * sizeof(std::int64_t));
  // The tokens first: an index without them would be a pair of strangers.
  bin_.commit();
  index.commit();
}

}  // namespace cuboid
