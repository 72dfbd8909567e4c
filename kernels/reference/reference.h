// What the kernels should compute, in double precision and in the plainest loops: the oracle of the kernel tests.
// Forward functions only; tests take gradients from them by finite differences. Not here: speed, and gradients.
#pragma once

#include <vector>

#include "cuboid/kernels/kernels.h"

namespace cuboid::kernels::reference {

using Array = std::vector<double>;

/// op(a)·op(b), (m,n); k is the inner size.
Array matmul(const Array& a, const Array& b, std::int64_t m, std::int64_t n, std::int64_t k, MatMul options = {});

/// Rows as long as weight.
Array layer_norm(const Array& x, const Array& weight, const Array& bias, double eps);
Array rms_norm(const Array& x, const Array& weight, double eps);

double gelu(double x);
double silu(double x);
/// (N,n) of gate_up (N,2n).
Array swiglu(const Array& gate_up, std::int64_t n);

/// Factor of one element by the definition of Dropout: 0 or 1/(1-p).
double dropout_factor(const Dropout& mask, std::int64_t t, std::int64_t b, std::int64_t head, std::int64_t column);

/// Sizes of attention, letters as in kernels.h.
struct Heads {
  std::int64_t T, B, H, K, D;
  std::int64_t window = 0;  ///< 0: none
  /// First key that query t sees.
  std::int64_t oldest(std::int64_t t) const { return window > 0 && t >= window ? t - window + 1 : 0; }
};

/// The place of head `head` (q heads, then k, then v) of qkv (T,B,(H+2K)·D).
std::int64_t fused_offset(const Heads& s, std::int64_t t, std::int64_t b, std::int64_t head);
/// q, k or v (B,heads,T,D) out of qkv: `heads` heads from `first_head`; turned by `angles` (T,D/2) unless empty.
Array split_heads(const Heads& s, const Array& qkv, std::int64_t first_head, std::int64_t heads, const Array& angles);

/// Softmax of the scores of one query, (t + 1), 0 where it does not see the key, and the log of its denominator.
struct Probabilities {
  Array p;
  double log_sum;
};
Probabilities attention_probabilities(const Heads& s, const Array& q, const Array& k, std::int64_t b, std::int64_t h,
                                      std::int64_t t);
/// out (T,B,H·D).
Array attention(const Heads& s, const Array& q, const Array& k, const Array& v, const Dropout& mask);

/// Summed loss per sequence (B) of logits (T·B,V); targets of kIgnore are left out.
Array cross_entropy(const Array& logits, const std::vector<std::int32_t>& targets, std::int64_t batch);

/// Weight, m and v of one element after a step.
struct AdamWElement {
  double weight, m, v;
};
AdamWElement adamw(const AdamW& options, double gradient, AdamWElement before);

}  // namespace cuboid::kernels::reference
