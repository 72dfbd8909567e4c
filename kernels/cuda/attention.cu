// Attention in blocks of query rows, all heads at a time: the tile products are strided-batched matrix products, and
// what lies between them is a kernel a row. No (T,T) matrix exists: the workspace is (B,H,block,T).
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/attention_sizes.h"
#include "kernels/body/softmax.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/dropout.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.h"

namespace cuboid::kernels::cuda {
namespace {

/// Bytes of scores that a block of query rows should take at most (of all heads), and the least and most rows of one:
/// causality makes half of a block's own square useless.
constexpr std::int64_t kScoreBytes = std::int64_t{256} << 20;
constexpr std::int64_t kFewestRows = 64;
constexpr std::int64_t kMostRows = 128;

std::int64_t block_rows(const AttentionSizes& s) {
  const std::int64_t row_bytes = s.B * s.H * s.T * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t fitting = kScoreBytes / row_bytes / kFewestRows * kFewestRows;
  return std::min(s.N, std::clamp(fitting, kFewestRows, kMostRows));
}

/// True for a storage type that products are not accumulated in.
template <typename T>
inline constexpr bool kRounds = !std::is_same_v<T, Real<T>>;

// A block of query rows: rows [first, first + rows), from `position` on, see keys [begin, begin + width), which a
// window may cut.
struct Block {
  std::int64_t first, rows, position, begin, width, window;
  // What its row i sees of them, as columns of the block.
  CUBOID_HD body::Visible visible(std::int64_t i) const {
    const std::int64_t oldest = position + i - window + 1;
    return {(oldest > begin ? oldest : begin) - begin, position + i + 1 - begin};
  }
};

// Matrices of all key/value heads, each with its query head number `member` (of H/K): (B·K) of them.
class HeadMatrices {
 public:
  HeadMatrices(const AttentionSizes& s, std::int64_t member) : s_(s), group_(s.H / s.K), member_(member) {}

  std::int64_t batch() const { return s_.B * s_.K; }
  /// Rows of q or dq (B,H,N,D).
  MatrixBatch q(const Tensor& t, const Block& block, bool transposed = false) const {
    return at(t, (member_ * s_.N + block.first) * s_.D, s_.D, group_ * s_.N * s_.D, transposed);
  }
  /// The block's rows of k, v or their gradients (B,K,T,D).
  MatrixBatch k(const Tensor& t, const Block& block, bool transposed = false) const {
    return at(t, block.begin * s_.D, s_.D, s_.T * s_.D, transposed);
  }
  /// Rows of out or dout (N,B,H·D).
  MatrixBatch out(const Tensor& t, const Block& block, bool transposed = false) const {
    return at(t, block.first * s_.out_stride() + member_ * s_.D, s_.out_stride(), group_ * s_.D, transposed);
  }
  /// Tiles (B,H,rows,width) of a block.
  MatrixBatch tile(const Tensor& t, const Block& block, bool transposed = false) const {
    const std::int64_t each = block.rows * block.width;
    return at(t, member_ * each, block.width, group_ * each, transposed);
  }

 private:
  static MatrixBatch at(const Tensor& t, std::int64_t offset, std::int64_t stride, std::int64_t distance,
                        bool transposed) {
    auto* const data = static_cast<std::byte*>(t.raw()) + offset * static_cast<std::int64_t>(size_of(t.dtype()));
    return {data, t.dtype(), stride, distance, transposed};
  }
  AttentionSizes s_;
  std::int64_t group_;
  std::int64_t member_;
};

// f(block) for the blocks of query rows in ascending order.
template <typename F>
void for_blocks(const AttentionSizes& s, F f) {
  s.for_blocks(block_rows(s), [&](std::int64_t first, std::int64_t rows) {
    const std::int64_t position = s.queries.position(first);
    const AttentionSizes::Keys keys = s.keys(position, rows);
    f(Block{first, rows, position, keys.begin, keys.count(), s.W});
  });
}

// f(matrices) for each query head of the key/value heads.
template <typename F>
void for_members(const AttentionSizes& s, F f) {
  for (std::int64_t member = 0; member < s.H / s.K; ++member) f(HeadMatrices(s, member));
}

// Scores (B,H,rows,width) become probabilities, with dropout; log_sum (B,H,N).
template <typename T>
void softmax_rows(cudaStream_t stream, const AttentionSizes& s, const Block& block, const Dropout& mask, float scale,
                  float* scores, T* probabilities, float* log_sum) {
  const bool drops = mask.p > 0;
  const DropoutRows<float> mask_rows = drops ? DropoutRows<float>(mask) : DropoutRows<float>(Dropout{.p = 0.5});
  launch_rows(stream, s.B * s.H * block.rows, block.width, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t i) {
    const std::int64_t head = i / block.rows;  // b·H + h
    const std::int64_t row_of_block = i % block.rows;
    const body::Visible visible = block.visible(row_of_block);
    float* const row = scores + i * block.width;
    T* const out = probabilities + i * block.width;
    const auto softmax = body::softmax_row(lanes, visible, block.width, scale, row);
    const float inverse = 1.0F / softmax.sum;
    if (lanes.leader()) log_sum[head * s.N + block.first + row_of_block] = softmax.max + std::log(softmax.sum);
    lanes.sync();
    if (drops) {
      body::dropout_row(
          lanes, visible.end, mask_rows.at_position(head / s.H, block.position + row_of_block, head % s.H),
          [=](std::int64_t j, float factor) { row[j] *= factor; }, block.begin / body::kDropoutColumns);
    }
    lanes.each(block.width, [=](std::int64_t j) { out[j] = static_cast<T>(row[j] * inverse); });
  });
}

// From scores s and dp (both (B,H,rows,width)): dropped-out probabilities and the gradient of the products q·k.
template <typename T>
void softmax_gradient_rows(cudaStream_t stream, const AttentionSizes& s, const Block& block, const Dropout& mask,
                           float scale, const float* log_sum, const T* dout, const T* out, float* scores,
                           const float* dp, T* dropped, T* ds) {
  const bool drops = mask.p > 0;
  const DropoutRows<float> mask_rows = drops ? DropoutRows<float>(mask) : DropoutRows<float>(Dropout{.p = 0.5});
  const std::int64_t stride = s.out_stride();
  launch_rows(stream, s.B * s.H * block.rows, block.width, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t i) {
    const std::int64_t head = i / block.rows;
    const std::int64_t row_of_block = i % block.rows;
    const std::int64_t t = block.first + row_of_block;
    const T* const dout_row = dout + t * stride + head * s.D;
    const T* const out_row = out + t * stride + head * s.D;
    const float delta =
        lanes.template sum<float>(s.D, [=](std::int64_t d) { return real(dout_row[d]) * real(out_row[d]); });
    const auto row = mask_rows.at_position(head / s.H, block.position + row_of_block, head % s.H);
    const std::int64_t at = i * block.width;
    body::softmax_gradient_row(lanes, block.visible(row_of_block), block.width, scale, log_sum[head * s.N + t], delta,
                               drops ? &row : nullptr, block.begin / body::kDropoutColumns, scores + at, dp + at,
                               dropped + at, ds + at);
  });
}

float scale_of(const AttentionSizes& s) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(s.D)));
}

// Tiles for a block of query rows: scores and the like.
Tensor tiles(const Device& device, const AttentionSizes& s, DType dtype) {
  const std::int64_t rows = block_rows(s);
  const std::int64_t width = std::min(s.T, rows + s.W + AttentionSizes::kKeyAlignment);
  return device.empty({s.B * s.H * rows * width}, dtype, Category::workspace);
}

template <typename T>
void attend(const Device& device, const AttentionSizes& s, const Tensor& q, const Tensor& k, const Tensor& v,
            const Dropout& mask, const Tensor& out, const Tensor& log_sum) {
  const Tensor scores = tiles(device, s, DType::float32);
  const Tensor probabilities = kRounds<T> ? tiles(device, s, dtype_of<T>) : scores;
  for_blocks(s, [&](const Block& block) {
    for_members(s, [&](const HeadMatrices& heads) {
      gemm(device, block.rows, block.width, s.D, heads.q(q, block), heads.k(k, block, true), heads.tile(scores, block),
           {.batch = heads.batch()});
    });
    softmax_rows(stream_of(device), s, block, mask, scale_of(s), elements_of<float>(scores),
                 elements_of<T>(probabilities), elements_of<float>(log_sum));
    for_members(s, [&](const HeadMatrices& heads) {
      gemm(device, block.rows, s.D, block.width, heads.tile(probabilities, block), heads.k(v, block),
           heads.out(out, block), {.batch = heads.batch()});
    });
  });
}

template <typename T>
void attend_gradient(const Device& device, const AttentionSizes& s, const Tensor& dout, const Tensor& q,
                     const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& log_sum, const Dropout& mask,
                     const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  const Tensor scores = tiles(device, s, DType::float32);
  const Tensor dp = tiles(device, s, DType::float32);
  const Tensor dropped = kRounds<T> ? tiles(device, s, dtype_of<T>) : scores;
  const Tensor ds = kRounds<T> ? tiles(device, s, dtype_of<T>) : dp;
  // dk and dv are sums over blocks and query heads, made in float32.
  const bool rounds = dk.dtype() != DType::float32;
  const Tensor sum_k = rounds ? device.empty(dk.shape(), DType::float32, Category::workspace) : dk;
  const Tensor sum_v = rounds ? device.empty(dv.shape(), DType::float32, Category::workspace) : dv;
  device.zero(sum_k);
  device.zero(sum_v);
  for_blocks(s, [&](const Block& block) {
    for_members(s, [&](const HeadMatrices& heads) {
      gemm(device, block.rows, block.width, s.D, heads.q(q, block), heads.k(k, block, true), heads.tile(scores, block),
           {.batch = heads.batch()});
      gemm(device, block.rows, block.width, s.D, heads.out(dout, block), heads.k(v, block, true), heads.tile(dp, block),
           {.batch = heads.batch()});
    });
    softmax_gradient_rows(stream_of(device), s, block, mask, scale_of(s), elements_of<float>(log_sum),
                          elements_of<T>(dout), elements_of<T>(out), elements_of<float>(scores), elements_of<float>(dp),
                          elements_of<T>(dropped), elements_of<T>(ds));
    for_members(s, [&](const HeadMatrices& heads) {
      gemm(device, block.rows, s.D, block.width, heads.tile(ds, block), heads.k(k, block), heads.q(dq, block),
           {.batch = heads.batch()});
      gemm(device, block.width, s.D, block.rows, heads.tile(ds, block, true), heads.q(q, block), heads.k(sum_k, block),
           {.batch = heads.batch(), .accumulate = true});
      gemm(device, block.width, s.D, block.rows, heads.tile(dropped, block, true), heads.out(dout, block),
           heads.k(sum_v, block), {.batch = heads.batch(), .accumulate = true});
    });
  });
  if (rounds) {
    convert(device, sum_k, dk);
    convert(device, sum_v, dv);
  }
}

}  // namespace

void attention(const Device& device, const Tensor& q, const Tensor& k, const Tensor& v, const Dropout& mask,
               const Tensor& out, const Tensor& log_sum, const Causal& causal) {
  with_storage(q,
               [&]<typename T>(T) { attend<T>(device, attention_sizes(q, k, causal), q, k, v, mask, out, log_sum); });
}

void attention_gradient(const Device& device, const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& out, const Tensor& log_sum, const Dropout& mask, const Tensor& dq,
                        const Tensor& dk, const Tensor& dv, const Causal& causal) {
  with_storage(q, [&]<typename T>(T) {
    attend_gradient<T>(device, attention_sizes(q, k, causal), dout, q, k, v, out, log_sum, mask, dq, dk, dv);
  });
}

}  // namespace cuboid::kernels::cuda
