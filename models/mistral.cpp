// Mistral (Jiang et al. 2023, arXiv 2310.06825): the decoder whose queries see a sliding window of tokens, which its
// configuration says (window).
#include "decoder.h"
#include "families.h"

namespace cuboid {
namespace {

class Mistral final : public Decoder {
 public:
  std::string family() const override { return "mistral"; }

  ModelConfig tiny() const override {
    ModelConfig c = Model::tiny();
    c.window = 5;
    return c;
  }
};

}  // namespace

std::unique_ptr<Model> make_mistral() {
  return std::make_unique<Mistral>();
}

}  // namespace cuboid
