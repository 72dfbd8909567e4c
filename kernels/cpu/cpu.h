// The kernels of kernels.h on the CPU. Arguments are checked where they are dispatched (kernels/dispatch), not here.
#pragma once

#include "cuboid/kernels/kernels.h"

namespace cuboid::kernels::cpu {

void matmul(const Device& device, const Tensor& a, const Tensor& b, const Tensor& c, MatMul options,
            const Tensor& bias);
void add_column_sum(const Device& device, const Tensor& x, const Tensor& out);
void layer_norm(const Device& device, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                const Tensor& y, const Tensor& mean, const Tensor& rstd);
void layer_norm_input_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& weight,
                               const Tensor& mean, const Tensor& rstd, const Tensor& dx);
void layer_norm_weight_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& mean,
                                const Tensor& rstd, const Tensor& dweight, const Tensor& dbias);
void rms_norm(const Device& device, const Tensor& x, const Tensor& weight, double offset, double eps, const Tensor& y,
              const Tensor& rstd);
void rms_norm_input_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& weight,
                             double offset, const Tensor& rstd, const Tensor& dx);
void rms_norm_weight_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& rstd,
                              const Tensor& dweight);
void rms_norm_heads(const Device& device, const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, double eps,
                    std::int64_t heads, std::int64_t kv_heads, const Tensor& y, const Tensor& rstd);
void rms_norm_heads_input_gradient(const Device& device, const Tensor& dy, const Tensor& qkv, const Tensor& q_weight,
                                   const Tensor& k_weight, const Tensor& rstd, std::int64_t heads,
                                   std::int64_t kv_heads, const Tensor& dqkv);
void rms_norm_heads_weight_gradient(const Device& device, const Tensor& dy, const Tensor& qkv, const Tensor& rstd,
                                    std::int64_t heads, std::int64_t kv_heads, const Tensor& dq_weight,
                                    const Tensor& dk_weight);
void gelu(const Device& device, const Tensor& x, const Tensor& y);
void gelu_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& dx);
void swiglu(const Device& device, const Tensor& gate_up, const Tensor& y);
void swiglu_gradient(const Device& device, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up);
void geglu(const Device& device, const Tensor& gate_up, const Tensor& y);
void geglu_gradient(const Device& device, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up);
void add(const Device& device, const Tensor& a, const Tensor& b, const Tensor& c);
void add_bias(const Device& device, const Tensor& x, const Tensor& bias, const Tensor& y);
void convert(const Device& device, const float* numbers, const Tensor& out);
void convert(const Device& device, const Tensor& from, const Tensor& to);
void scale(const Device& device, const Tensor& t, double factor);
void dropout(const Device& device, const Tensor& x, const Dropout& mask, const Tensor& y);
void dropout_add(const Device& device, const Tensor& x, const Tensor& residual, const Dropout& mask, const Tensor& y);
void split_heads(const Device& device, const Tensor& qkv, const Tensor& cos, const Tensor& sin, const Tensor& q,
                 const Tensor& k, const Tensor& v);
void split_heads_gradient(const Device& device, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& cos,
                          const Tensor& sin, const Tensor& dqkv);
void attention(const Device& device, const Tensor& q, const Tensor& k, const Tensor& v, const Dropout& mask,
               const Tensor& out, const Tensor& log_sum, const Causal& causal);
void attention_gradient(const Device& device, const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& out, const Tensor& log_sum, const Dropout& mask, const Tensor& dq,
                        const Tensor& dk, const Tensor& dv, const Causal& causal);
void join_sequence(const Device& device, const Tensor& parts, const Tensor& whole);
void cut_sequence(const Device& device, const Tensor& whole, const Tensor& parts);
void embedding(const Device& device, const Tensor& tokens, const Tensor& table, std::int64_t first_row,
               const Tensor& y);
void embedding_gradient(const Device& device, const Tensor& tokens, const Tensor& dy, std::int64_t first_row,
                        const Tensor& dtable);
void add_positions(const Device& device, const Tensor& x, const Tensor& table, const SequencePart& rows);
void add_positions_gradient(const Device& device, const Tensor& dy, const SequencePart& rows, const Tensor& dtable);
void cross_entropy_statistics(const Device& device, const Tensor& logits, const Tensor& targets, std::int64_t first_row,
                              const Tensor& row_max, const Tensor& row_sum, const Tensor& target_logit);
void rescale_sum(const Device& device, const Tensor& local_max, const Tensor& global_max, const Tensor& row_sum);
void cross_entropy_loss(const Device& device, const Tensor& row_max, const Tensor& row_sum, const Tensor& target_logit,
                        const Tensor& targets, const Tensor& losses);
void cross_entropy_gradient(const Device& device, const Tensor& logits, const Tensor& targets, std::int64_t first_row,
                            const Tensor& row_max, const Tensor& row_sum, double factor, const Tensor& dlogits);
void route(const Device& device, const Tensor& logits, const Tensor& probabilities, const Tensor& experts,
           const Tensor& weights, const Tensor& log_sum);
void route_gradient(const Device& device, const Tensor& dweights, const Tensor& probabilities, const Tensor& experts,
                    const Tensor& weights, const Tensor& log_sum, const Tensor& slope, double z, const Tensor& dlogits);
std::vector<std::int64_t> sort_by_expert(const Device& device, const Tensor& experts, std::int64_t count,
                                         const Tensor& slot, const Tensor& source);
void gather_rows(const Device& device, const Tensor& x, const Tensor& index, const Tensor& y);
void combine_rows(const Device& device, const Tensor& rows, const Tensor& slot, const Tensor& weights, const Tensor& y);
void combine_rows_gradient(const Device& device, const Tensor& dy, const Tensor& rows, const Tensor& slot,
                           const Tensor& weights, const Tensor& drows, const Tensor& dweights);
void add_squares(const Device& device, const Tensor& x, const Tensor& words);
void adamw(const Device& device, const AdamW& options, const Tensor& gradient, const Tensor& weight, const Tensor& m,
           const Tensor& v, const Tensor& rounded);
void sgd(const Device& device, double lr, double weight_decay, double gradient_scale, const Tensor& gradient,
         const Tensor& weight, const Tensor& rounded);

}  // namespace cuboid::kernels::cpu
