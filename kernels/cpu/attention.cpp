#include <cmath>
#include <type_traits>

#include "kernels/attention_sizes.h"
#include "kernels/body/softmax.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/launch.h"

namespace cuboid::kernels::cpu {
namespace {

using body::OneLane;

using Sizes = AttentionSizes;

// Room for a thread's tiles, in one workspace tensor.
template <typename T>
class Tiles {
 public:
  Tiles(const Device& device, std::int64_t elements)
      : elements_(elements),
        tensor_(device.empty(Shape{omp_get_max_threads(), elements}, dtype_of<T>, Category::workspace)) {}
  T* mine() const { return tensor_.template data<T>() + omp_get_thread_num() * elements_; }

 private:
  std::int64_t elements_;
  Tensor tensor_;
};

/// True for a storage type that products are not accumulated in: they go through tiles of the type that is.
template <typename T>
inline constexpr bool kRounds = !std::is_same_v<T, Real<T>>;

// y (rows, D; row stride) = x (rows, D) · factor, or x[i]·factors[i] a row.
template <typename T, typename Factor>
void store_rows(std::int64_t rows, std::int64_t columns, const Real<T>* x, std::int64_t x_stride, Factor factor, T* y,
                std::int64_t y_stride) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const Real<T> f = factor(i);
    const Real<T>* in = x + i * x_stride;
    T* out = y + i * y_stride;
    OneLane{}.each(columns, [=](std::int64_t d) { out[d] = static_cast<T>(in[d] * f); });
  }
}

// Workspace of a thread: scores against all keys of a block of queries, and where T is rounded also the rounded
// probabilities and a block's products before they are.
template <typename T>
struct ForwardTiles {
  Tiles<Real<T>> reals;
  Tiles<T> rounded;
  ForwardTiles(const Device& device, const Sizes& s)
      : reals(device, s.forward_tile(kRounds<T>)), rounded(device, s.forward_rounded_tile(kRounds<T>)) {}
};

// out and log_sum of one query head.
template <typename T>
void attend_head(const Sizes& s, const T* q, const T* k, const T* v, const Dropout& mask, std::int64_t b,
                 std::int64_t h, const ForwardTiles<T>& tiles, T* out, Real<T>* log_sum) {
  using R = Real<T>;
  const R scale = static_cast<R>(1 / std::sqrt(static_cast<double>(s.D)));
  R* scores = tiles.reals.mine();
  s.for_blocks(s.block(), [&](std::int64_t first, std::int64_t rows) {
    const std::int64_t position = s.queries.position(first);
    const AttentionSizes::Keys keys = s.keys(position, rows);
    const std::int64_t width = keys.count();
    const T* block_k = k + keys.begin * s.D;
    const T* block_v = v + keys.begin * s.D;
    gemm(rows, width, s.D, {q + first * s.D, s.D}, {block_k, s.D, true}, false, scores, width);
    R sums[AttentionSizes::kQueryBlock];
    for (std::int64_t i = 0; i < rows; ++i) {
      R* row = scores + i * width;
      const body::Visible visible = s.visible(position + i, keys);
      const auto softmax = body::softmax_row(OneLane{}, visible, width, scale, row);
      sums[i] = softmax.sum;
      log_sum[first + i] = softmax.max + std::log(softmax.sum);
      if (mask.p > 0) {
        const auto keep = dropout_row_of<R>(mask, mask.first_sample + b, position + i, mask.first_head + h);
        const auto apply = [=](std::int64_t j, R factor) { row[j] *= factor; };
        body::dropout_row(OneLane{}, visible.end, keep, apply, keys.dropout_block());
      }
    }
    // The softmax's division comes last: on D numbers a row rather than `width`.
    T* block_out = out + first * s.out_stride();
    const auto inverse = [&](std::int64_t i) { return R{1} / sums[i]; };
    if constexpr (kRounds<T>) {
      T* probabilities = tiles.rounded.mine();
      R* products = scores + s.block() * s.most_keys();
      store_rows(
          rows, width, scores, width, [](std::int64_t) { return R{1}; }, probabilities, width);
      gemm(rows, s.D, width, {probabilities, width}, {block_v, s.D}, false, products, s.D);
      store_rows(rows, s.D, products, s.D, inverse, block_out, s.out_stride());
    } else {
      gemm(rows, s.D, width, {scores, width}, {block_v, s.D}, false, block_out, s.out_stride());
      store_rows(rows, s.D, block_out, s.out_stride(), inverse, block_out, s.out_stride());
    }
  });
}

// Where a head's gradients are summed, and a thread's tiles. dq, dk, dv are sums of the type that is computed with; T's
// own memory if that is the same.
template <typename T>
struct BackwardTiles {
  Tiles<Real<T>> reals;
  Tiles<T> rounded;
  BackwardTiles(const Device& device, const Sizes& s)
      : reals(device, s.backward_tile(kRounds<T>)), rounded(device, s.backward_rounded_tile(kRounds<T>)) {}
  Real<T>* dq_block(const Sizes& s) const { return reals.mine() + 2 * s.block() * s.most_keys(); }
  Real<T>* dk(const Sizes& s) const { return dq_block(s) + s.block() * s.D; }
  Real<T>* dv(const Sizes& s) const { return dk(s) + s.T * s.D; }
};

// dq of one query head; adds its share to dk and dv (both T·D, real) of its key/value head.
template <typename T>
void attend_head_gradient(const Sizes& s, const T* dout, const T* q, const T* k, const T* v, const T* out,
                          const Real<T>* log_sum, const Dropout& mask, std::int64_t b, std::int64_t h,
                          const BackwardTiles<T>& tiles, T* dq, Real<T>* dk, Real<T>* dv) {
  using R = Real<T>;
  const R scale = static_cast<R>(1 / std::sqrt(static_cast<double>(s.D)));
  s.for_blocks(s.block(), [&](std::int64_t first, std::int64_t rows) {
    const std::int64_t position = s.queries.position(first);
    const AttentionSizes::Keys keys = s.keys(position, rows);
    const std::int64_t width = keys.count();
    const T* block_k = k + keys.begin * s.D;
    R* p = tiles.reals.mine();
    R* dp = p + rows * width;
    T* dropped = nullptr;
    T* ds = nullptr;
    R* block_dq = nullptr;
    if constexpr (kRounds<T>) {
      dropped = tiles.rounded.mine();
      ds = dropped + rows * width;
      block_dq = tiles.dq_block(s);
    } else {
      dropped = p;
      ds = dp;
      block_dq = dq + first * s.D;
    }
    const T* block_q = q + first * s.D;
    const T* block_dout = dout + first * s.out_stride();
    gemm(rows, width, s.D, {block_q, s.D}, {block_k, s.D, true}, false, p, width);
    gemm(rows, width, s.D, {block_dout, s.out_stride()}, {v + keys.begin * s.D, s.D, true}, false, dp, width);
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* dout_row = block_dout + i * s.out_stride();
      const T* out_row = out + (first + i) * s.out_stride();
      const R delta =
          OneLane{}.template sum<R>(s.D, [=](std::int64_t d) { return real(dout_row[d]) * real(out_row[d]); });
      body::DropoutRow<R> keep{};
      if (mask.p > 0) keep = dropout_row_of<R>(mask, mask.first_sample + b, position + i, mask.first_head + h);
      body::softmax_gradient_row(OneLane{}, s.visible(position + i, keys), width, scale, log_sum[first + i], delta,
                                 mask.p > 0 ? &keep : nullptr, keys.dropout_block(), p + i * width, dp + i * width,
                                 dropped + i * width, ds + i * width);
    }
    R* block_dk = dk + keys.begin * s.D;
    R* block_dv = dv + keys.begin * s.D;
    gemm(width, s.D, rows, {dropped, width, true}, {block_dout, s.out_stride()}, true, block_dv, s.D);
    gemm(rows, s.D, width, {ds, width}, {block_k, s.D}, false, block_dq, s.D);
    gemm(width, s.D, rows, {ds, width, true}, {block_q, s.D}, true, block_dk, s.D);
    if constexpr (kRounds<T>) {
      store_rows(
          rows, s.D, block_dq, s.D, [](std::int64_t) { return R{1}; }, dq + first * s.D, s.D);
    }
  });
}

}  // namespace

void attention(const Device& device, const Tensor& q, const Tensor& k, const Tensor& v, const Dropout& mask,
               const Tensor& out, const Tensor& log_sum, const Causal& causal) {
  const Sizes s = attention_sizes(q, k, causal);
  with_storage(q, [&]<typename T>(T) {
    const ForwardTiles<T> tiles(device, s);
    parallel_for(s.B * s.H, [&](std::int64_t i) {
      const std::int64_t b = i / s.H;
      const std::int64_t h = i % s.H;
      const std::int64_t kv = s.k_offset(b, h / (s.H / s.K));
      attend_head<T>(s, q.data<T>() + s.q_offset(b, h), k.data<T>() + kv, v.data<T>() + kv, mask, b, h, tiles,
                     out.data<T>() + s.out_offset(b, h), log_sum.data<Real<T>>() + i * s.N);
    });
  });
}

void attention_gradient(const Device& device, const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& out, const Tensor& log_sum, const Dropout& mask, const Tensor& dq,
                        const Tensor& dk, const Tensor& dv, const Causal& causal) {
  const Sizes s = attention_sizes(q, k, causal);
  const bool rounds = dk.dtype() == DType::bfloat16;
  with_storage(q, [&]<typename T>(T) {
    const BackwardTiles<T> tiles(device, s);
    // A key/value head is one thread's: its query heads add to dk and dv in ascending order.
    parallel_for(s.B * s.K, [&](std::int64_t i) {
      const std::int64_t b = i / s.K;
      const std::int64_t g = i % s.K;
      const std::int64_t kv = s.k_offset(b, g);
      Real<T>* sum_k = nullptr;
      Real<T>* sum_v = nullptr;
      if (rounds) {
        sum_k = tiles.dk(s);
        sum_v = tiles.dv(s);
      } else {
        sum_k = dk.data<Real<T>>() + kv;
        sum_v = dv.data<Real<T>>() + kv;
      }
      std::fill_n(sum_k, s.T * s.D, Real<T>{});
      std::fill_n(sum_v, s.T * s.D, Real<T>{});
      for (std::int64_t h = g * (s.H / s.K); h < (g + 1) * (s.H / s.K); ++h) {
        const std::int64_t at_q = s.q_offset(b, h);
        const std::int64_t at_out = s.out_offset(b, h);
        attend_head_gradient<T>(s, dout.data<T>() + at_out, q.data<T>() + at_q, k.data<T>() + kv, v.data<T>() + kv,
                                out.data<T>() + at_out, log_sum.data<Real<T>>() + (b * s.H + h) * s.N, mask, b, h,
                                tiles, dq.data<T>() + at_q, sum_k, sum_v);
      }
      if (rounds) {
        const auto one = [](std::int64_t) { return Real<T>{1}; };
        store_rows(s.T, s.D, sum_k, s.D, one, dk.data<T>() + kv, s.D);
        store_rows(s.T, s.D, sum_v, s.D, one, dv.data<T>() + kv, s.D);
      }
    });
  });
}

}  // namespace cuboid::kernels::cpu
