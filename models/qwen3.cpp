// Qwen3 (Yang et al. 2025, arXiv 2505.09388): Qwen2 without its biases; instead, query and key heads are normalised
// before they are rotated, which its configuration says (qk_norm). Head dimension apart from the hidden size.
#include "decoder.h"
#include "families.h"

namespace cuboid {
namespace {

class Qwen3 final : public Decoder {
 public:
  std::string family() const override { return "qwen3"; }

  ModelConfig tiny() const override {
    ModelConfig c = Model::tiny();
    c.qk_norm = true;
    return c;
  }
};

}  // namespace

std::unique_ptr<Model> make_qwen3() {
  return std::make_unique<Qwen3>();
}

}  // namespace cuboid
