#include "kernels/body/heads.h"
#include "kernels/body/router.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/launch.h"

namespace cuboid::kernels::cpu {

using body::OneLane;

void route(const Device&, const Tensor& logits, const Tensor& probabilities, const Tensor& experts,
           const Tensor& weights, const Tensor& log_sum) {
  const std::int64_t n = row_length(logits);
  const std::int64_t rows = row_count(logits);
  const std::int64_t k = row_length(experts);
  with_real(logits, [&]<typename T>(T) {
    const T* ls = logits.data<T>();
    T* ps = probabilities.data<T>();
    auto* es = experts.data<std::int32_t>();
    T* ws = weights.data<T>();
    T* sums = log_sum.data<T>();
    parallel_for(rows, [=](std::int64_t r) {
      sums[r] = body::route_row(OneLane{}, n, k, ls + r * n, ps + r * n, es + r * k, ws + r * k);
    });
  });
}

void route_gradient(const Device&, const Tensor& dweights, const Tensor& probabilities, const Tensor& experts,
                    const Tensor& weights, const Tensor& log_sum, const Tensor& slope, double z,
                    const Tensor& dlogits) {
  const std::int64_t n = row_length(probabilities);
  const std::int64_t rows = row_count(probabilities);
  const std::int64_t k = row_length(experts);
  with_real(probabilities, [&]<typename T>(T) {
    const T* dws = dweights.data<T>();
    const T* ps = probabilities.data<T>();
    const auto* es = experts.data<std::int32_t>();
    const T* ws = weights.data<T>();
    const T* sums = log_sum.data<T>();
    const T* slopes = slope.data<T>();
    T* dls = dlogits.data<T>();
    parallel_for(rows, [=](std::int64_t r) {
      body::route_gradient_row(OneLane{}, n, k, dws + r * k, ps + r * n, es + r * k, ws + r * k, sums[r], slopes,
                               static_cast<T>(z), dls + r * n);
    });
  });
}

std::vector<std::int64_t> sort_by_expert(const Device&, const Tensor& experts, std::int64_t count, const Tensor& slot,
                                         const Tensor& source) {
  const std::int64_t copies = experts.elements();
  const std::int64_t k = row_length(experts);
  const auto* chosen = experts.data<std::int32_t>();
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < copies; ++i) {
    CUBOID_CHECK(chosen[i] >= 0 && chosen[i] < count, "sort_by_expert: expert " + std::to_string(chosen[i]));
    ++tokens[static_cast<std::size_t>(chosen[i])];
  }
  std::vector<std::int64_t> next(tokens.size());
  for (std::size_t e = 1; e < tokens.size(); ++e) next[e] = next[e - 1] + tokens[e - 1];
  for (std::int64_t i = 0; i < copies; ++i) {
    const std::int64_t at = next[static_cast<std::size_t>(chosen[i])]++;
    slot.data<std::int32_t>()[i] = static_cast<std::int32_t>(at);
    source.data<std::int32_t>()[at] = static_cast<std::int32_t>(i / k);
  }
  return tokens;
}

void gather_rows(const Device&, const Tensor& x, const Tensor& index, const Tensor& y) {
  const std::int64_t n = row_length(x);
  const std::int64_t rows = index.elements();
  with_storage(x, [&]<typename T>(T) {
    const T* from = x.data<T>();
    const auto* at = index.data<std::int32_t>();
    T* to = y.data<T>();
    parallel_for(rows, [=](std::int64_t r) { body::copy_row(OneLane{}, n, from + at[r] * n, to + r * n); });
  });
}

void combine_rows(const Device&, const Tensor& rows, const Tensor& slot, const Tensor& weights, const Tensor& y) {
  const std::int64_t n = row_length(y);
  const std::int64_t k = row_length(slot);
  with_storage(y, [&]<typename T>(T) {
    const T* from = rows.data<T>();
    const auto* slots = slot.data<std::int32_t>();
    const auto* ws = weights.defined() ? weights.data<Real<T>>() : nullptr;
    T* to = y.data<T>();
    parallel_for(row_count(y), [=](std::int64_t r) {
      body::combine_row(OneLane{}, n, k, from, slots + r * k, ws ? ws + r * k : nullptr, to + r * n);
    });
  });
}

void combine_rows_gradient(const Device&, const Tensor& dy, const Tensor& rows, const Tensor& slot,
                           const Tensor& weights, const Tensor& drows, const Tensor& dweights) {
  const std::int64_t n = row_length(dy);
  const std::int64_t count = row_count(dy);
  const std::int64_t k = row_length(slot);
  const bool rounded = rows.defined() && rows.dtype() == dy.dtype();
  with_storage(dy, [&]<typename T>(T) {
    const auto run = [&]<typename U>(const U* from) {
      const T* dys = dy.data<T>();
      const auto* slots = slot.data<std::int32_t>();
      const auto* ws = weights.data<Real<T>>();
      T* to = drows.data<T>();
      auto* dws = dweights.data<Real<T>>();
      parallel_for(count, [=](std::int64_t r) {
        body::combine_gradient_row(OneLane{}, n, k, dys + r * n, from, slots + r * k, ws + r * k, to, dws + r * k);
      });
    };
    if (rounded) {
      run(rows.data<T>());
    } else {
      run(rows.data<Real<T>>());
    }
  });
}

}  // namespace cuboid::kernels::cpu
