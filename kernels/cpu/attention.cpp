#include <cmath>

#include "cuboid/kernels/kernels.h"

#include "kernels/body/softmax.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/launch.h"

namespace cuboid::kernels {
namespace {

using body::OneLane;

/// Query rows worked on at a time: their scores against all keys stay in the cache.
constexpr std::int64_t kQueryBlock = 64;

struct Sizes {
  std::int64_t T, B, H, K, D;
  std::int64_t out_stride() const { return B * H * D; }  // of out (T,B,H·D)
  std::int64_t out_offset(std::int64_t b, std::int64_t h) const { return (b * H + h) * D; }
  std::int64_t q_offset(std::int64_t b, std::int64_t h) const { return (b * H + h) * T * D; }
  std::int64_t k_offset(std::int64_t b, std::int64_t g) const { return (b * K + g) * T * D; }
  std::int64_t block() const { return std::min(kQueryBlock, T); }
};

Sizes check_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& log_sum,
                      const Dropout& mask) {
  CUBOID_CHECK(q.defined() && q.shape().rank() == 4 && k.defined() && k.shape().rank() == 4,
               "attention: q (B,H,T,D) and k (B,K,T,D) are expected");
  const Sizes s{q.dim(2), q.dim(0), q.dim(1), k.dim(1), q.dim(3)};
  expect_shape(k, q.dtype(), Shape{s.B, s.K, s.T, s.D}, "attention: k");
  expect_shape(v, q.dtype(), Shape{s.B, s.K, s.T, s.D}, "attention: v");
  expect(out, q.dtype(), s.T * s.B * s.H * s.D, "attention: out");
  expect(log_sum, q.dtype(), s.B * s.H * s.T, "attention: log_sum");
  CUBOID_CHECK(s.K > 0 && s.H % s.K == 0,
               "attention: " + std::to_string(s.H) + " query heads over " + std::to_string(s.K) + " key/value heads");
  check_dropout(mask);
  CUBOID_CHECK(mask.first_row == 0, "attention works on whole sequences");
  return s;
}

// One tile a thread, in one workspace tensor.
template <typename T>
class Tiles {
 public:
  Tiles(const Device& device, std::int64_t elements, DType dtype)
      : elements_(elements),
        tensor_(device.empty(Shape{omp_get_max_threads(), elements}, dtype, Category::workspace)) {}
  T* mine() const { return tensor_.template data<T>() + omp_get_thread_num() * elements_; }

 private:
  std::int64_t elements_;
  Tensor tensor_;
};

// out and log_sum of one query head.
template <typename T>
void attend_head(const Sizes& s, const T* q, const T* k, const T* v, const Dropout& mask, std::int64_t b,
                 std::int64_t h, T* scores, T* out, T* log_sum) {
  const T scale = static_cast<T>(1 / std::sqrt(static_cast<double>(s.D)));
  for (std::int64_t first = 0; first < s.T; first += s.block()) {
    const std::int64_t rows = std::min(s.block(), s.T - first);
    const std::int64_t end = first + rows;
    gemm(rows, end, s.D, scale, {q + first * s.D, s.D}, {k, s.D, true}, T{0}, scores, end);
    T sums[kQueryBlock];
    for (std::int64_t i = 0; i < rows; ++i) {
      T* row = scores + i * end;
      const auto softmax = body::softmax_row(OneLane{}, first + i + 1, end, row);
      sums[i] = softmax.sum;
      log_sum[first + i] = softmax.max + std::log(softmax.sum);
      if (mask.p > 0) {
        const auto keep = dropout_row_of<T>(mask, mask.first_sample + b, first + i, mask.first_head + h);
        body::dropout_row(OneLane{}, first + i + 1, keep, [=](std::int64_t j, T factor) { row[j] *= factor; });
      }
    }
    T* block_out = out + first * s.out_stride();
    gemm(rows, s.D, end, T{1}, {scores, end}, {v, s.D}, T{0}, block_out, s.out_stride());
    for (std::int64_t i = 0; i < rows; ++i) {  // the softmax's division, on D numbers a row rather than `end`
      T* row = block_out + i * s.out_stride();
      const T inverse = T{1} / sums[i];
      OneLane{}.each(s.D, [=](std::int64_t d) { row[d] *= inverse; });
    }
  }
}

// dq of one query head; adds its share to dk and dv of its key/value head.
template <typename T>
void attend_head_gradient(const Sizes& s, const T* dout, const T* q, const T* k, const T* v, const T* out,
                          const T* log_sum, const Dropout& mask, std::int64_t b, std::int64_t h, T* tile, T* dq, T* dk,
                          T* dv) {
  const T scale = static_cast<T>(1 / std::sqrt(static_cast<double>(s.D)));
  for (std::int64_t first = 0; first < s.T; first += s.block()) {
    const std::int64_t rows = std::min(s.block(), s.T - first);
    const std::int64_t end = first + rows;
    T* p = tile;
    T* dp = tile + rows * end;
    const T* block_q = q + first * s.D;
    const T* block_dout = dout + first * s.out_stride();
    gemm(rows, end, s.D, scale, {block_q, s.D}, {k, s.D, true}, T{0}, p, end);
    gemm(rows, end, s.D, T{1}, {block_dout, s.out_stride()}, {v, s.D, true}, T{0}, dp, end);
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* dout_row = block_dout + i * s.out_stride();
      const T* out_row = out + (first + i) * s.out_stride();
      const T delta = OneLane{}.template sum<T>(s.D, [=](std::int64_t d) { return dout_row[d] * out_row[d]; });
      body::DropoutRow<T> keep{};
      if (mask.p > 0) keep = dropout_row_of<T>(mask, mask.first_sample + b, first + i, mask.first_head + h);
      body::softmax_gradient_row(OneLane{}, first + i + 1, end, log_sum[first + i], delta, mask.p > 0 ? &keep : nullptr,
                                 p + i * end, dp + i * end);
    }
    gemm(end, s.D, rows, T{1}, {p, end, true}, {block_dout, s.out_stride()}, T{1}, dv, s.D);
    gemm(rows, s.D, end, scale, {dp, end}, {k, s.D}, T{0}, dq + first * s.D, s.D);
    gemm(end, s.D, rows, scale, {dp, end, true}, {block_q, s.D}, T{1}, dk, s.D);
  }
}

}  // namespace

void attention(const Device& device, const Tensor& q, const Tensor& k, const Tensor& v, const Dropout& mask,
               const Tensor& out, const Tensor& log_sum) {
  const Sizes s = check_attention(q, k, v, out, log_sum, mask);
  with_real(q, [&]<typename T>(T) {
    const Tiles<T> tiles(device, s.block() * s.T, q.dtype());
    parallel_for(s.B * s.H, [&](std::int64_t i) {
      const std::int64_t b = i / s.H;
      const std::int64_t h = i % s.H;
      const std::int64_t kv = s.k_offset(b, h / (s.H / s.K));
      attend_head<T>(s, q.data<T>() + s.q_offset(b, h), k.data<T>() + kv, v.data<T>() + kv, mask, b, h, tiles.mine(),
                     out.data<T>() + s.out_offset(b, h), log_sum.data<T>() + i * s.T);
    });
  });
}

void attention_gradient(const Device& device, const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& out, const Tensor& log_sum, const Dropout& mask, const Tensor& dq,
                        const Tensor& dk, const Tensor& dv) {
  const Sizes s = check_attention(q, k, v, out, log_sum, mask);
  expect_like(dout, out, "attention_gradient: dout");
  expect_shape(dq, q.dtype(), q.shape(), "attention_gradient: dq");
  expect_shape(dk, q.dtype(), k.shape(), "attention_gradient: dk");
  expect_shape(dv, q.dtype(), v.shape(), "attention_gradient: dv");
  with_real(q, [&]<typename T>(T) {
    const Tiles<T> tiles(device, 2 * s.block() * s.T, q.dtype());
    // A key/value head is one thread's: its query heads add to dk and dv in ascending order.
    parallel_for(s.B * s.K, [&](std::int64_t i) {
      const std::int64_t b = i / s.K;
      const std::int64_t g = i % s.K;
      const std::int64_t kv = s.k_offset(b, g);
      std::fill_n(dk.data<T>() + kv, s.T * s.D, T{0});
      std::fill_n(dv.data<T>() + kv, s.T * s.D, T{0});
      for (std::int64_t h = g * (s.H / s.K); h < (g + 1) * (s.H / s.K); ++h) {
        const std::int64_t at_q = s.q_offset(b, h);
        const std::int64_t at_out = s.out_offset(b, h);
        attend_head_gradient<T>(s, dout.data<T>() + at_out, q.data<T>() + at_q, k.data<T>() + kv, v.data<T>() + kv,
                                out.data<T>() + at_out, log_sum.data<T>() + (b * s.H + h) * s.T, mask, b, h,
                                tiles.mine(), dq.data<T>() + at_q, dk.data<T>() + kv, dv.data<T>() + kv);
      }
    });
  });
}

}  // namespace cuboid::kernels
