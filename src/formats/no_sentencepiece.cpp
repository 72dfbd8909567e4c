#include "cuboid/core/error.h"
#include "cuboid/formats/tokenizer.h"

namespace cuboid {

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& path) {
  throw Error(ErrorKind::request, path + ": this program was built without SentencePiece (libsentencepiece-dev)");
}

}  // namespace cuboid
