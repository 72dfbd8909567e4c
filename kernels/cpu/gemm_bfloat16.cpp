// Products of bfloat16 matrices: oneDNN's matmul primitives, which a thread keeps for the shapes it has met.
#include <map>
#include <memory>
#include <tuple>

#include <oneapi/dnnl/dnnl.hpp>

#include "cuboid/kernels/kernels.h"

#include "kernels/body/lanes.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/launch.h"

namespace cuboid::kernels {
namespace {

using DnnlType = dnnl::memory::data_type;
using Dims = dnnl::memory::dims;

const dnnl::engine& engine() {
  static const dnnl::engine instance(dnnl::engine::kind::cpu, 0);
  return instance;
}

dnnl::memory::desc describe(std::int64_t rows, std::int64_t columns, std::int64_t stride, bool transposed) {
  return {{rows, columns}, DnnlType::bf16, transposed ? Dims{1, stride} : Dims{stride, 1}};
}

dnnl::matmul::primitive_desc make(const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                                  const dnnl::memory::desc& bias, const dnnl::memory::desc& c, bool accumulate) {
  dnnl::primitive_attr attributes;
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1);
    attributes.set_post_ops(sum);
  }
  const dnnl::matmul::desc product = bias.is_zero() ? dnnl::matmul::desc(a, b, c) : dnnl::matmul::desc(a, b, bias, c);
  return {product, attributes, engine()};
}

// Sizes and strides given at run time: one primitive for all shapes.
dnnl::matmul::primitive_desc make_for_any_shape(bool transpose_a, bool transpose_b, bool accumulate) {
  constexpr std::int64_t kAny = DNNL_RUNTIME_DIM_VAL;
  return make(describe(kAny, kAny, kAny, transpose_a), describe(kAny, kAny, kAny, transpose_b), {},
              {{kAny, kAny}, DnnlType::f32, Dims{kAny, 1}}, accumulate);
}

// What a thread has made: creation compiles code. Threads do not share, so nothing is locked.
struct Primitives {
  dnnl::stream stream{engine()};
  std::map<std::tuple<bool, bool, bool>, dnnl::matmul> to_float;
  using Shape = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool, std::int64_t, bool, bool>;
  std::map<Shape, dnnl::matmul> to_bfloat16;
};

Primitives& mine() {
  thread_local Primitives instance;
  return instance;
}

dnnl::memory memory_of(const dnnl::memory::desc& shape, const void* data) {
  return {shape, engine(), const_cast<void*>(data)};
}

// oneDNN's errors as this library's.
template <typename F>
void run(std::int64_t m, std::int64_t n, std::int64_t k, F product) {
  try {
    product();
  } catch (const dnnl::error& error) {
    throw Error(ErrorKind::failed, "bfloat16 matrix product (" + std::to_string(m) + "," + std::to_string(k) + ")·(" +
                                       std::to_string(k) + "," + std::to_string(n) +
                                       "): oneDNN reports: " + error.what());
  }
}

// op(x) (rows, columns) in float; the caller's buffer holds at least rows·columns.
MatrixRef<float> widen(std::int64_t rows, std::int64_t columns, const MatrixRef<BFloat16>& x, float* buffer) {
  const std::int64_t stored_rows = x.transposed ? columns : rows;
  const std::int64_t stored_columns = x.transposed ? rows : columns;
  parallel_for(stored_rows, [=](std::int64_t r) {
    const BFloat16* in = x.data + r * x.stride;
    float* out = buffer + r * stored_columns;
    body::OneLane{}.each(stored_columns, [=](std::int64_t i) { out[i] = real(in[i]); });
  });
  return {buffer, stored_columns, x.transposed};
}

}  // namespace

bool has_native_bfloat16() {
  static const bool found = [] {
    try {
      make_for_any_shape(false, true, false);
      return true;
    } catch (const dnnl::error&) {
      return false;
    }
  }();
  return found;
}

void gemm_by_float(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<BFloat16> a, MatrixRef<BFloat16> b,
                   bool accumulate, float* c, std::int64_t c_stride) {
  const auto wide = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>((m + n) * k));
  gemm(m, n, k, widen(m, k, a, wide.get()), widen(k, n, b, wide.get() + m * k), accumulate, c, c_stride);
}

void gemm_by_float(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<BFloat16> a, MatrixRef<BFloat16> b,
                   const BFloat16* bias, BFloat16* c) {
  const auto sums = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(m * n));
  gemm_by_float(m, n, k, a, b, false, sums.get(), n);
  const float* from = sums.get();
  parallel_for(m, [=](std::int64_t r) {
    const float* in = from + r * n;
    BFloat16* out = c + r * n;
    if (bias != nullptr) {
      body::OneLane{}.each(n, [=](std::int64_t i) { out[i] = static_cast<BFloat16>(in[i] + real(bias[i])); });
    } else {
      body::OneLane{}.each(n, [=](std::int64_t i) { out[i] = static_cast<BFloat16>(in[i]); });
    }
  });
}

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<BFloat16> a, MatrixRef<BFloat16> b, bool accumulate,
          float* c, std::int64_t c_stride) {
  if (!has_native_bfloat16()) return gemm_by_float(m, n, k, a, b, accumulate, c, c_stride);
  run(m, n, k, [&] {
    // As fast as primitives made for their shape where the destination itself takes the sums, and attention has many
    // shapes: none to make and keep.
    Primitives& made = mine();
    auto [found, is_new] = made.to_float.try_emplace({a.transposed, b.transposed, accumulate});
    if (is_new) found->second = dnnl::matmul(make_for_any_shape(a.transposed, b.transposed, accumulate));
    found->second.execute(made.stream, {{DNNL_ARG_SRC, memory_of(describe(m, k, a.stride, a.transposed), a.data)},
                                        {DNNL_ARG_WEIGHTS, memory_of(describe(k, n, b.stride, b.transposed), b.data)},
                                        {DNNL_ARG_DST, memory_of({{m, n}, DnnlType::f32, Dims{c_stride, 1}}, c)}});
    made.stream.wait();
  });
}

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef<BFloat16> a, MatrixRef<BFloat16> b,
          const BFloat16* bias, BFloat16* c) {
  if (!has_native_bfloat16()) return gemm_by_float(m, n, k, a, b, bias, c);
  run(m, n, k, [&] {
    constexpr std::size_t kMost = 512;  // far more than a model's layers ask for; what is beyond was a sweep
    Primitives& made = mine();
    if (made.to_bfloat16.size() >= kMost) made.to_bfloat16.clear();
    const auto a_desc = describe(m, k, a.stride, a.transposed);
    const auto b_desc = describe(k, n, b.stride, b.transposed);
    const auto bias_desc =
        bias != nullptr ? dnnl::memory::desc({1, n}, DnnlType::bf16, Dims{n, 1}) : dnnl::memory::desc();
    const dnnl::memory::desc c_desc({m, n}, DnnlType::bf16, Dims{n, 1});
    auto [found, is_new] =
        made.to_bfloat16.try_emplace({m, n, k, a.stride, a.transposed, b.stride, b.transposed, bias != nullptr});
    if (is_new) found->second = dnnl::matmul(make(a_desc, b_desc, bias_desc, c_desc, false));
    std::unordered_map<int, dnnl::memory> arguments = {{DNNL_ARG_SRC, memory_of(a_desc, a.data)},
                                                       {DNNL_ARG_WEIGHTS, memory_of(b_desc, b.data)},
                                                       {DNNL_ARG_DST, memory_of(c_desc, c)}};
    if (bias != nullptr) arguments.emplace(DNNL_ARG_BIAS, memory_of(bias_desc, bias));
    found->second.execute(made.stream, arguments);
    made.stream.wait();
  });
}

}  // namespace cuboid::kernels
