#include "kernels/cpu/dropout.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/launch.h"

namespace cuboid::kernels::cpu {
namespace {

// y = [residual +] dropout(x), x (T,B,C). Add is whether there is a residual.
template <bool Add, typename T>
void dropout_rows(const Shape& shape, const T* x, const T* residual, const Dropout& mask, T* y) {
  const std::int64_t batch = shape[1];
  const std::int64_t n = shape[2];
  parallel_for(shape[0] * batch, [=](std::int64_t r) {
    const auto row = dropout_row_of<Real<T>>(mask, mask.first_sample + r % batch, mask.rows.position(r / batch), 0);
    const T* in = x + r * n;
    const T* add = Add ? residual + r * n : nullptr;
    T* out = y + r * n;
    body::dropout_row(body::OneLane{}, n, row, [=](std::int64_t i, Real<T> factor) {
      if constexpr (Add) {
        out[i] = static_cast<T>(real(add[i]) + real(in[i]) * factor);
      } else {
        out[i] = static_cast<T>(real(in[i]) * factor);
      }
    });
  });
}

}  // namespace

void dropout(const Device& device, const Tensor& x, const Dropout& mask, const Tensor& y) {
  if (mask.p == 0) {
    device.copy(x, y);
    return;
  }
  with_storage(x, [&]<typename T>(T) { dropout_rows<false, T>(x.shape(), x.data<T>(), nullptr, mask, y.data<T>()); });
}

void dropout_add(const Device& device, const Tensor& x, const Tensor& residual, const Dropout& mask, const Tensor& y) {
  if (mask.p == 0) {
    add(device, residual, x, y);
    return;
  }
  with_storage(
      x, [&]<typename T>(T) { dropout_rows<true>(x.shape(), x.data<T>(), residual.data<T>(), mask, y.data<T>()); });
}

}  // namespace cuboid::kernels::cpu
