// From text to token ids: bytes, or a SentencePiece model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cuboid {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Ids of a text, without any that mark its beginning or end. Safe to call from many threads.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  /// The text of ids; an id that stands for nothing becomes the replacement character U+FFFD, or what
  /// a SentencePiece model writes for its unknown piece.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  /// Ids are below this.
  virtual std::int64_t vocab() const = 0;
  /// The id that ends a document, or -1.
  virtual std::int32_t end_of_document() const = 0;
};

/// A byte is a token: ids 0 … 255.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// @param path  a SentencePiece model (tokenizer.model). @throws Error{request} if it cannot be read, or if this
/// program
///              was built without the library
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& path);

}  // namespace cuboid
