#include "alibi_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace example {
namespace {

using namespace cuboid;

/// Where heads lie in the rows of qkv and out.
struct Layout {
  std::int64_t T, B, H, K, D;
  std::int64_t q(std::int64_t t, std::int64_t b, std::int64_t h) const { return fused(t, b) + h * D; }
  std::int64_t k(std::int64_t t, std::int64_t b, std::int64_t h) const { return fused(t, b) + (H + h / (H / K)) * D; }
  std::int64_t v(std::int64_t t, std::int64_t b, std::int64_t h) const { return k(t, b, h) + K * D; }
  std::int64_t out(std::int64_t t, std::int64_t b, std::int64_t h) const { return ((t * B + b) * H + h) * D; }

 private:
  std::int64_t fused(std::int64_t t, std::int64_t b) const { return (t * B + b) * (H + 2 * K) * D; }
};

/// Softmax of the scores of query t: p (t + 1).
template <typename T>
void probabilities(const Layout& s, const Alibi& shape, const T* x, std::int64_t t, std::int64_t b, std::int64_t h,
                   std::vector<T>& p) {
  const T scale = static_cast<T>(1 / std::sqrt(static_cast<double>(s.D)));
  const T slope = static_cast<T>(shape.slope(h));
  T max = -INFINITY;
  for (std::int64_t j = 0; j <= t; ++j) {
    T score = 0;
    for (std::int64_t d = 0; d < s.D; ++d) score += x[s.q(t, b, h) + d] * x[s.k(j, b, h) + d];
    p[static_cast<std::size_t>(j)] = score * scale - slope * static_cast<T>(t - j);
    max = std::max(max, p[static_cast<std::size_t>(j)]);
  }
  T sum = 0;
  for (std::int64_t j = 0; j <= t; ++j)
    sum += p[static_cast<std::size_t>(j)] = std::exp(p[static_cast<std::size_t>(j)] - max);
  for (std::int64_t j = 0; j <= t; ++j) p[static_cast<std::size_t>(j)] /= sum;
}

template <typename T>
void forward(const Layout& s, const Alibi& shape, const T* x, T* out) {
  std::vector<T> p(static_cast<std::size_t>(s.T));
  for (std::int64_t b = 0; b < s.B; ++b) {
    for (std::int64_t h = 0; h < s.H; ++h) {
      for (std::int64_t t = 0; t < s.T; ++t) {
        probabilities(s, shape, x, t, b, h, p);
        T* row = out + s.out(t, b, h);
        std::fill_n(row, s.D, T{0});
        for (std::int64_t j = 0; j <= t; ++j) {
          for (std::int64_t d = 0; d < s.D; ++d) row[d] += p[static_cast<std::size_t>(j)] * x[s.v(j, b, h) + d];
        }
      }
    }
  }
}

/// dx from dout: the probabilities are computed again, so that nothing but qkv is kept.
template <typename T>
void backward(const Layout& s, const Alibi& shape, const T* x, const T* dout, T* dx) {
  const T scale = static_cast<T>(1 / std::sqrt(static_cast<double>(s.D)));
  std::vector<T> p(static_cast<std::size_t>(s.T));
  std::vector<T> dp(static_cast<std::size_t>(s.T));
  for (std::int64_t b = 0; b < s.B; ++b) {
    for (std::int64_t h = 0; h < s.H; ++h) {
      for (std::int64_t t = 0; t < s.T; ++t) {
        probabilities(s, shape, x, t, b, h, p);
        const T* dy = dout + s.out(t, b, h);
        T mean = 0;
        for (std::int64_t j = 0; j <= t; ++j) {
          const auto i = static_cast<std::size_t>(j);
          dp[i] = 0;
          for (std::int64_t d = 0; d < s.D; ++d) {
            dp[i] += dy[d] * x[s.v(j, b, h) + d];
            dx[s.v(j, b, h) + d] += p[i] * dy[d];
          }
          mean += p[i] * dp[i];
        }
        for (std::int64_t j = 0; j <= t; ++j) {
          const auto i = static_cast<std::size_t>(j);
          const T dscore = p[i] * (dp[i] - mean) * scale;
          for (std::int64_t d = 0; d < s.D; ++d) {
            dx[s.q(t, b, h) + d] += dscore * x[s.k(j, b, h) + d];
            dx[s.k(j, b, h) + d] += dscore * x[s.q(t, b, h) + d];
          }
        }
      }
    }
  }
}

/// The type that is computed with: bfloat16 is only how numbers are stored.
Tensor widened(const Device& device, const Tensor& t) {
  if (t.dtype() == compute_type(t.dtype())) return t;
  const Tensor wide = device.empty(t.shape(), compute_type(t.dtype()), Category::workspace);
  kernels::convert(device, t, wide);
  return wide;
}

Tensor rounded(const Device& device, const Tensor& t, DType dtype) {
  if (t.dtype() == dtype) return t;
  const Tensor narrow = device.empty(t.shape(), dtype);
  kernels::convert(device, t, narrow);
  return narrow;
}

/// f(T{}) for the type that is computed with; on the meta device, which has no numbers, only tells what it would cost.
template <typename F>
void run(const Device& device, const Layout& s, const Tensor& x, bool gradient, F f) {
  if (device.kind() == DeviceKind::meta) {
    const double pairs = static_cast<double>(s.B * s.H) * static_cast<double>(s.T * (s.T + 1) / 2);
    const auto bytes = static_cast<double>(x.bytes());
    const auto context = bytes * static_cast<double>(s.H) / static_cast<double>(s.H + 2 * s.K);
    return device.observe({.kind = TracedKernel::Kind::attention,
                           .name = "alibi_attention",
                           .dtype = x.dtype(),
                           .batch = s.B,
                           .heads = s.H,
                           .kv_heads = s.K,
                           .seq_len = s.T,
                           .head_dim = s.D,
                           .gradient = gradient,
                           .flops = pairs * static_cast<double>(s.D) * (gradient ? 10 : 4),
                           .bytes_read = gradient ? bytes + context : bytes,
                           .bytes_written = gradient ? bytes : context});
  }
  if (compute_type(x.dtype()) == DType::float64) {
    f(double{});
  } else {
    f(float{});
  }
}

}  // namespace

double Alibi::slope(std::int64_t h) const {
  return std::exp2(-max_bias * static_cast<double>(first_head + h + 1) / static_cast<double>(all_heads));
}

Var alibi_attention(Tape& tape, const Var& qkv, const Alibi& shape) {
  const Device& device = tape.device();
  const Tensor& x = qkv.value();
  const Layout s{x.dim(0), x.dim(1), shape.heads.heads, shape.heads.kv_heads, shape.heads.head_dim};
  const Tensor wide = widened(device, x);
  const Tensor y = device.empty({s.T, s.B, s.H * s.D}, wide.dtype());
  run(device, s, x, false, [&]<typename T>(T) { forward(s, shape, wide.data<T>(), y.data<T>()); });
  // What an operation is to the tape: its value, whose gradients flow through it, and a closure that turns the
  // gradient of the value into theirs. Weights of its own would be named here and deferred there (Tape::defer).
  return tape.record(
      rounded(device, y, x.dtype()), {qkv.slot()}, {}, [s, shape, x, slot = qkv.slot()](Tape& t, Tensor dy) {
        const Tensor wide_x = widened(t.device(), x);
        const Tensor wide_dy = widened(t.device(), dy);
        const Tensor dx = t.device().zeros(x.shape(), wide_x.dtype());
        run(t.device(), s, x, true,
            [&]<typename T>(T) { backward(s, shape, wide_x.data<T>(), wide_dy.data<T>(), dx.data<T>()); });
        t.contribute(slot, rounded(t.device(), dx, x.dtype()));
      });
}

}  // namespace example
