// Gemma (Gemma Team 2024): embeddings scaled by sqrt(C), norms that multiply by 1 + w, an MLP gated by tanh GELU, head
// dimension apart from the hidden size, tied head.
#include <cmath>

#include "decoder.h"
#include "families.h"

namespace cuboid {
namespace {

class Gemma final : public Decoder {
 public:
  std::string family() const override { return "gemma"; }

  ModelConfig tiny() const override {
    ModelConfig c = Model::tiny();
    c.kv_heads = 1;
    c.tied = true;
    return c;
  }

  Var embed(Forward& f, const Tensor& tokens) const override {
    return ops::scale(f.tape, Decoder::embed(f, tokens), std::sqrt(static_cast<double>(f.config.hidden)));
  }

 protected:
  Initializer norm_initializer() const override { return Initializer::zeros; }

  Var norm(Forward& f, const Var& x, Parameter& weight) const override {
    return ops::rms_norm(f.tape, x, weight, f.config.norm_eps, 1.0);
  }

  Var gate(Forward& f, const Var& gate_up) const override { return ops::geglu(f.tape, gate_up); }
};

}  // namespace

std::unique_ptr<Model> make_gemma() {
  return std::make_unique<Gemma>();
}

}  // namespace cuboid
