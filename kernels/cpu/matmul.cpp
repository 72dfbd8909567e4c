#include <oneapi/dnnl/dnnl.h>

#include "cuboid/kernels/kernels.h"

#include "kernels/body/embedding.h"
#include "kernels/body/norm.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/launch.h"

namespace cuboid::kernels {

// oneDNN's sgemm rather than its matmul primitive: it is stateless, so there is no cache of primitives by shape to
// build, look up or share between ranks, and on a training step's shapes it is as fast or faster in every layout
// (benchmarks/bench_kernels).
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, MatrixRef<float> a, MatrixRef<float> b,
          float beta, float* c, std::int64_t c_stride) {
  const dnnl_status_t status = dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, alpha, a.data,
                                          a.stride, b.data, b.stride, beta, c, c_stride);
  if (status == dnnl_success) return;
  throw Error(ErrorKind::failed,
              "matrix product (" + std::to_string(m) + "," + std::to_string(k) + ")·(" + std::to_string(k) + "," +
                  std::to_string(n) + "): oneDNN reports " +
                  (status == dnnl_out_of_memory ? "that memory ran out" : "status " + std::to_string(status)));
}

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, double alpha, MatrixRef<double> a, MatrixRef<double> b,
          double beta, double* c, std::int64_t c_stride) {
  const std::int64_t a_row = a.transposed ? 1 : a.stride;
  const std::int64_t a_column = a.transposed ? a.stride : 1;
  const std::int64_t b_row = b.transposed ? 1 : b.stride;
  const std::int64_t b_column = b.transposed ? b.stride : 1;
  parallel_for(m, [=](std::int64_t i) {
    double* row = c + i * c_stride;
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t p = 0; p < k; ++p) sum += a.data[i * a_row + p * a_column] * b.data[p * b_row + j * b_column];
      row[j] = alpha * sum + (beta == 0 ? 0 : beta * row[j]);
    }
  });
}

void matmul(const Device&, const Tensor& a, const Tensor& b, const Tensor& c, MatMul options, const Tensor& bias) {
  const std::int64_t a_rows = row_count(a);
  const std::int64_t a_columns = row_length(a);
  const std::int64_t b_rows = row_count(b);
  const std::int64_t b_columns = row_length(b);
  const std::int64_t m = options.transpose_a ? a_columns : a_rows;
  const std::int64_t k = options.transpose_a ? a_rows : a_columns;
  const std::int64_t n = options.transpose_b ? b_rows : b_columns;
  CUBOID_CHECK((options.transpose_b ? b_columns : b_rows) == k && b.dtype() == a.dtype(),
               "matmul: " + to_string(a.shape()) + (options.transpose_a ? "ᵀ" : "") + " and " + to_string(b.shape()) +
                   (options.transpose_b ? "ᵀ" : ""));
  expect(c, a.dtype(), m * n, "matmul: c");
  CUBOID_CHECK(row_length(c) == n, "matmul: c is " + to_string(c.shape()));
  if (bias.defined()) expect(bias, a.dtype(), n, "matmul: bias");
  if (m == 0 || n == 0) return;

  with_real(a, [&]<typename T>(T) {
    T* out = c.data<T>();
    bool adds = options.accumulate;
    if (bias.defined()) {  // the product is then added to rows that hold the bias
      const T* row = bias.data<T>();
      parallel_for(m, [=](std::int64_t i) {
        if (adds) {
          body::add_row(body::OneLane{}, n, row, out + i * n);
        } else {
          std::copy_n(row, n, out + i * n);
        }
      });
      adds = true;
    }
    if (k == 0) {
      if (!adds) std::fill_n(out, m * n, T{0});
      return;
    }
    gemm(m, n, k, T{1}, {a.data<T>(), a_columns, options.transpose_a}, {b.data<T>(), b_columns, options.transpose_b},
         adds ? T{1} : T{0}, out, n);
  });
}

void add_column_sum(const Device&, const Tensor& x, const Tensor& out) {
  const std::int64_t n = row_length(x);
  expect(out, x.dtype(), n, "add_column_sum: out");
  with_real(x, [&]<typename T>(T) {
    parallel_chunks(n, kColumnChunk, [&](std::int64_t first, std::int64_t count) {
      body::add_column_sum(body::OneLane{}, row_count(x), count, n, x.data<T>() + first, out.data<T>() + first);
    });
  });
}

}  // namespace cuboid::kernels
