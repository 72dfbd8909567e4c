#include "cuboid/formats/tokens.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>

#include <fmt/format.h>

#include "cuboid/core/error.h"

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
  int width = 1;
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
  return {true, 0, static_cast<std::int64_t>(bytes.size()), 1};
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
  return {false, static_cast<std::int64_t>(kHeaderBytes), count, width};
}

Layout bin_layout(const MappedFile& file) {
  const auto bytes = file.bytes();
  std::int32_t magic = 0;
  if (bytes.size() >= sizeof(magic)) std::memcpy(&magic, bytes.data(), sizeof(magic));
  if (magic == kMagicUint16 || magic == kMagicUint32 || magic == kMagicEvaluation) return header_layout(file, magic);
  if (bytes.size() % 2 != 0) {
    refuse(file, fmt::format("{} bytes are no whole number of uint16 tokens", bytes.size()));
  }
  return {false, 0, static_cast<std::int64_t>(bytes.size() / 2), 2};
}

/// A .bin with an index beside it is half of a Megatron pair, whose width and documents the index holds.
void refuse_megatron(const MappedFile& file) {
  const fs::path index = fs::path(file.path()).replace_extension(".idx");
  std::error_code ignored;
  if (!fs::is_regular_file(index, ignored)) return;
  const auto opened = MappedFile::open(index.string());
  const auto bytes = opened->bytes();
  constexpr std::string_view kMagic = "MMIDIDX";
  if (bytes.size() < kMagic.size() || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) return;
  refuse(file, "belongs to a Megatron data set (" + index.string() +
                   "), a format that is not supported; --data-format bin would read it as raw uint16");
}

Layout layout_of(const MappedFile& file, DataFormat format) {
  const bool bin =
      format == DataFormat::bin || (format == DataFormat::automatic && fs::path(file.path()).extension() == ".bin");
  if (!bin) return text_layout(file, format == DataFormat::automatic);
  if (format == DataFormat::automatic) refuse_megatron(file);
  return bin_layout(file);
}

bool hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

/// Regular files beneath a folder in ascending path order, hidden files and folders skipped.
std::vector<std::string> files_beneath(const std::string& folder) {
  std::vector<std::string> files;
  try {
    for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::recursive_directory_iterator(); ++entry) {
      if (hidden(entry->path())) {
        if (entry->is_directory()) entry.disable_recursion_pending();
      } else if (entry->is_regular_file()) {
        files.push_back(entry->path().string());
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorKind::request, fmt::format("{}: cannot be listed: {}", folder, error.code().message()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Index of the first id >= vocab, or -1.
template <typename Id>
std::int64_t first_outside(const std::byte* data, std::int64_t tokens, std::int64_t vocab) {
  if (vocab > static_cast<std::int64_t>(std::numeric_limits<Id>::max())) return -1;
  constexpr std::int64_t kBlock = 4096;
  std::array<Id, kBlock> ids;
  for (std::int64_t begin = 0; begin < tokens; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, tokens - begin);
    std::memcpy(ids.data(), data + begin * static_cast<std::int64_t>(sizeof(Id)),
                static_cast<std::size_t>(n) * sizeof(Id));
    // The largest of a block first: that loop becomes vector instructions.
    Id largest = 0;
    for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, ids[static_cast<std::size_t>(i)]);
    if (static_cast<std::int64_t>(largest) < vocab) continue;
    const auto found =
        std::find_if(ids.begin(), ids.begin() + n, [&](Id id) { return static_cast<std::int64_t>(id) >= vocab; });
    return begin + (found - ids.begin());
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

}  // namespace

/// Appends files to a stream and collects the reasons against them.
class TokenStream::Opener {
 public:
  explicit Opener(DataFormat format) : format_(format) {}

  void add(const std::string& path) {
    try {
      std::error_code ignored;
      if (fs::is_directory(path, ignored)) {
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
    part.width = layout.width;
    part.first_token = stream_.size_;
    stream_.size_ += layout.tokens;
    stream_.id_bound_ = std::max(stream_.id_bound_, std::int64_t{1} << (8 * layout.width));
    stream_.parts_.push_back(std::move(part));
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
    const std::byte* data = part.file->bytes().data() + part.data_begin + skip * part.width;
    const auto to = out.first(static_cast<std::size_t>(n));
    if (part.width == 1) widen<std::uint8_t>(data, to);
    if (part.width == 2) widen<std::uint16_t>(data, to);
    if (part.width == 4) widen<std::uint32_t>(data, to);
    out = out.subspan(static_cast<std::size_t>(n));
    begin += n;
  }
}

TokenPosition TokenStream::position_of(std::int64_t position) const {
  const Part& part = part_of(position);
  const std::int64_t token = position - part.first_token;
  return {part.file->path(), token, part.data_begin + token * part.width};
}

void TokenStream::check_tokens(std::int64_t vocab) const {
  for (const Part& part : parts_) {
    const std::byte* data = part.file->bytes().data() + part.data_begin;
    const std::int64_t found = part.width == 1   ? first_outside<std::uint8_t>(data, part.tokens, vocab)
                               : part.width == 2 ? first_outside<std::uint16_t>(data, part.tokens, vocab)
                                                 : first_outside<std::uint32_t>(data, part.tokens, vocab);
    if (found < 0) continue;
    std::uint32_t id = 0;
    std::memcpy(&id, data + found * part.width, static_cast<std::size_t>(part.width));
    throw Error(ErrorKind::request,
                fmt::format("{}: token {} (byte {}) has id {}, the model's vocabulary is {} (ids 0 to {})",
                            part.file->path(), found, part.data_begin + found * part.width, id, vocab, vocab - 1));
  }
}

}  // namespace cuboid
