#include <mutex>

#include "cuboid/kernels/kernels.h"

#include "kernels/body/optimizer.h"
#include "kernels/cpu/launch.h"

namespace cuboid::kernels {
namespace {

constexpr std::size_t kLine = 256;  // bytes; buffers begin at multiples of it

}  // namespace

void add_squares(const Device&, const Tensor& x, ExactSum& sum) {
  with_real(x, [&]<typename T>(T) {
    constexpr auto kPerLine = static_cast<std::int64_t>(kLine / sizeof(T));
    const T* xs = x.data<T>();
    const std::int64_t n = x.elements();
    // Elements up to the first line boundary, so that lines are those of the bucket and not of this view.
    const auto misalignment = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(xs) % kLine / sizeof(T));
    const std::int64_t head = std::min(n, misalignment == 0 ? 0 : kPerLine - misalignment);
    std::mutex mutex;
    const auto add = [&](std::int64_t begin, std::int64_t count) {
      ExactSum local;
      for (std::int64_t at = begin; at < begin + count; at += kPerLine) {
        local.add(body::square_sum_block(body::OneLane{}, std::min(kPerLine, begin + count - at), xs + at));
      }
      const std::scoped_lock lock(mutex);
      sum.merge(local);
    };
    if (head > 0) add(0, head);
    parallel_chunks(n - head, 1024 * kPerLine,
                    [&](std::int64_t first, std::int64_t count) { add(head + first, count); });
  });
}

void convert(const Device&, const float* numbers, const Tensor& out) {
  const std::int64_t n = out.elements();
  if (n == 0 || numbers == out.raw()) return;
  const auto copy = [&]<typename T>(T* to) {
    parallel_chunks(n, kElementChunk, [=](std::int64_t first, std::int64_t count) {
      for (std::int64_t i = first; i < first + count; ++i) to[i] = static_cast<T>(numbers[i]);
    });
  };
  if (out.dtype() == DType::float32) {
    copy(out.data<float>());
  } else if (out.dtype() == DType::bfloat16) {
    copy(out.data<BFloat16>());
  } else {
    copy(out.data<double>());
  }
}

}  // namespace cuboid::kernels
