#include "kernels/body/optimizer.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/launch.h"

namespace cuboid::kernels::cpu {

void adamw(const Device&, const AdamW& options, const Tensor& gradient, const Tensor& weight, const Tensor& m,
           const Tensor& v) {
  with_real(weight, [&]<typename T>(T) {
    const body::AdamWStep<T> step{static_cast<T>(options.lr),
                                  static_cast<T>(options.beta1),
                                  static_cast<T>(1 - options.beta1),
                                  static_cast<T>(options.beta2),
                                  static_cast<T>(1 - options.beta2),
                                  static_cast<T>(options.eps),
                                  static_cast<T>(options.weight_decay),
                                  static_cast<T>(1 / options.bias_correction1),
                                  static_cast<T>(1 / options.bias_correction2),
                                  static_cast<T>(options.gradient_scale)};
    const T* gs = gradient.data<T>();
    T* ws = weight.data<T>();
    T* ms = m.data<T>();
    T* vs = v.data<T>();
    parallel_chunks(weight.elements(), kElementChunk, [=](std::int64_t first, std::int64_t count) {
      body::OneLane{}.each(count, [=](std::int64_t i) {
        const std::int64_t j = first + i;
        body::adamw_element(step, gs[j], ws[j], ms[j], vs[j]);
      });
    });
  });
}

void sgd(const Device&, double lr, double weight_decay, double gradient_scale, const Tensor& gradient,
         const Tensor& weight) {
  with_real(weight, [&]<typename T>(T) {
    const T rate = static_cast<T>(lr);
    const T decay = static_cast<T>(weight_decay);
    const T scale = static_cast<T>(gradient_scale);
    const T* gs = gradient.data<T>();
    T* ws = weight.data<T>();
    parallel_chunks(weight.elements(), kElementChunk, [=](std::int64_t first, std::int64_t count) {
      body::OneLane{}.each(count, [=](std::int64_t i) {
        const std::int64_t j = first + i;
        ws[j] -= rate * (scale * gs[j] + decay * ws[j]);
      });
    });
  });
}

}  // namespace cuboid::kernels::cpu
