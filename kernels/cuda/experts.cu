// Kernels of experts: routing, sorting copies of tokens by expert, and moving their rows.
#include "kernels/body/heads.h"
#include "kernels/body/router.h"
#include "kernels/check.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.h"

namespace cuboid::kernels::cuda {
namespace {

/// Copies among which a warp counts those of one expert.
constexpr std::int64_t kSortSegment = 256;

void route_rows(cudaStream_t stream, std::int64_t rows, std::int64_t n, std::int64_t k, const float* logits,
                float* probabilities, std::int32_t* experts, float* weights, float* log_sum) {
  launch_rows(stream, rows, n, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t r) {
    const float found =
        body::route_row(lanes, n, k, logits + r * n, probabilities + r * n, experts + r * k, weights + r * k);
    if (lanes.leader()) log_sum[r] = found;
  });
}

void route_gradient_rows(cudaStream_t stream, std::int64_t rows, std::int64_t n, std::int64_t k, const float* dweights,
                         const float* probabilities, const std::int32_t* experts, const float* weights,
                         const float* log_sum, const float* slope, float z, float* dlogits) {
  launch_rows(stream, rows, n, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t r) {
    body::route_gradient_row(lanes, n, k, dweights + r * k, probabilities + r * n, experts + r * k, weights + r * k,
                             log_sum[r], slope, z, dlogits + r * n);
  });
}

// counts (segments, count): how many copies of each segment are for each expert.
void count_in_segments(cudaStream_t stream, std::int64_t copies, std::int64_t segments, std::int64_t count,
                       const std::int32_t* chosen, std::int32_t* counts) {
  launch_rows(stream, segments * count, kSortSegment, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t i) {
    const std::int64_t begin = i / count * kSortSegment;
    const auto expert = static_cast<std::int32_t>(i % count);
    const std::int64_t n = copies - begin < kSortSegment ? copies - begin : kSortSegment;
    const std::int32_t* const here = chosen + begin;
    const auto found = lanes.template sum<std::int32_t>(n, [=](std::int64_t j) { return here[j] == expert ? 1 : 0; });
    if (lanes.leader()) counts[i] = found;
  });
}

// From an expert's counts to its copies before each segment, and in all.
void add_up_segments(cudaStream_t stream, std::int64_t segments, std::int64_t count, std::int32_t* counts,
                     std::int32_t* totals) {
  launch_elements(stream, count, [=] CUBOID_DEVICE(std::int64_t e) {
    std::int32_t before = 0;
    for (std::int64_t s = 0; s < segments; ++s) {
      const std::int32_t found = counts[s * count + e];
      counts[s * count + e] = before;
      before += found;
    }
    totals[e] = before;
  });
}

// A copy's place: behind all of lower experts, those of its own in earlier segments, and earlier ones of its segment.
void place_copies(cudaStream_t stream, std::int64_t copies, std::int64_t k, std::int64_t count,
                  const std::int32_t* chosen, const std::int32_t* before, const std::int32_t* totals,
                  std::int32_t* slot, std::int32_t* source) {
  launch_elements(stream, copies, [=] CUBOID_DEVICE(std::int64_t i) {
    const std::int32_t expert = chosen[i];
    if (expert < 0 || expert >= count) return;  // the host finds it missing among the totals
    const std::int64_t segment = i / kSortSegment;
    std::int32_t at = before[segment * count + expert];
    for (std::int32_t lower = 0; lower < expert; ++lower) at += totals[lower];
    for (std::int64_t j = segment * kSortSegment; j < i; ++j) at += chosen[j] == expert ? 1 : 0;
    slot[i] = at;
    source[at] = static_cast<std::int32_t>(i / k);
  });
}

template <typename T>
void gather(cudaStream_t stream, std::int64_t rows, std::int64_t n, const T* x, const std::int32_t* index, T* y) {
  launch_rows(stream, rows, n, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t r) {
    body::copy_row<RowLanes, T>(lanes, n, x + index[r] * n, y + r * n);
  });
}

template <typename T>
void combine(cudaStream_t stream, std::int64_t rows, std::int64_t n, std::int64_t k, const T* from,
             const std::int32_t* slot, const Real<T>* weights, T* y) {
  launch_rows(stream, rows, n, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t r) {
    body::combine_row<RowLanes, T>(lanes, n, k, from, slot + r * k, weights == nullptr ? nullptr : weights + r * k,
                                   y + r * n);
  });
}

template <typename T, typename U>
void combine_gradient(cudaStream_t stream, std::int64_t rows, std::int64_t n, std::int64_t k, const T* dy,
                      const U* from, const std::int32_t* slot, const Real<T>* weights, T* drows, Real<T>* dweights) {
  launch_rows(stream, rows, n, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t r) {
    body::combine_gradient_row<RowLanes, T, U>(lanes, n, k, dy + r * n, from, slot + r * k, weights + r * k, drows,
                                               dweights + r * k);
  });
}

}  // namespace

void route(const Device& device, const Tensor& logits, const Tensor& probabilities, const Tensor& experts,
           const Tensor& weights, const Tensor& log_sum) {
  route_rows(stream_of(device), row_count(logits), row_length(logits), row_length(experts), elements_of<float>(logits),
             elements_of<float>(probabilities), elements_of<std::int32_t>(experts), elements_of<float>(weights),
             elements_of<float>(log_sum));
}

void route_gradient(const Device& device, const Tensor& dweights, const Tensor& probabilities, const Tensor& experts,
                    const Tensor& weights, const Tensor& log_sum, const Tensor& slope, double z,
                    const Tensor& dlogits) {
  route_gradient_rows(stream_of(device), row_count(probabilities), row_length(probabilities), row_length(experts),
                      elements_of<float>(dweights), elements_of<float>(probabilities),
                      elements_of<std::int32_t>(experts), elements_of<float>(weights), elements_of<float>(log_sum),
                      elements_of<float>(slope), static_cast<float>(z), elements_of<float>(dlogits));
}

std::vector<std::int64_t> sort_by_expert(const Device& device, const Tensor& experts, std::int64_t count,
                                         const Tensor& slot, const Tensor& source) {
  const std::int64_t copies = experts.elements();
  const std::int64_t segments = (copies + kSortSegment - 1) / kSortSegment;
  const Tensor counts = device.empty({segments, count}, DType::int32, Category::workspace);
  const Tensor totals = device.empty({count}, DType::int32, Category::workspace);
  const cudaStream_t stream = stream_of(device);
  const auto* const chosen = elements_of<std::int32_t>(experts);
  auto* const before = elements_of<std::int32_t>(counts);
  count_in_segments(stream, copies, segments, count, chosen, before);
  add_up_segments(stream, segments, count, before, elements_of<std::int32_t>(totals));
  place_copies(stream, copies, row_length(experts), count, chosen, before, elements_of<std::int32_t>(totals),
               elements_of<std::int32_t>(slot), elements_of<std::int32_t>(source));
  // The one wait of a layer of experts: sizes of what is computed from here on depend on these numbers.
  const Tensor here = device.to_host(totals);
  std::vector<std::int64_t> tokens(here.data<std::int32_t>(), here.data<std::int32_t>() + count);
  std::int64_t placed = 0;
  for (const std::int64_t n : tokens) placed += n;
  CUBOID_CHECK(placed == copies, "sort_by_expert: " + std::to_string(copies - placed) + " of " +
                                     std::to_string(copies) + " copies are for no expert of " + std::to_string(count));
  return tokens;
}

void gather_rows(const Device& device, const Tensor& x, const Tensor& index, const Tensor& y) {
  with_storage(x, [&]<typename T>(T) {
    const T* const from = elements_of<T>(x);
    T* const to = elements_of<T>(y);
    with_widest<T>(row_length(x), {from, to}, [&]<typename W>(W, std::int64_t n) {
      gather(stream_of(device), index.elements(), n, reinterpret_cast<const W*>(from), elements_of<std::int32_t>(index),
             reinterpret_cast<W*>(to));
    });
  });
}

void combine_rows(const Device& device, const Tensor& rows, const Tensor& slot, const Tensor& weights,
                  const Tensor& y) {
  with_storage(y, [&]<typename T>(T) {
    combine(stream_of(device), row_count(y), row_length(y), row_length(slot), elements_of<T>(rows),
            elements_of<std::int32_t>(slot), weights.defined() ? elements_of<Real<T>>(weights) : nullptr,
            elements_of<T>(y));
  });
}

void combine_rows_gradient(const Device& device, const Tensor& dy, const Tensor& rows, const Tensor& slot,
                           const Tensor& weights, const Tensor& drows, const Tensor& dweights) {
  with_storage(dy, [&]<typename T>(T) {
    with_storage(rows, [&]<typename U>(U) {
      combine_gradient(stream_of(device), row_count(dy), row_length(dy), row_length(slot), elements_of<T>(dy),
                       elements_of<U>(rows), elements_of<std::int32_t>(slot), elements_of<Real<T>>(weights),
                       elements_of<T>(drows), elements_of<Real<T>>(dweights));
    });
  });
}

}  // namespace cuboid::kernels::cuda
