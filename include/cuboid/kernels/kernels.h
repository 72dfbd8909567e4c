// The mathematics of a training step on one device, without any idea of ranks or gradients' bookkeeping. Each function
// is one kernel: bodies are written once (kernels/body), launched by kernels/cpu. Tensors are float32, bfloat16 or
// float64 (the tests' finite differences), equal in one call unless said otherwise; sizes are the caller's
// responsibility and are checked. bfloat16 is how numbers are stored: arithmetic is in float, and results are rounded
// once. Statistics (mean, rstd, log_sum, row_max, …), rotary tables, logits and gradients of weights are of the type
// that is computed with, compute_type: float32 for bfloat16.
//
// Shapes: T sequence, B sequences of the micro-batch, N = T·B rows in that order (row = t·B + b), C hidden, H query
// heads, K key/value heads, D head dim, F ffn, V vocabulary (this rank's rows of it). "adds" = adds to what is there.
#pragma once

#include <cstdint>
#include <vector>

#include "cuboid/core/exact_sum.h"
#include "cuboid/core/sequence_part.h"
#include "cuboid/runtime/device.h"

namespace cuboid::kernels {

// ---------------------------------------------------------------- matrix product

struct MatMul {
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;  ///< add to c instead of overwriting it
  bool varying = false;     ///< sizes differ from call to call: nothing is worth preparing for them
};

/// c (m,n) = op(a)·op(b) [+ bias (n)] [+ c]. Tensors of more than two dims count as (rows, last dim). Of bfloat16 a and
/// b, c may be bfloat16 (rounded once; not with `accumulate`) or float32.
void matmul(const Device& device, const Tensor& a, const Tensor& b, const Tensor& c, MatMul options = {},
            const Tensor& bias = {});

/// True if this CPU's instructions multiply bfloat16 matrices through oneDNN; if not, matmul converts them to float32
/// and back, with the same results but for the order of sums.
bool has_native_bfloat16();

/// out (n) adds the sum over rows of x (rows,n): a bias gradient. Rows are summed in ascending order within fixed
/// blocks.
void add_column_sum(const Device& device, const Tensor& x, const Tensor& out);

// ---------------------------------------------------------------- norms (statistics per row, kept for backward)

/// y = (x - mean)·rstd·weight + bias over the last dim; mean, rstd: (N).
void layer_norm(const Device& device, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                const Tensor& y, const Tensor& mean, const Tensor& rstd);
void layer_norm_input_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& weight,
                               const Tensor& mean, const Tensor& rstd, const Tensor& dx);
/// Adds to dweight (C) and dbias (C).
void layer_norm_weight_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& mean,
                                const Tensor& rstd, const Tensor& dweight, const Tensor& dbias);

/// y = x·rstd·(weight + offset), rstd = 1/sqrt(mean(x²) + eps): (N).
void rms_norm(const Device& device, const Tensor& x, const Tensor& weight, double offset, double eps, const Tensor& y,
              const Tensor& rstd);
void rms_norm_input_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& weight,
                             double offset, const Tensor& rstd, const Tensor& dx);
/// Adds to dweight (C).
void rms_norm_weight_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& rstd,
                              const Tensor& dweight);

/// RMS norms of every q and k head of a fused projection qkv (T,B,(H+2K)·D) over D, with a weight (D) for all q heads
/// and one for all k heads; v heads are copied. rstd: (H+K,N).
void rms_norm_heads(const Device& device, const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, double eps,
                    std::int64_t heads, std::int64_t kv_heads, const Tensor& y, const Tensor& rstd);
void rms_norm_heads_input_gradient(const Device& device, const Tensor& dy, const Tensor& qkv, const Tensor& q_weight,
                                   const Tensor& k_weight, const Tensor& rstd, std::int64_t heads,
                                   std::int64_t kv_heads, const Tensor& dqkv);
/// Adds to dq_weight (D) and dk_weight (D).
void rms_norm_heads_weight_gradient(const Device& device, const Tensor& dy, const Tensor& qkv, const Tensor& rstd,
                                    std::int64_t heads, std::int64_t kv_heads, const Tensor& dq_weight,
                                    const Tensor& dk_weight);

// ---------------------------------------------------------------- elementwise

/// Tanh approximation of GELU: x/2·(1 + tanh(sqrt(2/π)·(x + 0.044715·x³))).
void gelu(const Device& device, const Tensor& x, const Tensor& y);
void gelu_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& dx);

/// y (N,F) = silu(gate)·up with gate_up (N,2F) = gate | up in each row.
void swiglu(const Device& device, const Tensor& gate_up, const Tensor& y);
void swiglu_gradient(const Device& device, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up);

/// The same with tanh GELU in place of SiLU.
void geglu(const Device& device, const Tensor& gate_up, const Tensor& y);
void geglu_gradient(const Device& device, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up);

/// c = a + b; c may be a or b.
void add(const Device& device, const Tensor& a, const Tensor& b, const Tensor& c);
/// y (…,n) = x + bias (n) in every row; y may be x.
void add_bias(const Device& device, const Tensor& x, const Tensor& bias, const Tensor& y);
/// out = numbers, rounded to out's element type (float32, float64 or bfloat16). `numbers` may be out's memory.
void convert(const Device& device, const float* numbers, const Tensor& out);
/// to = from, rounded to its element type; one of them is float32, or both are of one type.
void convert(const Device& device, const Tensor& from, const Tensor& to);
/// t *= factor.
void scale(const Device& device, const Tensor& t, double factor);

// ---------------------------------------------------------------- dropout, keyed by global position

/// Which random numbers a dropout uses. The number of an element is that of its global position, so the mask does not
/// depend on the grid: Philox block (key; column/4, row, sample low, head<<16 | sample high), word column%4; kept iff
/// word >= p·2³². Kept values are scaled by 1/(1-p).
struct Dropout {
  double p = 0;                   ///< probability of dropping; 0: identity
  std::uint64_t key = 0;          ///< of seed, step, layer and operation
  std::int64_t first_sample = 0;  ///< global index of sample b = 0; sample b is first_sample + b
  SequencePart rows = {};         ///< positions of the rows t in the sequence
  std::int64_t first_head = 0;    ///< global index of local head 0 (attention only)
};

/// y = dropout(x) for x (T,B,C): row t, column c. y may be x. Also its own gradient.
void dropout(const Device& device, const Tensor& x, const Dropout& mask, const Tensor& y);
/// y = residual + dropout(x); y may be residual or x.
void dropout_add(const Device& device, const Tensor& x, const Tensor& residual, const Dropout& mask, const Tensor& y);

// ---------------------------------------------------------------- attention

/// Cuts the fused projection qkv (T,B,(H+2K)·D), in each row q heads | k heads | v heads, into q (B,H,T,D), k (B,K,T,D)
/// and v (B,K,T,D). With rope tables cos, sin (T,D/2) q and k are rotated: element j turns with element j + D/2.
/// Undefined cos and sin: no rotation.
void split_heads(const Device& device, const Tensor& qkv, const Tensor& cos, const Tensor& sin, const Tensor& q,
                 const Tensor& k, const Tensor& v);
/// The transpose of split_heads: dqkv from dq, dk, dv.
void split_heads_gradient(const Device& device, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& cos,
                          const Tensor& sin, const Tensor& dqkv);

/// What a query sees: keys at positions p - window + 1 … p, p being its own; all up to p without a window.
struct Causal {
  std::int64_t window = 0;    ///< 0: none
  SequencePart queries = {};  ///< positions of the queries; keys are those of the whole sequence
};
/// Causal attention of N queries of a sequence with T keys, N = T or a part of them (context parallelism): q
/// (B,H,N,D), k and v (B,K,T,D); out (N,B,H·D) = dropout(softmax(q·kᵀ/sqrt(D)))·v; query head h uses key/value head
/// h / (H/K). Worked in blocks of query rows, and only on the keys that a block sees: no (N,T) matrix exists. log_sum
/// (B,H,N): log of the softmax's denominator, for backward. Dropout: row = query position, column = key position, head
/// = first_head + h; its `rows` are not used.
void attention(const Device& device, const Tensor& q, const Tensor& k, const Tensor& v, const Dropout& mask,
               const Tensor& out, const Tensor& log_sum, const Causal& causal = {});
/// dq, dk, dv are overwritten. Recomputes the scores from q, k and log_sum. dk and dv may be of the type that sums are
/// made in, where they are partial sums that are to be added before they are rounded.
void attention_gradient(const Device& device, const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& out, const Tensor& log_sum, const Dropout& mask, const Tensor& dq,
                        const Tensor& dk, const Tensor& dv, const Causal& causal = {});

/// whole (B,K,T,D), in the order of the sequence, from the parts (R,B,K,T/R,D) that R context-parallel ranks hold of it
/// (context_part).
void join_sequence(const Device& device, const Tensor& parts, const Tensor& whole);
/// Its transpose, which is its inverse: parts from whole.
void cut_sequence(const Device& device, const Tensor& whole, const Tensor& parts);

// ---------------------------------------------------------------- embeddings

/// y (T,B,C): row of table (V,C) at token - first_row, zeros where this rank does not hold it. tokens (T,B) int32.
void embedding(const Device& device, const Tensor& tokens, const Tensor& table, std::int64_t first_row,
               const Tensor& y);
/// Adds dy rows to dtable in ascending row order.
void embedding_gradient(const Device& device, const Tensor& tokens, const Tensor& dy, std::int64_t first_row,
                        const Tensor& dtable);
/// Row t of x (T,B,C) adds row rows.position(t) of table (P,C).
void add_positions(const Device& device, const Tensor& x, const Tensor& table, const SequencePart& rows);
/// dtable adds dy (T,B,C) at those rows, samples in ascending order.
void add_positions_gradient(const Device& device, const Tensor& dy, const SequencePart& rows, const Tensor& dtable);

// ---------------------------------------------------------------- cross-entropy over a split vocabulary

/// Target value that is left out of the loss.
inline constexpr std::int32_t kIgnore = -100;

/// For each row of logits (N,V): row_max (N) its maximum, row_sum (N) = Σ exp(logit - row_max), target_logit (N) = the
/// logit at target - first_row, 0 where ignored or not held here. targets (N) int32.
void cross_entropy_statistics(const Device& device, const Tensor& logits, const Tensor& targets, std::int64_t first_row,
                              const Tensor& row_max, const Tensor& row_sum, const Tensor& target_logit);
/// row_sum *= exp(local_max - global_max), before sums of several ranks are added.
void rescale_sum(const Device& device, const Tensor& local_max, const Tensor& global_max, const Tensor& row_sum);
/// losses (B) float64: per sequence the sum over t, ascending, of log(row_sum) + row_max - target_logit where not
/// ignored. Row of (t,b) is t·B + b.
void cross_entropy_loss(const Device& device, const Tensor& row_max, const Tensor& row_sum, const Tensor& target_logit,
                        const Tensor& targets, const Tensor& losses);
/// dlogits (N,V) = (exp(logit - row_max)/row_sum - onehot)·factor, 0 in ignored rows: bfloat16, or of the logits' type
/// and then possibly the logits themselves.
void cross_entropy_gradient(const Device& device, const Tensor& logits, const Tensor& targets, std::int64_t first_row,
                            const Tensor& row_max, const Tensor& row_sum, double factor, const Tensor& dlogits);

// ---------------------------------------------------------------- experts
// N rows of tokens, each sent to k of E experts: N·k copies, which are sorted by expert and then by row.

/// Softmax over all experts, then the k largest: probabilities (N,E), experts (N,k) int32 in descending order of logits
/// (N,E), the lower index where they are equal; weights (N,k): their probabilities, divided by the sum of these;
/// log_sum (N) = log Σ exp(logit). float32 or float64.
void route(const Device& device, const Tensor& logits, const Tensor& probabilities, const Tensor& experts,
           const Tensor& weights, const Tensor& log_sum);
/// dlogits (N,E) of the weights' gradient dweights (N,k), of Σ slope·probability with slope (E), and of z·log_sum².
void route_gradient(const Device& device, const Tensor& dweights, const Tensor& probabilities, const Tensor& experts,
                    const Tensor& weights, const Tensor& log_sum, const Tensor& slope, double z, const Tensor& dlogits);

/// slot (N,k) int32: place of each copy among the sorted; source (N·k) int32: row that the copy at each place is of.
/// Returns the copies of each of `count` experts.
std::vector<std::int64_t> sort_by_expert(const Device& device, const Tensor& experts, std::int64_t count,
                                         const Tensor& slot, const Tensor& source);
/// y (R,n): row index[r] of x, index (R) int32.
void gather_rows(const Device& device, const Tensor& x, const Tensor& index, const Tensor& y);
/// y (N,n) = Σ over j, ascending, of weights[j]·rows[slot[j]]; rows (N·k,n), slot and weights (N,k), or no weights: 1.
void combine_rows(const Device& device, const Tensor& rows, const Tensor& slot, const Tensor& weights, const Tensor& y);
/// drows (N·k,n) and dweights (N,k) of combine_rows. rows may be of the type that dy (N,n) is computed with.
void combine_rows_gradient(const Device& device, const Tensor& dy, const Tensor& rows, const Tensor& slot,
                           const Tensor& weights, const Tensor& drows, const Tensor& dweights);

// ---------------------------------------------------------------- optimizer

/// Adds Σ x² to the words (ExactSum::kWords) int64 of an exact sum: squares are added in double within lines of 256
/// bytes of memory (in a fixed order), and exactly from there on. Buffers and parts of buckets begin at lines, so how a
/// bucket is cut changes no bit. Words that start from zero hold the sum of 2^31 lines.
void add_squares(const Device& device, const Tensor& x, const Tensor& words);

struct AdamW {
  double lr, beta1, beta2, eps, weight_decay;
  double bias_correction1;  ///< 1 - beta1^step
  double bias_correction2;  ///< 1 - beta2^step
  double gradient_scale;    ///< clipping factor, applied to the gradient first
};
/// Decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101): w -= lr·(wd·w + m̂/(sqrt(v̂) + eps)).
/// `rounded` (bfloat16), if defined, gets the new weights in the same pass: the step is bound by memory.
void adamw(const Device& device, const AdamW& options, const Tensor& gradient, const Tensor& weight, const Tensor& m,
           const Tensor& v, const Tensor& rounded = {});
/// w -= lr·(gradient_scale·g + weight_decay·w).
void sgd(const Device& device, double lr, double weight_decay, double gradient_scale, const Tensor& gradient,
         const Tensor& weight, const Tensor& rounded = {});

}  // namespace cuboid::kernels
