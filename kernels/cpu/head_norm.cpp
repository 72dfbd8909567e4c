#include "kernels/body/heads.h"
#include "kernels/body/norm.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/launch.h"

namespace cuboid::kernels::cpu {
namespace {

using body::OneLane;

// visit(offset of the head, place in rstd, its weight) for the q and k heads of row r.
template <typename T, typename Visit>
void each_normed(const NormedHeads& s, std::int64_t r, const T* q_weight, const T* k_weight, Visit visit) {
  for (std::int64_t h = 0; h < s.normed(); ++h) {
    visit(r * s.stride() + h * s.D, h * s.rows + r, h < s.H ? q_weight : k_weight);
  }
}

template <typename T>
void copy_values(const NormedHeads& s, std::int64_t r, const T* from, T* to) {
  const std::int64_t at = r * s.stride() + s.normed() * s.D;
  body::copy_row<OneLane, T>(OneLane{}, s.K * s.D, from + at, to + at);
}

}  // namespace

void rms_norm_heads(const Device&, const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, double eps,
                    std::int64_t heads, std::int64_t kv_heads, const Tensor& y, const Tensor& rstd) {
  const NormedHeads s = normed_heads(qkv, heads, kv_heads);
  with_storage(qkv, [&]<typename T>(T) {
    const T* xs = qkv.data<T>();
    T* ys = y.data<T>();
    auto* rstds = rstd.data<Real<T>>();
    parallel_for(s.rows, [=, wq = q_weight.data<T>(), wk = k_weight.data<T>()](std::int64_t r) {
      each_normed<T>(s, r, wq, wk, [&](std::int64_t at, std::int64_t place, const T* weight) {
        rstds[place] =
            body::rms_norm_row(OneLane{}, s.D, xs + at, weight, Real<T>{0}, static_cast<Real<T>>(eps), ys + at);
      });
      copy_values<T>(s, r, xs, ys);
    });
  });
}

void rms_norm_heads_input_gradient(const Device&, const Tensor& dy, const Tensor& qkv, const Tensor& q_weight,
                                   const Tensor& k_weight, const Tensor& rstd, std::int64_t heads,
                                   std::int64_t kv_heads, const Tensor& dqkv) {
  const NormedHeads s = normed_heads(qkv, heads, kv_heads);
  with_storage(qkv, [&]<typename T>(T) {
    const T* dys = dy.data<T>();
    const T* xs = qkv.data<T>();
    T* dxs = dqkv.data<T>();
    const auto* rstds = rstd.data<Real<T>>();
    parallel_for(s.rows, [=, wq = q_weight.data<T>(), wk = k_weight.data<T>()](std::int64_t r) {
      each_normed<T>(s, r, wq, wk, [&](std::int64_t at, std::int64_t place, const T* weight) {
        body::rms_norm_input_gradient_row(OneLane{}, s.D, dys + at, xs + at, weight, Real<T>{0}, rstds[place],
                                          dxs + at);
      });
      copy_values<T>(s, r, dys, dxs);
    });
  });
}

void rms_norm_heads_weight_gradient(const Device&, const Tensor& dy, const Tensor& qkv, const Tensor& rstd,
                                    std::int64_t heads, std::int64_t kv_heads, const Tensor& dq_weight,
                                    const Tensor& dk_weight) {
  const NormedHeads s = normed_heads(qkv, heads, kv_heads);
  with_storage(qkv, [&]<typename T>(T) {
    for (std::int64_t h = 0; h < s.normed(); ++h) {
      body::add_norm_weight_gradient<OneLane, T>(OneLane{}, s.rows, s.D, s.stride(), dy.data<T>() + h * s.D,
                                                 qkv.data<T>() + h * s.D, nullptr, rstd.data<Real<T>>() + h * s.rows,
                                                 (h < s.H ? dq_weight : dk_weight).template data<Real<T>>());
    }
  });
}

}  // namespace cuboid::kernels::cpu
