#include "reduce.h"

#include <algorithm>
#include <type_traits>

namespace cuboid::detail {
namespace {

// Partial results stay in the first-level cache while all inputs pass by, so each input is read once from memory.
constexpr std::int64_t kBlock = 512;

template <typename T>
struct AccumulatorOf {
  using Type = T;
};
template <>
struct AccumulatorOf<BFloat16> {
  using Type = float;
};

template <ReduceOp op, typename A>
A combine(A a, A b) {
  if constexpr (op == ReduceOp::max) {
    return b > a || b != b ? b : a;
  } else if constexpr (std::is_integral_v<A>) {
    using Unsigned = std::make_unsigned_t<A>;
    return static_cast<A>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  } else {
    return a + b;
  }
}

// A function of its own: where the compiler merges this loop with those around it, it gives up vectorising it.
template <typename T, ReduceOp op, typename A>
[[gnu::noinline]] void accumulate(A* __restrict sum, const T* __restrict next, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] = combine<op>(sum[i], static_cast<A>(next[i]));
}

template <typename T, ReduceOp op>
void reduce_as(std::span<std::byte* const> ins, std::int64_t in_offset, std::span<std::byte* const> outs,
               std::int64_t out_offset, std::int64_t count) {
  using A = typename AccumulatorOf<T>::Type;
  alignas(64) A sum[kBlock];
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    const auto input = [&](std::size_t r) { return reinterpret_cast<const T*>(ins[r]) + in_offset + begin; };
    const T* first = input(0);
    for (std::int64_t i = 0; i < n; ++i) sum[i] = static_cast<A>(first[i]);
    for (std::size_t r = 1; r < ins.size(); ++r) accumulate<T, op>(sum, input(r), n);
    const auto output = [&](std::size_t r) { return reinterpret_cast<T*>(outs[r]) + out_offset + begin; };
    T* result = output(0);
    for (std::int64_t i = 0; i < n; ++i) result[i] = static_cast<T>(sum[i]);
    for (std::size_t r = 1; r < outs.size(); ++r) std::copy(result, result + n, output(r));
  }
}

template <typename T>
void reduce_as(ReduceOp op, std::span<std::byte* const> ins, std::int64_t in_offset, std::span<std::byte* const> outs,
               std::int64_t out_offset, std::int64_t count) {
  switch (op) {
    case ReduceOp::sum:
      return reduce_as<T, ReduceOp::sum>(ins, in_offset, outs, out_offset, count);
    case ReduceOp::max:
      return reduce_as<T, ReduceOp::max>(ins, in_offset, outs, out_offset, count);
  }
}

}  // namespace

void reduce(DType dtype, ReduceOp op, std::span<std::byte* const> ins, std::int64_t in_offset,
            std::span<std::byte* const> outs, std::int64_t out_offset, std::int64_t count) {
  switch (dtype) {
    case DType::float32:
      return reduce_as<float>(op, ins, in_offset, outs, out_offset, count);
    case DType::float64:
      return reduce_as<double>(op, ins, in_offset, outs, out_offset, count);
    case DType::bfloat16:
      return reduce_as<BFloat16>(op, ins, in_offset, outs, out_offset, count);
    case DType::int32:
      return reduce_as<std::int32_t>(op, ins, in_offset, outs, out_offset, count);
    case DType::int64:
      return reduce_as<std::int64_t>(op, ins, in_offset, outs, out_offset, count);
  }
}

}  // namespace cuboid::detail
