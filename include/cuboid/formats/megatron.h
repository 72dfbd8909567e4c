// Megatron-LM's indexed data sets: PREFIX.bin holds tokens, PREFIX.idx the lengths of its sequences and the boundaries
// of its documents. Both files are checked against each other before anything is used. Format: Megatron-LM
// megatron/core/datasets/indexed_dataset.py
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuboid/formats/durable.h"
#include "cuboid/formats/mapped_file.h"

namespace cuboid {

/// Element types of token files.
enum class TokenType : std::uint8_t { u8, i8, u16, i16, u32, i32, i64 };
std::size_t size_of(TokenType type);
/// "uint16".
const char* name_of(TokenType type);

class MegatronIndex {
 public:
  /// @param path  PREFIX, PREFIX.bin or PREFIX.idx
  /// @throws Error{request} naming file and fault: another magic (the older format by name), version or type, counts
  ///         that do not fit the file, lengths below 0, pointers that are not the sums of the lengths before, document
  ///         boundaries that do not start at 0, go back or do not end at the last sequence, and a .bin of another size.
  static MegatronIndex open(const std::string& path);
  /// Whether PREFIX.idx and PREFIX.bin exist and the first begins as such an index does.
  static bool is_pair(const std::string& path);

  const std::string& bin_path() const { return bin_path_; }
  TokenType type() const { return type_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t sequences() const { return sequences_; }
  std::int64_t documents() const { return document_entries_ - 1; }
  bool has_modes() const { return has_modes_; }
  /// Tokens of sequence i, and the byte at which it begins. @pre 0 <= i < sequences()
  std::int64_t length(std::int64_t i) const;
  std::int64_t pointer(std::int64_t i) const;
  /// First sequence of document i; of document documents(): the number of sequences. @pre 0 <= i <= documents()
  std::int64_t document_begin(std::int64_t i) const;

 private:
  void check(const MappedFile& file, std::uint64_t bin_bytes);

  std::shared_ptr<const MappedFile> file_;
  std::string bin_path_;
  TokenType type_ = TokenType::u16;
  std::int64_t tokens_ = 0;
  std::int64_t sequences_ = 0;
  std::int64_t document_entries_ = 1;
  bool has_modes_ = false;
};

/// Writes a data set, a document at a time; it appears when finish() has written both files.
class MegatronWriter {
 public:
  /// @param type  u16 or i32. Ids must fit it: 0 … 65535, or 0 … 2^31 - 1.
  MegatronWriter(const std::string& prefix, TokenType type);
  /// One document of one sequence. @throws Error{request} for an id that the type cannot hold
  void add_document(std::span<const std::int32_t> tokens);
  void finish();
  std::int64_t tokens() const { return bytes_ / static_cast<std::int64_t>(size_of(type_)); }
  std::int64_t documents() const { return static_cast<std::int64_t>(lengths_.size()); }

 private:
  std::string prefix_;
  TokenType type_;
  AtomicFile bin_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::uint16_t> narrow_;
  std::int64_t bytes_ = 0;
};

}  // namespace cuboid
