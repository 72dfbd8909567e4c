#include "kernels/body/activation.h"
#include "kernels/body/lanes.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/launch.h"

namespace cuboid::kernels::cpu {
namespace {

// f(i) for every element, in chunks.
template <typename F>
void each_element(std::int64_t n, F f) {
  parallel_chunks(n, kElementChunk, [=](std::int64_t first, std::int64_t count) {
    body::OneLane{}.each(count, [=](std::int64_t i) { f(first + i); });
  });
}

}  // namespace

void gelu(const Device&, const Tensor& x, const Tensor& y) {
  with_storage(x, [&]<typename T>(T) {
    const T* xs = x.data<T>();
    T* ys = y.data<T>();
    each_element(x.elements(), [=](std::int64_t i) { ys[i] = static_cast<T>(body::gelu(real(xs[i]))); });
  });
}

void gelu_gradient(const Device&, const Tensor& dy, const Tensor& x, const Tensor& dx) {
  with_storage(x, [&]<typename T>(T) {
    const T* dys = dy.data<T>();
    const T* xs = x.data<T>();
    T* dxs = dx.data<T>();
    each_element(x.elements(),
                 [=](std::int64_t i) { dxs[i] = static_cast<T>(body::gelu_gradient(real(dys[i]), real(xs[i]))); });
  });
}

void add_bias(const Device&, const Tensor& x, const Tensor& bias, const Tensor& y) {
  const std::int64_t n = row_length(x);
  with_storage(x, [&]<typename T>(T) {
    const T* xs = x.data<T>();
    const T* bs = bias.data<T>();
    T* ys = y.data<T>();
    parallel_for(row_count(x), [=](std::int64_t r) {
      body::OneLane{}.each(n,
                           [=](std::int64_t i) { ys[r * n + i] = static_cast<T>(real(xs[r * n + i]) + real(bs[i])); });
    });
  });
}

void add(const Device&, const Tensor& a, const Tensor& b, const Tensor& c) {
  with_storage(a, [&]<typename T>(T) {
    const T* as = a.data<T>();
    const T* bs = b.data<T>();
    T* cs = c.data<T>();
    each_element(a.elements(), [=](std::int64_t i) { cs[i] = static_cast<T>(real(as[i]) + real(bs[i])); });
  });
}

void scale(const Device&, const Tensor& t, double factor) {
  with_storage(t, [&]<typename T>(T) {
    T* ts = t.data<T>();
    const auto f = static_cast<Real<T>>(factor);
    each_element(t.elements(), [=](std::int64_t i) { ts[i] = static_cast<T>(real(ts[i]) * f); });
  });
}

}  // namespace cuboid::kernels::cpu
