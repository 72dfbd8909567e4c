#include "kernels/body/heads.h"

#include "kernels/attention_sizes.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/launch.h"
#include "kernels/sequence_part_rows.h"

namespace cuboid::kernels::cpu {
namespace {

using HeadSizes = AttentionSizes;

// visit(in the fused row, in the head's tensor, turns) for each head of row r = t·B + b; `heads` of the three tensors.
template <typename T, typename Visit>
void each_head(const HeadSizes& s, std::int64_t r, T* fused, T* q, T* k, T* v, Visit visit) {
  const std::int64_t t = r / s.B;
  const std::int64_t b = r % s.B;
  fused += r * (s.H + 2 * s.K) * s.D;
  for (std::int64_t h = 0; h < s.H; ++h) visit(fused + h * s.D, q + ((b * s.H + h) * s.T + t) * s.D, true);
  fused += s.H * s.D;
  for (std::int64_t h = 0; h < s.K; ++h) visit(fused + h * s.D, k + ((b * s.K + h) * s.T + t) * s.D, true);
  fused += s.K * s.D;
  for (std::int64_t h = 0; h < s.K; ++h) visit(fused + h * s.D, v + ((b * s.K + h) * s.T + t) * s.D, false);
}

}  // namespace

void split_heads(const Device&, const Tensor& qkv, const Tensor& cos, const Tensor& sin, const Tensor& q,
                 const Tensor& k, const Tensor& v) {
  const HeadSizes s = attention_sizes(q, k);
  with_storage(qkv, [&]<typename T>(T) {
    parallel_for(s.T * s.B, [&](std::int64_t r) {
      const std::int64_t t = r / s.B;
      const auto* c = cos.defined() ? cos.data<Real<T>>() + t * (s.D / 2) : nullptr;
      const auto* si = cos.defined() ? sin.data<Real<T>>() + t * (s.D / 2) : nullptr;
      each_head(s, r, qkv.data<T>(), q.data<T>(), k.data<T>(), v.data<T>(), [&](T* fused, T* head, bool turns) {
        if (turns && c != nullptr) {
          body::rotate_row<body::OneLane, T>(body::OneLane{}, s.D / 2, c, si, fused, head);
        } else {
          body::copy_row<body::OneLane, T>(body::OneLane{}, s.D, fused, head);
        }
      });
    });
  });
}

void split_heads_gradient(const Device&, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& cos,
                          const Tensor& sin, const Tensor& dqkv) {
  const HeadSizes s = attention_sizes(dq, dk);
  with_storage(dqkv, [&]<typename T>(T) {
    parallel_for(s.T * s.B, [&](std::int64_t r) {
      const std::int64_t t = r / s.B;
      const auto* c = cos.defined() ? cos.data<Real<T>>() + t * (s.D / 2) : nullptr;
      const auto* si = cos.defined() ? sin.data<Real<T>>() + t * (s.D / 2) : nullptr;
      each_head(s, r, dqkv.data<T>(), dq.data<T>(), dk.data<T>(), dv.data<T>(), [&](T* fused, T* head, bool turns) {
        if (turns && c != nullptr) {
          body::rotate_back_row<body::OneLane, T>(body::OneLane{}, s.D / 2, c, si, head, fused);
        } else {
          body::copy_row<body::OneLane, T>(body::OneLane{}, s.D, head, fused);
        }
      });
    });
  });
}

void join_sequence(const Device&, const Tensor& parts, const Tensor& whole) {
  with_storage(whole, [&]<typename T>(T) {
    const SequencePartRows rows(parts);
    parallel_for(rows.count(), [&](std::int64_t i) {
      body::copy_row(body::OneLane{}, rows.length, parts.data<T>() + i * rows.length,
                     whole.data<T>() + rows.in_whole(i) * rows.length);
    });
  });
}

void cut_sequence(const Device&, const Tensor& whole, const Tensor& parts) {
  with_storage(whole, [&]<typename T>(T) {
    const SequencePartRows rows(parts);
    parallel_for(rows.count(), [&](std::int64_t i) {
      body::copy_row(body::OneLane{}, rows.length, whole.data<T>() + rows.in_whole(i) * rows.length,
                     parts.data<T>() + i * rows.length);
    });
  });
}

}  // namespace cuboid::kernels::cpu
