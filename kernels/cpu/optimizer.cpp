#include "kernels/body/optimizer.h"

#include "kernels/adamw_step.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/launch.h"

namespace cuboid::kernels::cpu {
namespace {

// update(i) for all elements; with `rounded`, also rounds the weight that it has made.
template <typename Update>
void update_elements(const Tensor& weight, const Tensor& rounded, Update update) {
  const std::int64_t n = weight.elements();
  if (!rounded.defined()) {
    parallel_chunks(n, kElementChunk, [=](std::int64_t first, std::int64_t count) {
      body::OneLane{}.each(count, [=](std::int64_t i) { update(first + i); });
    });
    return;
  }
  BFloat16* rs = rounded.data<BFloat16>();
  parallel_chunks(n, kElementChunk, [=](std::int64_t first, std::int64_t count) {
    body::OneLane{}.each(count,
                         [=](std::int64_t i) { rs[first + i] = BFloat16(static_cast<float>(update(first + i))); });
  });
}

}  // namespace

void adamw(const Device&, const AdamW& options, const Tensor& gradient, const Tensor& weight, const Tensor& m,
           const Tensor& v, const Tensor& rounded) {
  with_real(weight, [&]<typename T>(T) {
    const body::AdamWStep<T> step = adamw_step<T>(options);
    const T* gs = gradient.data<T>();
    T* ws = weight.data<T>();
    T* ms = m.data<T>();
    T* vs = v.data<T>();
    update_elements(weight, rounded, [=](std::int64_t j) {
      body::adamw_element(step, gs[j], ws[j], ms[j], vs[j]);
      return ws[j];
    });
  });
}

void sgd(const Device&, double lr, double weight_decay, double gradient_scale, const Tensor& gradient,
         const Tensor& weight, const Tensor& rounded) {
  with_real(weight, [&]<typename T>(T) {
    const T rate = static_cast<T>(lr);
    const T decay = static_cast<T>(weight_decay);
    const T scale = static_cast<T>(gradient_scale);
    const T* gs = gradient.data<T>();
    T* ws = weight.data<T>();
    update_elements(weight, rounded, [=](std::int64_t j) {
      ws[j] -= rate * (scale * gs[j] + decay * ws[j]);
      return ws[j];
    });
  });
}

}  // namespace cuboid::kernels::cpu
