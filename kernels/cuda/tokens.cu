// What reads or writes by token, head or target: embeddings, heads, cross-entropy; and the optimizer.
#include <cmath>

#include "kernels/adamw_step.h"
#include "kernels/body/cross_entropy.h"
#include "kernels/body/embedding.h"
#include "kernels/body/heads.h"
#include "kernels/body/optimizer.h"
#include "kernels/check.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/sequence_part_rows.h"

namespace cuboid::kernels::cuda {
namespace {

struct HeadSizes {
  std::int64_t T, B, H, K, D;
};

HeadSizes sizes_of(const Tensor& q, const Tensor& k) {
  return {q.dim(2), q.dim(0), q.dim(1), k.dim(1), q.dim(3)};
}

// One head of one row: where it is in the fused projection and in q, k or v.
template <typename T>
struct HeadPlace {
  T* fused;
  T* head;
  std::int64_t t;
  bool turns;
};

// Head i of all (T·B rows) · (H + 2K heads).
template <typename T>
CUBOID_HD HeadPlace<T> head_place(const HeadSizes& s, std::int64_t i, T* qkv, T* q, T* k, T* v) {
  const std::int64_t heads = s.H + 2 * s.K;
  const std::int64_t row = i / heads;
  const std::int64_t t = row / s.B;
  const std::int64_t b = row % s.B;
  std::int64_t h = i % heads;
  T* const fused = qkv + i * s.D;
  if (h < s.H) return {fused, q + ((b * s.H + h) * s.T + t) * s.D, t, true};
  h -= s.H;
  if (h < s.K) return {fused, k + ((b * s.K + h) * s.T + t) * s.D, t, true};
  h -= s.K;
  return {fused, v + ((b * s.K + h) * s.T + t) * s.D, t, false};
}

// Forward: fused to heads, turned; backward: heads to fused, turned back. cos and sin may be null.
template <bool Forward, typename T>
void move_heads(cudaStream_t stream, const HeadSizes& s, T* qkv, T* q, T* k, T* v, const Real<T>* cos,
                const Real<T>* sin) {
  launch_rows(stream, s.T * s.B * (s.H + 2 * s.K), s.D, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t i) {
    const HeadPlace<T> place = head_place(s, i, qkv, q, k, v);
    const std::int64_t half = s.D / 2;
    const Real<T>* const c = cos == nullptr ? nullptr : cos + place.t * half;
    const Real<T>* const si = sin == nullptr ? nullptr : sin + place.t * half;
    if (!place.turns || cos == nullptr) {
      body::copy_row<RowLanes, T>(lanes, s.D, Forward ? place.fused : place.head, Forward ? place.head : place.fused);
    } else if constexpr (Forward) {
      body::rotate_row<RowLanes, T>(lanes, half, c, si, place.fused, place.head);
    } else {
      body::rotate_back_row<RowLanes, T>(lanes, half, c, si, place.head, place.fused);
    }
  });
}

template <bool Forward>
void move_heads(const Device& device, const Tensor& qkv, const Tensor& q, const Tensor& k, const Tensor& v,
                const Tensor& cos, const Tensor& sin) {
  with_storage(q, [&]<typename T>(T) {
    move_heads<Forward, T>(stream_of(device), sizes_of(q, k), elements_of<T>(qkv), elements_of<T>(q), elements_of<T>(k),
                           elements_of<T>(v), cos.defined() ? elements_of<Real<T>>(cos) : nullptr,
                           sin.defined() ? elements_of<Real<T>>(sin) : nullptr);
  });
}

// Joining: rows of the parts to their places in the whole sequence; or back.
template <bool Joining, typename T>
void move_part_rows(cudaStream_t stream, const SequencePartRows& rows, std::int64_t n, T* parts, T* whole) {
  launch_rows(stream, rows.count(), n, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t i) {
    T* const part = parts + i * n;
    T* const place = whole + rows.in_whole(i) * n;
    body::copy_row<RowLanes, T>(lanes, n, Joining ? part : place, Joining ? place : part);
  });
}

template <bool Joining>
void move_parts(const Device& device, const Tensor& parts, const Tensor& whole) {
  with_storage(whole, [&]<typename T>(T) {
    T* const from = elements_of<T>(parts);
    T* const to = elements_of<T>(whole);
    with_widest<T>(parts.dim(4), {from, to}, [&]<typename W>(W, std::int64_t n) {
      move_part_rows<Joining>(stream_of(device), SequencePartRows(parts), n, reinterpret_cast<W*>(from),
                              reinterpret_cast<W*>(to));
    });
  });
}

template <typename T>
void embedding_rows(cudaStream_t stream, std::int64_t rows, std::int64_t n, const std::int32_t* tokens, const T* table,
                    std::int64_t first_row, std::int64_t held, T* y) {
  launch_rows(stream, rows, n, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t r) {
    const std::int64_t row = tokens[r] - first_row;
    if (row >= 0 && row < held) {
      body::copy_row(lanes, n, table + row * n, y + r * n);
    } else {
      body::zero_row(lanes, n, y + r * n);
    }
  });
}

// A row of the table is one warp's or block's: it looks through all tokens and adds those that are its own, in
// ascending order, so that the sum does not depend on who comes first.
template <typename T>
void embedding_gradient_rows(cudaStream_t stream, std::int64_t rows, std::int64_t n, const std::int32_t* tokens,
                             const T* dy, std::int64_t first_row, std::int64_t held, Real<T>* dtable) {
  launch_rows(stream, held, n, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t row) {
    for (std::int64_t r = 0; r < rows; ++r) {
      if (tokens[r] - first_row == row) body::add_row(lanes, n, dy + r * n, dtable + row * n);
    }
  });
}

template <typename T>
void add_position_rows(cudaStream_t stream, std::int64_t rows, std::int64_t batch, std::int64_t n,
                       const SequencePart& part, T* x, const T* table) {
  launch_rows(stream, rows, n, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t r) {
    body::add_row(lanes, n, table + part.position(r / batch) * n, x + r * n);
  });
}

template <typename T>
void add_position_gradient_rows(cudaStream_t stream, std::int64_t positions, std::int64_t batch, std::int64_t n,
                                const SequencePart& part, const T* dy, Real<T>* dtable) {
  launch_rows(stream, positions, n, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t t) {
    for (std::int64_t b = 0; b < batch; ++b)
      body::add_row(lanes, n, dy + (t * batch + b) * n, dtable + part.position(t) * n);
  });
}

void statistics_rows(cudaStream_t stream, std::int64_t rows, std::int64_t n, const float* logits,
                     const std::int32_t* targets, std::int64_t first_row, float* row_max, float* row_sum,
                     float* target_logit) {
  launch_rows(stream, rows, n, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t r) {
    const float* const row = logits + r * n;
    const auto statistics = body::logit_statistics_row(lanes, n, row);
    if (!lanes.leader()) return;
    row_max[r] = statistics.max;
    row_sum[r] = statistics.sum;
    const std::int64_t column = targets[r] - first_row;
    const bool held = targets[r] != kIgnore && column >= 0 && column < n;
    target_logit[r] = held ? row[column] : 0.0F;
  });
}

void rescale_elements(cudaStream_t stream, std::int64_t n, const float* local_max, const float* global_max,
                      float* row_sum) {
  launch_elements(stream, n,
                  [=] CUBOID_DEVICE(std::int64_t r) { row_sum[r] *= body::exp(local_max[r] - global_max[r]); });
}

// A sequence's losses are one lane's: they are added in ascending order.
void loss_elements(cudaStream_t stream, std::int64_t batch, std::int64_t rows, const float* row_max,
                   const float* row_sum, const float* target_logit, const std::int32_t* targets, double* losses) {
  launch_elements(stream, batch, [=] CUBOID_DEVICE(std::int64_t b) {
    double loss = 0;
    for (std::int64_t r = b; r < rows; r += batch) {
      if (targets[r] == kIgnore) continue;
      loss += std::log(static_cast<double>(row_sum[r])) +
              (static_cast<double>(row_max[r]) - static_cast<double>(target_logit[r]));
    }
    losses[b] = loss;
  });
}

template <typename T>
void cross_entropy_gradient_rows(cudaStream_t stream, std::int64_t rows, std::int64_t n, const float* logits,
                                 const std::int32_t* targets, std::int64_t first_row, const float* row_max,
                                 const float* row_sum, double factor, T* dlogits) {
  launch_rows(stream, rows, n, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t r) {
    const float* const in = logits + r * n;
    T* const out = dlogits + r * n;
    if (targets[r] == kIgnore) {
      body::zero_row(lanes, n, out);
      return;
    }
    const auto scale = static_cast<float>(factor / static_cast<double>(row_sum[r]));
    const std::int64_t column = targets[r] - first_row;
    const bool held = column >= 0 && column < n;
    const float at_target = held ? body::exp(in[column] - row_max[r]) * scale - static_cast<float>(factor) : 0.0F;
    lanes.sync();  // dlogits may be the logits: all lanes have read the target's before one overwrites it
    body::cross_entropy_gradient_row(lanes, n, row_max[r], scale, in, out);
    if (held && lanes.leader()) out[column] = static_cast<T>(at_target);
  });
}

void adamw_elements(cudaStream_t stream, std::int64_t n, const body::AdamWStep<float>& step, const float* gradient,
                    float* weight, float* m, float* v, BFloat16* rounded) {
  if (rounded == nullptr) {
    map_elements(
        stream, n,
        [=] CUBOID_DEVICE(float g, float& w, float& m1, float& m2) { body::adamw_element(step, g, w, m1, m2); },
        in(gradient), in_out(weight), in_out(m), in_out(v));
    return;
  }
  map_elements(
      stream, n,
      [=] CUBOID_DEVICE(float g, float& w, float& m1, float& m2, BFloat16& r) {
        body::adamw_element(step, g, w, m1, m2);
        r = BFloat16(w);
      },
      in(gradient), in_out(weight), in_out(m), in_out(v), out(rounded));
}

void sgd_elements(cudaStream_t stream, std::int64_t n, float rate, float decay, float scale, const float* gradient,
                  float* weight, BFloat16* rounded) {
  if (rounded == nullptr) {
    map_elements(
        stream, n, [=] CUBOID_DEVICE(float g, float& w) { w -= rate * (scale * g + decay * w); }, in(gradient),
        in_out(weight));
    return;
  }
  map_elements(
      stream, n,
      [=] CUBOID_DEVICE(float g, float& w, BFloat16& r) {
        w -= rate * (scale * g + decay * w);
        r = BFloat16(w);
      },
      in(gradient), in_out(weight), out(rounded));
}

// Adds the squares of each line of `width` elements, the first of which may be shorter, to an exact sum's words.
void squares_lines(cudaStream_t stream, std::int64_t n, std::int64_t head, std::int64_t width, const float* x,
                   std::int64_t* words) {
  const std::int64_t lines = (head > 0 ? 1 : 0) + (n - head + width - 1) / width;
  launch_rows(stream, lines, width, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t line) {
    const std::int64_t whole = head > 0 ? line - 1 : line;
    const std::int64_t begin = whole < 0 ? 0 : head + whole * width;
    const std::int64_t end = whole < 0 ? head : (begin + width < n ? begin + width : n);
    const double sum = body::square_sum_block(lanes, end - begin, x + begin);
    if (!lanes.leader()) return;
    ExactSum::for_words(sum, [=](int word, std::int64_t value) { add_atomically(words + word, value); });
  });
}

}  // namespace

void split_heads(const Device& device, const Tensor& qkv, const Tensor& cos, const Tensor& sin, const Tensor& q,
                 const Tensor& k, const Tensor& v) {
  move_heads<true>(device, qkv, q, k, v, cos, sin);
}

void split_heads_gradient(const Device& device, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& cos,
                          const Tensor& sin, const Tensor& dqkv) {
  move_heads<false>(device, dqkv, dq, dk, dv, cos, sin);
}

void join_sequence(const Device& device, const Tensor& parts, const Tensor& whole) {
  move_parts<true>(device, parts, whole);
}

void cut_sequence(const Device& device, const Tensor& whole, const Tensor& parts) {
  move_parts<false>(device, parts, whole);
}

void embedding(const Device& device, const Tensor& tokens, const Tensor& table, std::int64_t first_row,
               const Tensor& y) {
  with_storage(y, [&]<typename T>(T) {
    const T* const from = elements_of<T>(table);
    T* const to = elements_of<T>(y);
    with_widest<T>(row_length(y), {from, to}, [&]<typename W>(W, std::int64_t n) {
      embedding_rows(stream_of(device), row_count(y), n, elements_of<std::int32_t>(tokens),
                     reinterpret_cast<const W*>(from), first_row, table.dim(0), reinterpret_cast<W*>(to));
    });
  });
}

void embedding_gradient(const Device& device, const Tensor& tokens, const Tensor& dy, std::int64_t first_row,
                        const Tensor& dtable) {
  with_storage(dy, [&]<typename T>(T) {
    embedding_gradient_rows(stream_of(device), row_count(dy), row_length(dy), elements_of<std::int32_t>(tokens),
                            elements_of<T>(dy), first_row, dtable.dim(0), elements_of<Real<T>>(dtable));
  });
}

void add_positions(const Device& device, const Tensor& x, const Tensor& table, const SequencePart& part) {
  with_storage(x, [&]<typename T>(T) {
    add_position_rows(stream_of(device), row_count(x), x.dim(1), x.dim(2), part, elements_of<T>(x),
                      elements_of<T>(table));
  });
}

void add_positions_gradient(const Device& device, const Tensor& dy, const SequencePart& part, const Tensor& dtable) {
  with_storage(dy, [&]<typename T>(T) {
    add_position_gradient_rows(stream_of(device), dy.dim(0), dy.dim(1), dy.dim(2), part, elements_of<T>(dy),
                               elements_of<Real<T>>(dtable));
  });
}

void cross_entropy_statistics(const Device& device, const Tensor& logits, const Tensor& targets, std::int64_t first_row,
                              const Tensor& row_max, const Tensor& row_sum, const Tensor& target_logit) {
  statistics_rows(stream_of(device), row_count(logits), row_length(logits), elements_of<float>(logits),
                  elements_of<std::int32_t>(targets), first_row, elements_of<float>(row_max),
                  elements_of<float>(row_sum), elements_of<float>(target_logit));
}

void rescale_sum(const Device& device, const Tensor& local_max, const Tensor& global_max, const Tensor& row_sum) {
  rescale_elements(stream_of(device), row_sum.elements(), elements_of<float>(local_max), elements_of<float>(global_max),
                   elements_of<float>(row_sum));
}

void cross_entropy_loss(const Device& device, const Tensor& row_max, const Tensor& row_sum, const Tensor& target_logit,
                        const Tensor& targets, const Tensor& losses) {
  loss_elements(stream_of(device), losses.elements(), row_max.elements(), elements_of<float>(row_max),
                elements_of<float>(row_sum), elements_of<float>(target_logit), elements_of<std::int32_t>(targets),
                elements_of<double>(losses));
}

void cross_entropy_gradient(const Device& device, const Tensor& logits, const Tensor& targets, std::int64_t first_row,
                            const Tensor& row_max, const Tensor& row_sum, double factor, const Tensor& dlogits) {
  with_storage(dlogits, [&]<typename T>(T) {
    cross_entropy_gradient_rows(stream_of(device), row_count(logits), row_length(logits), elements_of<float>(logits),
                                elements_of<std::int32_t>(targets), first_row, elements_of<float>(row_max),
                                elements_of<float>(row_sum), factor, elements_of<T>(dlogits));
  });
}

void adamw(const Device& device, const AdamW& options, const Tensor& gradient, const Tensor& weight, const Tensor& m,
           const Tensor& v, const Tensor& rounded) {
  adamw_elements(stream_of(device), weight.elements(), adamw_step<float>(options), elements_of<float>(gradient),
                 elements_of<float>(weight), elements_of<float>(m), elements_of<float>(v),
                 rounded.defined() ? elements_of<BFloat16>(rounded) : nullptr);
}

void sgd(const Device& device, double lr, double weight_decay, double gradient_scale, const Tensor& gradient,
         const Tensor& weight, const Tensor& rounded) {
  sgd_elements(stream_of(device), weight.elements(), static_cast<float>(lr), static_cast<float>(weight_decay),
               static_cast<float>(gradient_scale), elements_of<float>(gradient), elements_of<float>(weight),
               rounded.defined() ? elements_of<BFloat16>(rounded) : nullptr);
}

void add_squares(const Device& device, const Tensor& x, const Tensor& words) {
  if (x.elements() == 0) return;
  squares_lines(stream_of(device), x.elements(), elements_before_line(x),
                static_cast<std::int64_t>(kSquaresLine / sizeof(float)), elements_of<float>(x),
                elements_of<std::int64_t>(words));
}

}  // namespace cuboid::kernels::cuda
