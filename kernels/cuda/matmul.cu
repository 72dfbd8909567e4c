// matmul by cuBLASLt; what a product does not do in one call is done before it.
#include "kernels/check.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.h"

namespace cuboid::kernels::cuda {
namespace {

// c (rows, n) becomes the bias in every row, plus what was there if `add`.
template <typename B, typename C>
void put_bias_rows(cudaStream_t stream, std::int64_t rows, std::int64_t n, const B* bias, bool add, C* c) {
  launch_rows(stream, rows, n, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t r) {
    C* const row = c + r * n;
    lanes.each(n, [=](std::int64_t i) {
      const auto value = static_cast<Real<C>>(real(bias[i]));
      row[i] = static_cast<C>(add ? real(row[i]) + value : value);
    });
  });
}

void put_bias(const Device& device, const Tensor& bias, bool add, const Tensor& c) {
  with_storage(bias, [&]<typename B>(B) {
    with_storage(c, [&]<typename C>(C) {
      put_bias_rows(stream_of(device), row_count(c), row_length(c), elements_of<B>(bias), add, elements_of<C>(c));
    });
  });
}

}  // namespace

void matmul(const Device& device, const Tensor& a, const Tensor& b, const Tensor& c, MatMul options,
            const Tensor& bias) {
  const std::int64_t k = options.transpose_a ? row_count(a) : row_length(a);
  const std::int64_t m = row_count(c);
  const std::int64_t n = row_length(c);
  if (k == 0) {
    if (bias.defined()) return put_bias(device, bias, options.accumulate, c);
    if (!options.accumulate) device.zero(c);
    return;
  }
  GemmOptions gemm_options{.accumulate = options.accumulate};
  // The epilogue adds a bias of c's type to a product of its own; anything else starts from rows that hold it.
  if (bias.defined() && bias.dtype() == c.dtype() && !options.accumulate) {
    gemm_options.bias = bias.raw();
  } else if (bias.defined()) {
    put_bias(device, bias, options.accumulate, c);
    gemm_options.accumulate = true;
  }
  gemm(device, m, n, k,
       {.data = a.raw(), .dtype = a.dtype(), .stride = row_length(a), .transposed = options.transpose_a},
       {.data = b.raw(), .dtype = b.dtype(), .stride = row_length(b), .transposed = options.transpose_b},
       {.data = c.raw(), .dtype = c.dtype(), .stride = n}, gemm_options);
}

}  // namespace cuboid::kernels::cuda
