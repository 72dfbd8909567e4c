// The decoder that Llama and its relatives share: rotary positions, grouped key/value heads, RMS norms before attention
// and a gated MLP. A relative overrides what its paper changes. Private to models/.
#pragma once

#include "cuboid/models/parts.h"

namespace cuboid {

class Decoder : public Model {
 public:
  ParameterTable parameters(const ModelConfig& c) const override;
  Var embed(Forward& f, const Tensor& tokens) const override;
  Var layer(Forward& f, int i, const Var& input) const override;
  bool splits_context() const override { return true; }
  Var final_norm(Forward& f, const Var& x) const override;
  std::vector<HfTensor> hugging_face_tensors(const ModelConfig& c) const override;

 protected:
  /// What a norm's weight starts from.
  virtual Initializer norm_initializer() const { return Initializer::ones; }
  /// RMS norm over C.
  virtual Var norm(Forward& f, const Var& x, Parameter& weight) const;
  /// The rows of a layer's MLP, their computation (T,B,C) → (T,B,C), and their Hugging Face names, which follow
  /// "model.layers.3.".
  virtual void add_mlp(std::vector<ParameterInfo>& rows, const ModelConfig& c, int layer) const;
  virtual Var mlp(Forward& f, int layer, const Var& x) const;
  virtual std::vector<HfTensor> mlp_tensors(const ModelConfig& c, int layer) const;
  /// (…,2F/tp) gate | up → (…,F/tp).
  virtual Var gate(Forward& f, const Var& gate_up) const;
};

}  // namespace cuboid
