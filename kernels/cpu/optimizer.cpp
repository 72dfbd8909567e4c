#include "kernels/body/optimizer.h"

#include "kernels/adamw_step.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/launch.h"

namespace cuboid::kernels::cpu {

void adamw(const Device&, const AdamW& options, const Tensor& gradient, const Tensor& weight, const Tensor& m,
           const Tensor& v) {
  with_real(weight, [&]<typename T>(T) {
    const body::AdamWStep<T> step = adamw_step<T>(options);
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
