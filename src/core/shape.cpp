#include "cuboid/core/shape.h"

namespace cuboid {

std::string to_string(const Shape& shape) {
  std::string text = "(";
  for (int i = 0; i < shape.rank(); ++i) text += (i ? "," : "") + std::to_string(shape[i]);
  return text + ")";
}

}  // namespace cuboid
