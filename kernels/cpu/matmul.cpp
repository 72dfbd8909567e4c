#include <memory>
#include <type_traits>

#include <oneapi/dnnl/dnnl.h>

#include "kernels/body/embedding.h"
#include "kernels/body/norm.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/launch.h"

namespace cuboid::kernels {

// oneDNN's sgemm rather than its matmul primitive: it is stateless, so there is no cache of primitives by shape to
// build, look up or share between ranks, and on a training step's shapes it is as fast or faster in every layout
// (benchmarks/bench_kernels).
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<float> a, MatrixRef<float> b, bool accumulate,
          float* c, std::int64_t c_stride) {
  const dnnl_status_t status = dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.0F, a.data,
                                          a.stride, b.data, b.stride, accumulate ? 1.0F : 0.0F, c, c_stride);
  if (status == dnnl_success) return;
  throw Error(ErrorKind::failed,
              "matrix product (" + std::to_string(m) + "," + std::to_string(k) + ")·(" + std::to_string(k) + "," +
                  std::to_string(n) + "): oneDNN reports " +
                  (status == dnnl_out_of_memory ? "that memory ran out" : "status " + std::to_string(status)));
}

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<double> a, MatrixRef<double> b, bool accumulate,
          double* c, std::int64_t c_stride) {
  const std::int64_t a_row = a.transposed ? 1 : a.stride;
  const std::int64_t a_column = a.transposed ? a.stride : 1;
  const std::int64_t b_row = b.transposed ? 1 : b.stride;
  const std::int64_t b_column = b.transposed ? b.stride : 1;
  parallel_for(m, [=](std::int64_t i) {
    double* row = c + i * c_stride;
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t p = 0; p < k; ++p) sum += a.data[i * a_row + p * a_column] * b.data[p * b_row + j * b_column];
      row[j] = accumulate ? row[j] + sum : sum;
    }
  });
}

namespace cpu {
namespace {

// Rows that hold the bias, or have it added: what a product is then added to.
template <typename T>
void put_bias(std::int64_t m, std::int64_t n, const T* bias, bool add, Real<T>* c) {
  parallel_for(m, [=](std::int64_t i) {
    Real<T>* row = c + i * n;
    if (add) {
      body::add_row(body::OneLane{}, n, bias, row);
    } else {
      body::OneLane{}.each(n, [=](std::int64_t j) { row[j] = real(bias[j]); });
    }
  });
}

// c of the type that sums are made in.
template <typename T>
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<T> a, MatrixRef<T> b, const Tensor& bias,
              bool accumulate, Real<T>* c) {
  if (bias.defined()) put_bias(m, n, bias.data<T>(), accumulate, c);
  const bool adds = accumulate || bias.defined();
  if (k > 0) {
    gemm(m, n, k, a, b, adds, c, n);
  } else if (!adds) {
    std::fill_n(c, m * n, Real<T>{});
  }
}

// c of bfloat16.
void multiply_rounded(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<BFloat16> a, MatrixRef<BFloat16> b,
                      const Tensor& bias, bool varying, BFloat16* c) {
  const BFloat16* add = bias.defined() ? bias.data<BFloat16>() : nullptr;
  if (varying) {  // through float32, whose products need no code made for their shape
    const auto sums = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(m * n));
    multiply(m, n, k, a, b, bias, false, sums.get());
    return parallel_chunks(m * n, kElementChunk, [&](std::int64_t first, std::int64_t count) {
      const float* from = sums.get() + first;
      BFloat16* to = c + first;
      body::OneLane{}.each(count, [=](std::int64_t x) { to[x] = static_cast<BFloat16>(from[x]); });
    });
  }
  if (k > 0) return gemm(m, n, k, a, b, add, c);
  for (std::int64_t i = 0; i < m; ++i) {
    if (add != nullptr) {
      std::copy_n(add, n, c + i * n);
    } else {
      std::fill_n(c + i * n, n, BFloat16{});
    }
  }
}

}  // namespace

void matmul(const Device&, const Tensor& a, const Tensor& b, const Tensor& c, MatMul options, const Tensor& bias) {
  const std::int64_t a_rows = row_count(a);
  const std::int64_t a_columns = row_length(a);
  const std::int64_t b_columns = row_length(b);
  const std::int64_t m = options.transpose_a ? a_columns : a_rows;
  const std::int64_t k = options.transpose_a ? a_rows : a_columns;
  const std::int64_t n = options.transpose_b ? row_count(b) : b_columns;
  const bool rounds = c.dtype() == DType::bfloat16;
  if (m == 0 || n == 0) return;

  with_storage(a, [&]<typename T>(T) {
    const MatrixRef<T> left{a.data<T>(), a_columns, options.transpose_a};
    const MatrixRef<T> right{b.data<T>(), b_columns, options.transpose_b};
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (rounds) return multiply_rounded(m, n, k, left, right, bias, options.varying, c.data<T>());
    }
    multiply<T>(m, n, k, left, right, bias, options.accumulate, c.data<Real<T>>());
  });
}

void add_column_sum(const Device&, const Tensor& x, const Tensor& out) {
  const std::int64_t n = row_length(x);
  with_storage(x, [&]<typename T>(T) {
    parallel_chunks(n, kColumnChunk, [&](std::int64_t first, std::int64_t count) {
      body::add_column_sum(body::OneLane{}, row_count(x), count, n, x.data<T>() + first, out.data<Real<T>>() + first);
    });
  });
}

}  // namespace cpu
}  // namespace cuboid::kernels
