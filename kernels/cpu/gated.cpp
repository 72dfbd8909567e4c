#include "kernels/body/activation.h"
#include "kernels/body/lanes.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/launch.h"

namespace cuboid::kernels::cpu {
namespace {

// y (N,F) = f(gate, up) with gate_up (N,2F) = gate | up in each row.
template <typename F>
void gated(const Tensor& gate_up, const Tensor& y, F f) {
  const std::int64_t rows = row_count(gate_up);
  const std::int64_t n = row_length(gate_up) / 2;
  with_storage(y, [&]<typename T>(T) {
    const T* in = gate_up.data<T>();
    T* out = y.data<T>();
    parallel_for(rows, [=](std::int64_t r) {
      const T* gate = in + r * 2 * n;
      T* row = out + r * n;
      body::OneLane{}.each(n, [=](std::int64_t i) { row[i] = static_cast<T>(f(real(gate[i]), real(gate[n + i]))); });
    });
  });
}

// dgate | dup = f(dy, gate, up), which returns both.
template <typename F>
void gated_gradient(const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up, F f) {
  const std::int64_t rows = row_count(gate_up);
  const std::int64_t n = row_length(gate_up) / 2;
  with_storage(dy, [&]<typename T>(T) {
    const T* dys = dy.data<T>();
    const T* in = gate_up.data<T>();
    T* out = dgate_up.data<T>();
    parallel_for(rows, [=](std::int64_t r) {
      const T* gate = in + r * 2 * n;
      const T* row = dys + r * n;
      T* d = out + r * 2 * n;
      body::OneLane{}.each(n, [=](std::int64_t i) {
        const auto g = f(real(row[i]), real(gate[i]), real(gate[n + i]));
        d[i] = static_cast<T>(g.dgate);
        d[n + i] = static_cast<T>(g.dup);
      });
    });
  });
}

}  // namespace

void swiglu(const Device&, const Tensor& gate_up, const Tensor& y) {
  gated(gate_up, y, [](auto gate, auto up) { return body::swiglu(gate, up); });
}

void swiglu_gradient(const Device&, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
  gated_gradient(dy, gate_up, dgate_up, [](auto d, auto gate, auto up) { return body::swiglu_gradient(d, gate, up); });
}

void geglu(const Device&, const Tensor& gate_up, const Tensor& y) {
  gated(gate_up, y, [](auto gate, auto up) { return body::gelu(gate) * up; });
}

void geglu_gradient(const Device&, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
  gated_gradient(dy, gate_up, dgate_up, [](auto d, auto gate, auto up) {
    return body::SwigluGradient<decltype(d)>{body::gelu_gradient(d * up, gate), d * body::gelu(gate)};
  });
}

}  // namespace cuboid::kernels::cpu
