#include "kernels/body/cross_entropy.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/launch.h"

namespace cuboid::kernels::cpu {

void cross_entropy_statistics(const Device&, const Tensor& logits, const Tensor& targets, std::int64_t first_row,
                              const Tensor& row_max, const Tensor& row_sum, const Tensor& target_logit) {
  const std::int64_t n = row_length(logits);
  const std::int64_t rows = row_count(logits);
  with_real(logits, [&]<typename T>(T) {
    const T* in = logits.data<T>();
    const std::int32_t* target = targets.data<std::int32_t>();
    T* max = row_max.data<T>();
    T* sum = row_sum.data<T>();
    T* at_target = target_logit.data<T>();
    parallel_for(rows, [=](std::int64_t r) {
      const T* row = in + r * n;
      const auto statistics = body::logit_statistics_row(body::OneLane{}, n, row);
      max[r] = statistics.max;
      sum[r] = statistics.sum;
      const std::int64_t column = target[r] - first_row;
      const bool held = target[r] != kIgnore && column >= 0 && column < n;
      at_target[r] = held ? row[column] : T{0};
    });
  });
}

void rescale_sum(const Device&, const Tensor& local_max, const Tensor& global_max, const Tensor& row_sum) {
  with_real(local_max, [&]<typename T>(T) {
    const T* local = local_max.data<T>();
    const T* global = global_max.data<T>();
    T* sum = row_sum.data<T>();
    body::OneLane{}.each(row_sum.elements(), [=](std::int64_t r) { sum[r] *= body::exp(local[r] - global[r]); });
  });
}

void cross_entropy_loss(const Device&, const Tensor& row_max, const Tensor& row_sum, const Tensor& target_logit,
                        const Tensor& targets, const Tensor& losses) {
  const std::int64_t rows = row_max.elements();
  const std::int64_t batch = losses.elements();
  double* out = losses.data<double>();
  with_real(row_max, [&]<typename T>(T) {
    const T* max = row_max.data<T>();
    const T* sum = row_sum.data<T>();
    const T* at_target = target_logit.data<T>();
    const std::int32_t* target = targets.data<std::int32_t>();
    for (std::int64_t b = 0; b < batch; ++b) {
      double loss = 0;
      for (std::int64_t r = b; r < rows; r += batch) {
        if (target[r] == kIgnore) continue;
        loss +=
            std::log(static_cast<double>(sum[r])) + (static_cast<double>(max[r]) - static_cast<double>(at_target[r]));
      }
      out[b] = loss;
    }
  });
}

void cross_entropy_gradient(const Device&, const Tensor& logits, const Tensor& targets, std::int64_t first_row,
                            const Tensor& row_max, const Tensor& row_sum, double factor, const Tensor& dlogits) {
  const std::int64_t n = row_length(logits);
  const std::int64_t rows = row_count(logits);
  with_storage(dlogits, [&]<typename T>(T) {
    const auto* in = logits.data<Real<T>>();
    T* out = dlogits.data<T>();
    const std::int32_t* target = targets.data<std::int32_t>();
    const auto* max = row_max.data<Real<T>>();
    const auto* sum = row_sum.data<Real<T>>();
    parallel_for(rows, [=](std::int64_t r) {
      T* row = out + r * n;
      if (target[r] == kIgnore) {
        std::fill_n(row, n, T{});
        return;
      }
      const auto scale = static_cast<Real<T>>(factor / static_cast<double>(sum[r]));
      const std::int64_t column = target[r] - first_row;
      const bool held = column >= 0 && column < n;
      // Taken before the row is overwritten, and rounded once: p - 1 near 0 is what training ends with.
      const auto at_target =
          held ? body::exp(in[r * n + column] - max[r]) * scale - static_cast<Real<T>>(factor) : Real<T>{};
      body::cross_entropy_gradient_row(body::OneLane{}, n, max[r], scale, in + r * n, row);
      if (held) row[column] = static_cast<T>(at_target);
    });
  });
}

}  // namespace cuboid::kernels::cpu
