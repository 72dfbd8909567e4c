// Training tokens on disk: text (a byte is a token), raw uint16 files (nanoGPT), llm.c files and Megatron data sets, as
// one stream in the order given. Files are memory-mapped; positions are 64-bit. Not here: windows, order and masks
// (train/data.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuboid/formats/mapped_file.h"
#include "cuboid/formats/megatron.h"
#include "cuboid/value/run_config.h"

namespace cuboid {

/// Where a token lies.
struct TokenPosition {
  std::string file;
  std::int64_t token = 0;  ///< index among the file's tokens
  std::int64_t byte = 0;   ///< offset of its first byte in the file
};

class TokenStream {
 public:
  /// @param paths  files, or folders: all regular files beneath in ascending path order, hidden ones skipped. The
  /// stream is
  ///               their concatenation in the order given; nothing is inserted between files.
  /// @param format text: every byte is a token. bin: an llm.c file if its header says so (256 int32: magic 20240520
  ///               version 1, uint16 tokens; magic 20240801 version 7, uint32 tokens; token count; zeros), raw
  ///               little-endian uint16 otherwise. megatron: PREFIX, PREFIX.bin or PREFIX.idx of a data set, its
  ///               documents one after the other. automatic: megatron where both its files are, bin for the extension
  ///               .bin, text otherwise; binary files taken for text, and a mixture of text and token files, are
  ///               refused.
  /// @throws Error{request} with the reasons of all paths at once.
  static TokenStream open(const std::vector<std::string>& paths, DataFormat format);

  /// Number of tokens; at least 1.
  std::int64_t size() const { return size_; }
  /// Ids are below this by the storage alone: 256 for text, 65536 for uint16, 2^31 for int32, 2^32 for uint32; 2^63 - 1
  /// for int64.
  std::int64_t id_bound() const { return id_bound_; }
  /// "3 text files", or the one file's path.
  const std::string& description() const { return description_; }
  /// Tokens [begin, begin + out.size()). Safe to call from many threads. @pre the range lies in the stream;
  /// check_tokens has passed (a wider id than int32 would come out as another)
  void read(std::int64_t begin, std::span<std::int32_t> out) const;
  /// @pre 0 <= position < size()
  TokenPosition position_of(std::int64_t position) const;
  /// Scans for the first id that is negative or >= vocab (not at all where the storage rules it out).
  /// @throws Error{request} naming the id, the vocabulary, the file and the position
  void check_tokens(std::int64_t vocab) const;

 private:
  class Opener;
  struct Part {
    std::shared_ptr<const MappedFile> file;
    std::int64_t data_begin = 0;   ///< bytes of header
    std::int64_t first_token = 0;  ///< position in the stream
    std::int64_t tokens = 0;
    TokenType type = TokenType::u8;
    std::int64_t width() const { return static_cast<std::int64_t>(size_of(type)); }
  };
  const Part& part_of(std::int64_t position) const;

  std::vector<Part> parts_;
  std::int64_t size_ = 0;
  std::int64_t id_bound_ = 0;
  std::string description_;
};

}  // namespace cuboid
