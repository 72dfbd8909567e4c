#include "cuboid/formats/tokens.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <type_traits>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/formats/folder.h"

namespace cuboid {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "token files are little-endian and used in place");

// llm.c: dev/data/data_common.py (write_datafile) and write_evalfile.
constexpr std::size_t kHeaderBytes = 256 * sizeof(std::int32_t);
constexpr std::int32_t kMagicUint16 = 20240520;
constexpr std::int32_t kVersionUint16 = 1;
constexpr std::int32_t kMagicUint32 = 20240801;
constexpr std::int32_t kVersionUint32 = 7;
constexpr std::int32_t kMagicEvaluation = 20240522;

/// How much of a supposed text is searched for zero bytes, which no text holds.
constexpr std::size_t kSniffedBytes = std::size_t{64} << 10;

/// A folder of the wrong kind has thousands of faulty files: so many of them are named.
constexpr std::size_t kMostFaults = 10;

/// The part of a file that is tokens.
struct Layout {
  bool text = false;
  std::int64_t data_begin = 0;
  std::int64_t tokens = 0;
  TokenType type = TokenType::u8;
};

[[noreturn]] void refuse(const MappedFile& file, const std::string& reason) {
  throw Error(ErrorKind::request, file.path() + ": " + reason);
}

Layout text_layout(const MappedFile& file, bool sniff) {
  const auto bytes = file.bytes();
  const auto head = bytes.first(std::min(bytes.size(), kSniffedBytes));
  if (const auto zero = std::find(head.begin(), head.end(), std::byte{0}); sniff && zero != head.end()) {
    refuse(file,
           fmt::format("does not look like text (a zero byte at offset {}); --data-format text takes its bytes as "
                       "tokens all the same, --data-format bin reads token files",
                       zero - head.begin()));
  }
  return {true, 0, static_cast<std::int64_t>(bytes.size()), TokenType::u8};
}

/// A file whose first number is one of llm.c's.
Layout header_layout(const MappedFile& file, std::int32_t magic) {
  const auto bytes = file.bytes();
  if (magic == kMagicEvaluation) {
    refuse(file,
           "is an llm.c evaluation file (magic 20240522), which holds multiple-choice questions, not a token stream");
  }
  if (bytes.size() < kHeaderBytes) {
    refuse(file, fmt::format("has an llm.c header (magic {}) of {} bytes; the header is {} bytes long", magic,
                             bytes.size(), kHeaderBytes));
  }
  std::array<std::int32_t, 3> header{};
  std::memcpy(header.data(), bytes.data(), sizeof(header));
  const bool wide = magic == kMagicUint32;
  const std::int32_t version = wide ? kVersionUint32 : kVersionUint16;
  if (header[1] != version) {
    refuse(file, fmt::format("llm.c magic {} with version {}; this magic's version is {}", magic, header[1], version));
  }
  const std::int64_t count = header[2];
  if (count < 0) refuse(file, fmt::format("the llm.c header says {} tokens", count));
  const int width = wide ? 4 : 2;
  const auto body = static_cast<std::int64_t>(bytes.size() - kHeaderBytes);
  if (body != count * width) {
    std::string reason = fmt::format("the llm.c header says {} tokens of {} bytes ({} bytes), but {} bytes follow it",
                                     count, width, count * width, body);
    if (wide && body == count * 2) reason += "; that would be as many uint16 tokens";
    refuse(file, reason);
  }
  return {false, static_cast<std::int64_t>(kHeaderBytes), count, wide ? TokenType::u32 : TokenType::u16};
}

Layout bin_layout(const MappedFile& file) {
  const auto bytes = file.bytes();
  std::int32_t magic = 0;
  if (bytes.size() >= sizeof(magic)) std::memcpy(&magic, bytes.data(), sizeof(magic));
  if (magic == kMagicUint16 || magic == kMagicUint32 || magic == kMagicEvaluation) return header_layout(file, magic);
  if (bytes.size() % 2 != 0) {
    refuse(file, fmt::format("{} bytes are no whole number of uint16 tokens", bytes.size()));
  }
  return {false, 0, static_cast<std::int64_t>(bytes.size() / 2), TokenType::u16};
}

Layout layout_of(const MappedFile& file, DataFormat format) {
  const bool bin =
      format == DataFormat::bin || (format == DataFormat::automatic && fs::path(file.path()).extension() == ".bin");
  return bin ? bin_layout(file) : text_layout(file, format == DataFormat::automatic);
}

/// Index of the first id below 0 or >= vocab, or -1.
template <typename Id>
std::int64_t first_outside(const std::byte* data, std::int64_t tokens, std::int64_t vocab) {
  using Unsigned = std::make_unsigned_t<Id>;
  constexpr auto kMost = static_cast<std::int64_t>(
      std::min<std::uint64_t>(std::numeric_limits<Unsigned>::max(), std::numeric_limits<std::int64_t>::max()));
  if (!std::is_signed_v<Id> && vocab > kMost) return -1;
  // A negative id is a large one of the unsigned type: one comparison finds both.
  const auto bound = static_cast<Unsigned>(std::min<std::int64_t>(vocab, std::numeric_limits<Id>::max()));
  const auto outside = [&](Unsigned id) { return vocab > std::numeric_limits<Id>::max() ? id > bound : id >= bound; };
  constexpr std::int64_t kBlock = 4096;
  std::array<Unsigned, kBlock> ids;
  for (std::int64_t begin = 0; begin < tokens; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, tokens - begin);
    std::memcpy(ids.data(), data + begin * static_cast<std::int64_t>(sizeof(Id)),
                static_cast<std::size_t>(n) * sizeof(Id));
    // The largest of a block first: that loop becomes vector instructions.
    Unsigned largest = 0;
    for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, ids[static_cast<std::size_t>(i)]);
    if (outside(largest)) return begin + (std::find_if(ids.begin(), ids.begin() + n, outside) - ids.begin());
  }
  return -1;
}

template <typename Id>
void widen(const std::byte* data, std::span<std::int32_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Id id;
    std::memcpy(&id, data + i * sizeof(Id), sizeof(Id));
    out[i] = static_cast<std::int32_t>(id);
  }
}

/// f with a value of the type.
template <typename F>
auto with_type(TokenType type, const F& f) {
  switch (type) {
    case TokenType::u8:
      return f(std::uint8_t{});
    case TokenType::i8:
      return f(std::int8_t{});
    case TokenType::u16:
      return f(std::uint16_t{});
    case TokenType::i16:
      return f(std::int16_t{});
    case TokenType::u32:
      return f(std::uint32_t{});
    case TokenType::i32:
      return f(std::int32_t{});
    case TokenType::i64:
      return f(std::int64_t{});
  }
  contract_violation("token type", __FILE__, __LINE__, std::to_string(static_cast<int>(type)));
}

/// Ids of the type are below this.
std::int64_t bound_of(TokenType type) {
  return with_type(type, [](auto id) {
    constexpr auto kMost = static_cast<std::int64_t>(std::numeric_limits<decltype(id)>::max());
    return kMost == std::numeric_limits<std::int64_t>::max() ? kMost : kMost + 1;
  });
}

}  // namespace

/// Appends files to a stream and collects the reasons against them.
class TokenStream::Opener {
 public:
  explicit Opener(DataFormat format) : format_(format) {}

  void add(const std::string& path) {
    try {
      std::error_code ignored;
      if (format_ == DataFormat::megatron || (format_ == DataFormat::automatic && MegatronIndex::is_pair(path))) {
        add_megatron(path);
      } else if (fs::is_directory(path, ignored)) {
        add_folder(path);
      } else {
        add_file(path, false);
      }
    } catch (const Error& error) {
      problems_.add(error.what());
    }
  }

  TokenStream finish() {
    if (!text_file_.empty() && !bin_file_.empty()) {
      problems_.add(
          fmt::format("text ({}) and token files ({}) cannot be one stream; --data-format says how to read all",
                      text_file_, bin_file_));
    }
    problems_.throw_if_any();
    const auto& parts = stream_.parts_;
    stream_.description_ = parts.size() == 1
                               ? parts[0].file->path()
                               : fmt::format("{} {} files", parts.size(), bin_file_.empty() ? "text" : "token");
    return std::move(stream_);
  }

 private:
  /// @param may_be_empty  a file met in a folder; one that was named must hold something
  void add_file(const std::string& path, bool may_be_empty) {
    Part part;
    part.file = MappedFile::open(path);
    const Layout layout = layout_of(*part.file, format_);
    if (layout.tokens == 0) {
      if (!may_be_empty) refuse(*part.file, layout.text ? "is empty" : "holds no tokens");
      return;
    }
    (layout.text ? text_file_ : bin_file_) = path;
    part.data_begin = layout.data_begin;
    part.tokens = layout.tokens;
    part.type = layout.type;
    append(std::move(part));
  }

  void append(Part part) {
    part.first_token = stream_.size_;
    stream_.size_ += part.tokens;
    stream_.id_bound_ = std::max(stream_.id_bound_, bound_of(part.type));
    stream_.parts_.push_back(std::move(part));
  }

  void add_megatron(const std::string& path) {
    const MegatronIndex index = MegatronIndex::open(path);
    Part part;
    part.file = MappedFile::open(index.bin_path());
    part.type = index.type();
    part.tokens = index.tokens();
    if (part.tokens == 0) refuse(*part.file, "holds no tokens");
    bin_file_ = index.bin_path();
    append(std::move(part));
  }

  void add_folder(const std::string& path) {
    const std::size_t before = stream_.parts_.size();
    std::size_t faults = 0;
    for (const std::string& file : files_beneath(path)) {
      try {
        add_file(file, true);
      } catch (const Error& error) {
        if (++faults <= kMostFaults) problems_.add(error.what());
      }
    }
    problems_.add_if(faults > kMostFaults,
                     fmt::format("{}: {} more files cannot be read as tokens", path, faults - kMostFaults));
    problems_.add_if(stream_.parts_.size() == before && faults == 0,
                     path + ": the folder holds no file with tokens (hidden and empty files do not count)");
  }

  DataFormat format_;
  TokenStream stream_;
  Problems problems_;
  std::string text_file_;  ///< one file taken for text, one for tokens; empty: none
  std::string bin_file_;
};

TokenStream TokenStream::open(const std::vector<std::string>& paths, DataFormat format) {
  if (paths.empty()) throw Error(ErrorKind::request, "--data: no path is given");
  Opener opener(format);
  for (const std::string& path : paths) opener.add(path);
  return opener.finish();
}

const TokenStream::Part& TokenStream::part_of(std::int64_t position) const {
  CUBOID_CHECK(position >= 0 && position < size_, "token " + std::to_string(position) + " of " + description_);
  const auto after = std::upper_bound(parts_.begin(), parts_.end(), position,
                                      [](std::int64_t at, const Part& part) { return at < part.first_token; });
  return *(after - 1);
}

void TokenStream::read(std::int64_t begin, std::span<std::int32_t> out) const {
  CUBOID_CHECK(begin >= 0 && begin <= size_ - static_cast<std::int64_t>(out.size()), "window outside " + description_);
  while (!out.empty()) {
    const Part& part = part_of(begin);
    const std::int64_t skip = begin - part.first_token;
    const auto n = std::min<std::int64_t>(part.tokens - skip, static_cast<std::int64_t>(out.size()));
    const std::byte* data = part.file->bytes().data() + part.data_begin + skip * part.width();
    const auto to = out.first(static_cast<std::size_t>(n));
    with_type(part.type, [&](auto id) { widen<decltype(id)>(data, to); });
    out = out.subspan(static_cast<std::size_t>(n));
    begin += n;
  }
}

TokenPosition TokenStream::position_of(std::int64_t position) const {
  const Part& part = part_of(position);
  const std::int64_t token = position - part.first_token;
  return {part.file->path(), token, part.data_begin + token * part.width()};
}

void TokenStream::check_tokens(std::int64_t vocab) const {
  for (const Part& part : parts_) {
    const std::byte* data = part.file->bytes().data() + part.data_begin;
    const std::int64_t found =
        with_type(part.type, [&](auto id) { return first_outside<decltype(id)>(data, part.tokens, vocab); });
    if (found < 0) continue;
    const std::int64_t at = part.data_begin + found * part.width();
    const std::int64_t id = with_type(part.type, [&](auto value) {
      std::memcpy(&value, part.file->bytes().data() + at, sizeof(value));
      return static_cast<std::int64_t>(value);
    });
    throw Error(ErrorKind::request,
                fmt::format("{}: token {} (byte {}) has id {}, the model's vocabulary is {} (ids 0 to {})",
                            part.file->path(), found, at, id, vocab, vocab - 1));
  }
}

}  // namespace cuboid
