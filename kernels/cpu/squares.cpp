#include <mutex>

#include "kernels/body/optimizer.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/launch.h"

namespace cuboid::kernels::cpu {

void add_squares(const Device&, const Tensor& x, const Tensor& words) {
  ExactSum sum;
  with_real(x, [&]<typename T>(T) {
    constexpr auto kPerLine = static_cast<std::int64_t>(kSquaresLine / sizeof(T));
    const T* xs = x.data<T>();
    const std::int64_t n = x.elements();
    const std::int64_t head = elements_before_line(x);
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
  const auto found = sum.words();
  for (std::size_t i = 0; i < found.size(); ++i) words.data<std::int64_t>()[i] += found[i];
}

namespace {

template <typename From, typename To>
void convert_elements(std::int64_t n, const From* from, To* to) {
  parallel_chunks(n, kElementChunk, [=](std::int64_t first, std::int64_t count) {
    body::OneLane{}.each(count, [=](std::int64_t i) { to[first + i] = static_cast<To>(real(from[first + i])); });
  });
}

}  // namespace

void convert(const Device&, const float* numbers, const Tensor& out) {
  if (out.elements() == 0 || numbers == out.raw()) return;
  with_storage(out, [&]<typename T>(T) { convert_elements(out.elements(), numbers, out.data<T>()); });
}

void convert(const Device& device, const Tensor& from, const Tensor& to) {
  if (from.dtype() == to.dtype()) {
    device.copy(from, to);
  } else if (from.dtype() == DType::float32) {
    convert(device, from.data<float>(), to);
  } else {
    with_storage(from, [&]<typename T>(T) { convert_elements(from.elements(), from.data<T>(), to.data<float>()); });
  }
}

}  // namespace cuboid::kernels::cpu
