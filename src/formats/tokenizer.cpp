#include "cuboid/formats/tokenizer.h"

namespace cuboid {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    ids.reserve(text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      if (id >= 0 && id < vocab()) {
        text.push_back(static_cast<char>(id));
      } else {
        text += kReplacement;
      }
    }
    return text;
  }
  std::int64_t vocab() const override { return 256; }
  std::int32_t end_of_document() const override { return -1; }
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

}  // namespace cuboid
