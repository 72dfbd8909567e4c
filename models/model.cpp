#include "cuboid/models/model.h"

namespace cuboid {

ModelConfig Model::tiny() const {
  ModelConfig c;
  c.name = family() + "-tiny";
  c.family = family();
  c.layers = 3;
  c.hidden = 20;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 6;
  c.ffn = 36;
  c.vocab = 53;
  c.positions = 48;
  // Large enough for every gradient to stand out of its rounding noise.
  c.init_std = 0.2;
  return c;
}

}  // namespace cuboid
