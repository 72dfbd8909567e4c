#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include "cuboid/core/error.h"
#include "cuboid/formats/tokenizer.h"

namespace cuboid {
namespace {

class SentencePiece final : public Tokenizer {
 public:
  explicit SentencePiece(const std::string& path) {
    if (const auto status = model_.Load(path); !status.ok()) {
      throw Error(ErrorKind::request, fmt::format("{}: is not a SentencePiece model: {}", path, status.ToString()));
    }
  }
  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<int> ids;
    if (const auto status = model_.Encode({text.data(), text.size()}, &ids); !status.ok()) {
      throw Error(ErrorKind::request, fmt::format("a text cannot be tokenized: {}", status.ToString()));
    }
    return ids;
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    // The library refuses ids beyond its pieces; its own unknown piece has a text.
    std::vector<int> known(ids.begin(), ids.end());
    for (int& id : known) id = id >= 0 && id < vocab() ? id : model_.unk_id();
    std::string text;
    if (const auto status = model_.Decode(known, &text); !status.ok()) {
      throw Error(ErrorKind::request, fmt::format("tokens cannot be turned into text: {}", status.ToString()));
    }
    return text;
  }
  std::int64_t vocab() const override { return model_.GetPieceSize(); }
  std::int32_t end_of_document() const override { return model_.eos_id(); }

 private:
  sentencepiece::SentencePieceProcessor model_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& path) {
  return std::make_unique<SentencePiece>(path);
}

}  // namespace cuboid
