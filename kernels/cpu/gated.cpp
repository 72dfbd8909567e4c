#include "cuboid/kernels/kernels.h"

#include "kernels/body/activation.h"
#include "kernels/body/lanes.h"
#include "kernels/cpu/launch.h"

namespace cuboid::kernels {

void geglu(const Device&, const Tensor& gate_up, const Tensor& y) {
  const std::int64_t rows = row_count(gate_up);
  const std::int64_t n = row_length(gate_up) / 2;
  CUBOID_CHECK(row_length(gate_up) == 2 * n, "geglu: gate_up is " + to_string(gate_up.shape()));
  expect(y, gate_up.dtype(), rows * n, "geglu: y");
  with_real(y, [&]<typename T>(T) {
    const T* in = gate_up.data<T>();
    T* out = y.data<T>();
    parallel_for(rows, [=](std::int64_t r) {
      const T* gate = in + r * 2 * n;
      T* row = out + r * n;
      body::OneLane{}.each(n, [=](std::int64_t i) { row[i] = body::gelu(gate[i]) * gate[n + i]; });
    });
  });
}

void geglu_gradient(const Device&, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
  const std::int64_t rows = row_count(gate_up);
  const std::int64_t n = row_length(gate_up) / 2;
  CUBOID_CHECK(row_length(gate_up) == 2 * n, "geglu_gradient: gate_up is " + to_string(gate_up.shape()));
  expect(dy, gate_up.dtype(), rows * n, "geglu_gradient: dy");
  expect_like(dgate_up, gate_up, "geglu_gradient: dgate_up");
  with_real(dy, [&]<typename T>(T) {
    const T* dys = dy.data<T>();
    const T* in = gate_up.data<T>();
    T* out = dgate_up.data<T>();
    parallel_for(rows, [=](std::int64_t r) {
      const T* gate = in + r * 2 * n;
      const T* row = dys + r * n;
      T* d = out + r * 2 * n;
      body::OneLane{}.each(n, [=](std::int64_t i) {
        d[i] = body::gelu_gradient(row[i] * gate[n + i], gate[i]);
        d[n + i] = row[i] * body::gelu(gate[i]);
      });
    });
  });
}

void shift(const Device&, const Tensor& x, double offset, const Tensor& y) {
  expect_like(y, x, "shift: y");
  with_real(x, [&]<typename T>(T) {
    const T* xs = x.data<T>();
    T* ys = y.data<T>();
    const T by = static_cast<T>(offset);
    parallel_chunks(x.elements(), kElementChunk, [=](std::int64_t first, std::int64_t count) {
      body::OneLane{}.each(count, [=](std::int64_t i) { ys[first + i] = xs[first + i] + by; });
    });
  });
}

}  // namespace cuboid::kernels
