// AdamW's options as one element's step takes them, the same for every device.
#pragma once

#include "cuboid/kernels/kernels.h"

#include "kernels/body/optimizer.h"

namespace cuboid::kernels {

template <typename T>
body::AdamWStep<T> adamw_step(const AdamW& options) {
  return {static_cast<T>(options.lr),
          static_cast<T>(options.beta1),
          static_cast<T>(1 - options.beta1),
          static_cast<T>(options.beta2),
          static_cast<T>(1 - options.beta2),
          static_cast<T>(options.eps),
          static_cast<T>(options.weight_decay),
          static_cast<T>(1 / options.bias_correction1),
          static_cast<T>(1 / options.bias_correction2),
          static_cast<T>(options.gradient_scale)};
}

}  // namespace cuboid::kernels
