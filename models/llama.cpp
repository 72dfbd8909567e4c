// Llama 2 and 3 (Touvron et al. 2023; Grattafiori et al. 2024): the decoder as it is; no biases unless the config asks
// for them.
#include "decoder.h"
#include "families.h"

namespace cuboid {
namespace {

class Llama final : public Decoder {
 public:
  std::string family() const override { return "llama"; }

  ModelConfig tiny() const override {
    ModelConfig c = Model::tiny();
    c.attention_bias = c.attention_output_bias = c.mlp_bias = true;
    c.rope_scaling = {.kind = RopeScaling::Kind::llama3, .factor = 8, .original_positions = 16};
    return c;
  }
};

}  // namespace

std::unique_ptr<Model> make_llama() {
  return std::make_unique<Llama>();
}

}  // namespace cuboid
