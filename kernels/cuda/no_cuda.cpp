// A build without the CUDA toolkit: no device asks for these.
#include "kernels/cuda/cuda.h"

namespace cuboid::kernels::cuda {
namespace {

[[noreturn]] void missing() {
  throw Error(ErrorKind::request, "this build has no CUDA kernels");
}

}  // namespace

void matmul(const Device&, const Tensor&, const Tensor&, const Tensor&, MatMul, const Tensor&) {
  missing();
}
void add_column_sum(const Device&, const Tensor&, const Tensor&) {
  missing();
}
void layer_norm(const Device&, const Tensor&, const Tensor&, const Tensor&, double, const Tensor&, const Tensor&,
                const Tensor&) {
  missing();
}
void layer_norm_input_gradient(const Device&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                               const Tensor&) {
  missing();
}
void layer_norm_weight_gradient(const Device&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                const Tensor&, const Tensor&) {
  missing();
}
void rms_norm(const Device&, const Tensor&, const Tensor&, double, double, const Tensor&, const Tensor&) {
  missing();
}
void rms_norm_input_gradient(const Device&, const Tensor&, const Tensor&, const Tensor&, double, const Tensor&,
                             const Tensor&) {
  missing();
}
void rms_norm_weight_gradient(const Device&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  missing();
}
void rms_norm_heads(const Device&, const Tensor&, const Tensor&, const Tensor&, double, std::int64_t, std::int64_t,
                    const Tensor&, const Tensor&) {
  missing();
}
void rms_norm_heads_input_gradient(const Device&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                   const Tensor&, std::int64_t, std::int64_t, const Tensor&) {
  missing();
}
void rms_norm_heads_weight_gradient(const Device&, const Tensor&, const Tensor&, const Tensor&, std::int64_t,
                                    std::int64_t, const Tensor&, const Tensor&) {
  missing();
}
void gelu(const Device&, const Tensor&, const Tensor&) {
  missing();
}
void gelu_gradient(const Device&, const Tensor&, const Tensor&, const Tensor&) {
  missing();
}
void swiglu(const Device&, const Tensor&, const Tensor&) {
  missing();
}
void swiglu_gradient(const Device&, const Tensor&, const Tensor&, const Tensor&) {
  missing();
}
void geglu(const Device&, const Tensor&, const Tensor&) {
  missing();
}
void geglu_gradient(const Device&, const Tensor&, const Tensor&, const Tensor&) {
  missing();
}
void add(const Device&, const Tensor&, const Tensor&, const Tensor&) {
  missing();
}
void add_bias(const Device&, const Tensor&, const Tensor&, const Tensor&) {
  missing();
}
void convert(const Device&, const float*, const Tensor&) {
  missing();
}
void convert(const Device&, const Tensor&, const Tensor&) {
  missing();
}
void scale(const Device&, const Tensor&, double) {
  missing();
}
void dropout(const Device&, const Tensor&, const Dropout&, const Tensor&) {
  missing();
}
void dropout_add(const Device&, const Tensor&, const Tensor&, const Dropout&, const Tensor&) {
  missing();
}
void split_heads(const Device&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                 const Tensor&) {
  missing();
}
void split_heads_gradient(const Device&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const Tensor&) {
  missing();
}
void attention(const Device&, const Tensor&, const Tensor&, const Tensor&, const Dropout&, const Tensor&, const Tensor&,
               const Causal&) {
  missing();
}
void attention_gradient(const Device&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                        const Tensor&, const Dropout&, const Tensor&, const Tensor&, const Tensor&, const Causal&) {
  missing();
}
void join_sequence(const Device&, const Tensor&, const Tensor&) {
  missing();
}
void cut_sequence(const Device&, const Tensor&, const Tensor&) {
  missing();
}
void embedding(const Device&, const Tensor&, const Tensor&, std::int64_t, const Tensor&) {
  missing();
}
void embedding_gradient(const Device&, const Tensor&, const Tensor&, std::int64_t, const Tensor&) {
  missing();
}
void add_positions(const Device&, const Tensor&, const Tensor&, const SequencePart&) {
  missing();
}
void add_positions_gradient(const Device&, const Tensor&, const SequencePart&, const Tensor&) {
  missing();
}
void cross_entropy_statistics(const Device&, const Tensor&, const Tensor&, std::int64_t, const Tensor&, const Tensor&,
                              const Tensor&) {
  missing();
}
void rescale_sum(const Device&, const Tensor&, const Tensor&, const Tensor&) {
  missing();
}
void cross_entropy_loss(const Device&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  missing();
}
void cross_entropy_gradient(const Device&, const Tensor&, const Tensor&, std::int64_t, const Tensor&, const Tensor&,
                            double, const Tensor&) {
  missing();
}
void route(const Device&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  missing();
}
void route_gradient(const Device&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                    const Tensor&, double, const Tensor&) {
  missing();
}
std::vector<std::int64_t> sort_by_expert(const Device&, const Tensor&, std::int64_t, const Tensor&, const Tensor&) {
  missing();
}
void gather_rows(const Device&, const Tensor&, const Tensor&, const Tensor&) {
  missing();
}
void combine_rows(const Device&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  missing();
}
void combine_rows_gradient(const Device&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                           const Tensor&) {
  missing();
}
void add_squares(const Device&, const Tensor&, const Tensor&) {
  missing();
}
void adamw(const Device&, const AdamW&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  missing();
}
void sgd(const Device&, double, double, double, const Tensor&, const Tensor&, const Tensor&) {
  missing();
}

}  // namespace cuboid::kernels::cuda
