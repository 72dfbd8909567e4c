#include "kernels/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "cuboid/core/random.h"

namespace cuboid::kernels::reference {
namespace {

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

}  // namespace

Array matmul(const Array& a, const Array& b, std::int64_t m, std::int64_t n, std::int64_t k, MatMul options) {
  Array c(at(m * n));
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t p = 0; p < k; ++p) {
        c[at(i * n + j)] +=
            a[at(options.transpose_a ? p * m + i : i * k + p)] * b[at(options.transpose_b ? j * k + p : p * n + j)];
      }
    }
  }
  return c;
}

Array layer_norm(const Array& x, const Array& weight, const Array& bias, double eps) {
  Array y(x.size());
  const std::size_t n = weight.size();
  for (std::size_t r = 0; r < x.size(); r += n) {
    double mean = 0;
    for (std::size_t i = 0; i < n; ++i) mean += x[r + i];
    mean /= static_cast<double>(n);
    double variance = 0;
    for (std::size_t i = 0; i < n; ++i) variance += (x[r + i] - mean) * (x[r + i] - mean);
    variance /= static_cast<double>(n);
    for (std::size_t i = 0; i < n; ++i) y[r + i] = (x[r + i] - mean) / std::sqrt(variance + eps) * weight[i] + bias[i];
  }
  return y;
}

Array rms_norm(const Array& x, const Array& weight, double eps) {
  Array y(x.size());
  const std::size_t n = weight.size();
  for (std::size_t r = 0; r < x.size(); r += n) {
    double square = 0;
    for (std::size_t i = 0; i < n; ++i) square += x[r + i] * x[r + i];
    for (std::size_t i = 0; i < n; ++i) {
      y[r + i] = x[r + i] / std::sqrt(square / static_cast<double>(n) + eps) * weight[i];
    }
  }
  return y;
}

double gelu(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

double silu(double x) {
  return x / (1 + std::exp(-x));
}

Array swiglu(const Array& gate_up, std::int64_t n) {
  Array y(gate_up.size() / 2);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t gate = i / at(n) * at(2 * n) + i % at(n);
    y[i] = silu(gate_up[gate]) * gate_up[gate + at(n)];
  }
  return y;
}

double dropout_factor(const Dropout& mask, std::int64_t t, std::int64_t b, std::int64_t head, std::int64_t column) {
  const std::int64_t sample = mask.first_sample + b;
  const Philox4 words = philox(mask.key, static_cast<std::uint32_t>(column / 4),
                               static_cast<std::uint32_t>(mask.rows.position(t)), static_cast<std::uint32_t>(sample),
                               static_cast<std::uint32_t>((mask.first_head + head) << 16 | sample >> 32));
  return static_cast<double>(words.x[column % 4]) >= mask.p * 4294967296.0 ? 1 / (1 - mask.p) : 0;
}

std::int64_t fused_offset(const Heads& s, std::int64_t t, std::int64_t b, std::int64_t head) {
  return ((t * s.B + b) * (s.H + 2 * s.K) + head) * s.D;
}

Array split_heads(const Heads& s, const Array& qkv, std::int64_t first_head, std::int64_t heads, const Array& angles) {
  Array out;
  for (std::int64_t b = 0; b < s.B; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t t = 0; t < s.T; ++t) {
        const std::int64_t from = fused_offset(s, t, b, first_head + h);
        for (std::int64_t d = 0; d < s.D; ++d) {
          double value = qkv[at(from + d)];
          if (!angles.empty()) {  // element d turns with the element half a head away
            const std::int64_t half = s.D / 2;
            const double angle = angles[at(t * half + d % half)];
            const double other = qkv[at(from + (d + half) % s.D)];
            value = value * std::cos(angle) + (d < half ? -other : other) * std::sin(angle);
          }
          out.push_back(value);
        }
      }
    }
  }
  return out;
}

Probabilities attention_probabilities(const Heads& s, const Array& q, const Array& k, std::int64_t b, std::int64_t h,
                                      std::int64_t t) {
  const std::int64_t q_row = ((b * s.H + h) * s.T + t) * s.D;
  const std::int64_t k_head = (b * s.K + h / (s.H / s.K)) * s.T * s.D;
  Probabilities made{Array(at(t + 1)), 0};
  for (std::int64_t j = 0; j < s.oldest(t); ++j) made.p[at(j)] = -std::numeric_limits<double>::infinity();
  for (std::int64_t j = s.oldest(t); j <= t; ++j) {
    for (std::int64_t d = 0; d < s.D; ++d) made.p[at(j)] += q[at(q_row + d)] * k[at(k_head + j * s.D + d)];
    made.p[at(j)] /= std::sqrt(static_cast<double>(s.D));
  }
  const double max = *std::max_element(made.p.begin(), made.p.end());
  double sum = 0;
  for (double& p : made.p) sum += p = std::exp(p - max);
  for (double& p : made.p) p /= sum;
  made.log_sum = max + std::log(sum);
  return made;
}

Array attention(const Heads& s, const Array& q, const Array& k, const Array& v, const Dropout& mask) {
  Array out(at(s.T * s.B * s.H * s.D));
  for (std::int64_t b = 0; b < s.B; ++b) {
    for (std::int64_t h = 0; h < s.H; ++h) {
      const std::int64_t v_head = (b * s.K + h / (s.H / s.K)) * s.T * s.D;
      for (std::int64_t t = 0; t < s.T; ++t) {
        const Array p = attention_probabilities(s, q, k, b, h, t).p;
        double* row = out.data() + ((t * s.B + b) * s.H + h) * s.D;
        for (std::int64_t j = 0; j <= t; ++j) {
          const double kept = p[at(j)] * (mask.p > 0 ? dropout_factor(mask, t, b, h, j) : 1);
          for (std::int64_t d = 0; d < s.D; ++d) row[d] += kept * v[at(v_head + j * s.D + d)];
        }
      }
    }
  }
  return out;
}

Array cross_entropy(const Array& logits, const std::vector<std::int32_t>& targets, std::int64_t batch) {
  Array losses(at(batch));
  const std::size_t n = logits.size() / targets.size();
  for (std::size_t r = 0; r < targets.size(); ++r) {
    if (targets[r] == kIgnore) continue;
    const double* row = logits.data() + r * n;
    const double max = *std::max_element(row, row + n);
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += std::exp(row[i] - max);
    losses[r % at(batch)] += std::log(sum) + max - row[targets[r]];
  }
  return losses;
}

AdamWElement adamw(const AdamW& options, double gradient, AdamWElement before) {
  const double g = gradient * options.gradient_scale;
  AdamWElement after{};
  after.m = options.beta1 * before.m + (1 - options.beta1) * g;
  after.v = options.beta2 * before.v + (1 - options.beta2) * g * g;
  const double m_hat = after.m / options.bias_correction1;
  const double v_hat = after.v / options.bias_correction2;
  after.weight =
      before.weight - options.lr * (options.weight_decay * before.weight + m_hat / (std::sqrt(v_hat) + options.eps));
  return after;
}

}  // namespace cuboid::kernels::reference
