// Qwen2 (Yang et al. 2024): the decoder with biases on the q, k and v projections and none on the output projection,
// which its configuration says (attention_bias, attention_output_bias).
#include "decoder.h"
#include "families.h"

namespace cuboid {
namespace {

class Qwen2 final : public Decoder {
 public:
  std::string family() const override { return "qwen2"; }

  ModelConfig tiny() const override {
    ModelConfig c = Model::tiny();
    c.attention_bias = c.tied = true;
    c.window = 7;
    c.full_layers = 1;
    return c;
  }
};

}  // namespace

std::unique_ptr<Model> make_qwen2() {
  return std::make_unique<Qwen2>();
}

}  // namespace cuboid
