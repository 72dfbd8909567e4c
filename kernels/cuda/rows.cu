// Norms, gated activations, elementwise kernels and dropout.
#include <cmath>

#include "kernels/body/activation.h"
#include "kernels/body/dropout.h"
#include "kernels/body/heads.h"
#include "kernels/body/norm.h"
#include "kernels/check.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/dropout.h"
#include "kernels/cuda/launch.h"

namespace cuboid::kernels::cuda {
namespace {

/// Rows summed by one warp: a long column is cut into as many parts as keep a GPU busy.
constexpr std::int64_t kSegment = 128;
/// Columns of one warp of a kernel that sums over rows.
constexpr std::int64_t kColumns = 32;

// out (n) adds a sum over `rows` rows. add(lanes, first row, rows, first column, columns, to) adds a part of the rows'
// to `to` (columns). Rows are cut into segments with sums of their own, which are then added in ascending order.
template <typename R, typename Add>
void add_over_rows(const Device& device, std::int64_t rows, std::int64_t n, R* out, Add add) {
  const std::int64_t segments = (rows + kSegment - 1) / kSegment;
  const std::int64_t strips = (n + kColumns - 1) / kColumns;
  if (segments <= 1) {
    launch_rows(stream_of(device), strips, kColumns, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t strip) {
      const std::int64_t first = strip * kColumns;
      add(lanes, 0, rows, first, n - first < kColumns ? n - first : kColumns, out + first);
    });
    return;
  }
  const Tensor sums = device.zeros({segments, n}, dtype_of<R>, Category::workspace);
  R* const parts = elements_of<R>(sums);
  launch_rows(stream_of(device), segments * strips, kColumns, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t i) {
    const std::int64_t segment = i / strips;
    const std::int64_t first = i % strips * kColumns;
    const std::int64_t begin = segment * kSegment;
    add(lanes, begin, rows - begin < kSegment ? rows - begin : kSegment, first,
        n - first < kColumns ? n - first : kColumns, parts + segment * n + first);
  });
  launch_rows(stream_of(device), strips, kColumns, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t strip) {
    const std::int64_t first = strip * kColumns;
    body::add_column_sum(lanes, segments, n - first < kColumns ? n - first : kColumns, n, parts + first, out + first);
  });
}

// What add_over_rows adds: functions of their own, since a kernel's lambda cannot be made inside another one.
template <typename T>
struct AddColumns {
  const T* x;
  std::int64_t stride;
  template <typename Lanes>
  CUBOID_HD void operator()(Lanes lanes, std::int64_t begin, std::int64_t rows, std::int64_t first,
                            std::int64_t columns, Real<T>* out) const {
    body::add_column_sum(lanes, rows, columns, stride, x + begin * stride + first, out);
  }
};

template <typename T>
struct AddNormWeights {
  const T* dy;
  const T* x;
  const Real<T>* mean;  // null: RMSNorm
  const Real<T>* rstd;
  std::int64_t stride;
  template <typename Lanes>
  CUBOID_HD void operator()(Lanes lanes, std::int64_t begin, std::int64_t rows, std::int64_t first,
                            std::int64_t columns, Real<T>* out) const {
    body::add_norm_weight_gradient<Lanes, T>(lanes, rows, columns, stride, dy + begin * stride + first,
                                             x + begin * stride + first, mean == nullptr ? nullptr : mean + begin,
                                             rstd + begin, out);
  }
};

template <typename T>
void layer_norm_rows(cudaStream_t stream, std::int64_t rows, std::int64_t n, const T* x, const T* weight, const T* bias,
                     Real<T> eps, T* y, Real<T>* mean, Real<T>* rstd) {
  on_rows(
      stream, rows, n,
      [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t r, const T* from, T* to) {
        const auto moments = body::layer_norm_row(lanes, n, from, weight, bias, eps, to);
        if (lanes.leader()) {
          mean[r] = moments.mean;
          rstd[r] = moments.rstd;
        }
      },
      in(x, n), out(y, n));
}

template <typename T>
void layer_norm_gradient_rows(cudaStream_t stream, std::int64_t rows, std::int64_t n, const T* dy, const T* x,
                              const T* weight, const Real<T>* mean, const Real<T>* rstd, T* dx) {
  on_rows(
      stream, rows, n,
      [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t r, const T* d, const T* from, T* to) {
        body::layer_norm_input_gradient_row(lanes, n, d, from, weight, body::Moments<Real<T>>{mean[r], rstd[r]}, to);
      },
      in(dy, n), in(x, n), out(dx, n));
}

template <typename T>
void rms_norm_rows(cudaStream_t stream, std::int64_t rows, std::int64_t n, const T* x, const T* weight, Real<T> offset,
                   Real<T> eps, T* y, Real<T>* rstd) {
  on_rows(
      stream, rows, n,
      [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t r, const T* from, T* to) {
        const Real<T> found = body::rms_norm_row(lanes, n, from, weight, offset, eps, to);
        if (lanes.leader()) rstd[r] = found;
      },
      in(x, n), out(y, n));
}

template <typename T>
void rms_norm_gradient_rows(cudaStream_t stream, std::int64_t rows, std::int64_t n, const T* dy, const T* x,
                            const T* weight, Real<T> offset, const Real<T>* rstd, T* dx) {
  on_rows(
      stream, rows, n,
      [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t r, const T* d, const T* from, T* to) {
        body::rms_norm_input_gradient_row(lanes, n, d, from, weight, offset, rstd[r], to);
      },
      in(dy, n), in(x, n), out(dx, n));
}

}  // namespace

void layer_norm(const Device& device, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                const Tensor& y, const Tensor& mean, const Tensor& rstd) {
  with_storage(x, [&]<typename T>(T) {
    layer_norm_rows(stream_of(device), row_count(x), row_length(x), elements_of<T>(x), elements_of<T>(weight),
                    elements_of<T>(bias), static_cast<Real<T>>(eps), elements_of<T>(y), elements_of<Real<T>>(mean),
                    elements_of<Real<T>>(rstd));
  });
}

void layer_norm_input_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& weight,
                               const Tensor& mean, const Tensor& rstd, const Tensor& dx) {
  with_storage(x, [&]<typename T>(T) {
    layer_norm_gradient_rows(stream_of(device), row_count(x), row_length(x), elements_of<T>(dy), elements_of<T>(x),
                             elements_of<T>(weight), elements_of<Real<T>>(mean), elements_of<Real<T>>(rstd),
                             elements_of<T>(dx));
  });
}

void layer_norm_weight_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& mean,
                                const Tensor& rstd, const Tensor& dweight, const Tensor& dbias) {
  with_storage(x, [&]<typename T>(T) {
    add_over_rows(device, row_count(x), row_length(x), elements_of<Real<T>>(dweight),
                  AddNormWeights<T>{elements_of<T>(dy), elements_of<T>(x), elements_of<Real<T>>(mean),
                                    elements_of<Real<T>>(rstd), row_length(x)});
  });
  add_column_sum(device, dy, dbias);
}

void rms_norm(const Device& device, const Tensor& x, const Tensor& weight, double offset, double eps, const Tensor& y,
              const Tensor& rstd) {
  with_storage(x, [&]<typename T>(T) {
    rms_norm_rows(stream_of(device), row_count(x), row_length(x), elements_of<T>(x), elements_of<T>(weight),
                  static_cast<Real<T>>(offset), static_cast<Real<T>>(eps), elements_of<T>(y),
                  elements_of<Real<T>>(rstd));
  });
}

void rms_norm_input_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& weight,
                             double offset, const Tensor& rstd, const Tensor& dx) {
  with_storage(x, [&]<typename T>(T) {
    rms_norm_gradient_rows(stream_of(device), row_count(x), row_length(x), elements_of<T>(dy), elements_of<T>(x),
                           elements_of<T>(weight), static_cast<Real<T>>(offset), elements_of<Real<T>>(rstd),
                           elements_of<T>(dx));
  });
}

void rms_norm_weight_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& rstd,
                              const Tensor& dweight) {
  with_storage(x, [&]<typename T>(T) {
    add_over_rows(
        device, row_count(x), row_length(x), elements_of<Real<T>>(dweight),
        AddNormWeights<T>{elements_of<T>(dy), elements_of<T>(x), nullptr, elements_of<Real<T>>(rstd), row_length(x)});
  });
}

// ---------------------------------------------------------------- norms of single heads

namespace {

// Row i of the (rows · (H + 2K)) heads of a fused projection: where its statistic is, and whether it is normed at all.
struct HeadRow {
  std::int64_t row, head;
};

template <typename T>
void rms_norm_head_rows(cudaStream_t stream, const NormedHeads& s, const T* x, const T* q_weight, const T* k_weight,
                        Real<T> eps, T* y, Real<T>* rstd) {
  const std::int64_t heads = s.H + 2 * s.K;
  const std::int64_t normed = s.H + s.K;
  launch_rows(stream, s.rows * heads, s.D, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t i) {
    const HeadRow at{i / heads, i % heads};
    if (at.head >= normed) {
      body::copy_row<RowLanes, T>(lanes, s.D, x + i * s.D, y + i * s.D);
      return;
    }
    const T* const weight = at.head < s.H ? q_weight : k_weight;
    const Real<T> found = body::rms_norm_row(lanes, s.D, x + i * s.D, weight, Real<T>{0}, eps, y + i * s.D);
    if (lanes.leader()) rstd[at.head * s.rows + at.row] = found;
  });
}

template <typename T>
void rms_norm_head_gradient_rows(cudaStream_t stream, const NormedHeads& s, const T* dy, const T* x, const T* q_weight,
                                 const T* k_weight, const Real<T>* rstd, T* dx) {
  const std::int64_t heads = s.H + 2 * s.K;
  const std::int64_t normed = s.H + s.K;
  launch_rows(stream, s.rows * heads, s.D, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t i) {
    const HeadRow at{i / heads, i % heads};
    if (at.head >= normed) {
      body::copy_row<RowLanes, T>(lanes, s.D, dy + i * s.D, dx + i * s.D);
      return;
    }
    const T* const weight = at.head < s.H ? q_weight : k_weight;
    body::rms_norm_input_gradient_row(lanes, s.D, dy + i * s.D, x + i * s.D, weight, Real<T>{0},
                                      rstd[at.head * s.rows + at.row], dx + i * s.D);
  });
}

}  // namespace

void rms_norm_heads(const Device& device, const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, double eps,
                    std::int64_t heads, std::int64_t kv_heads, const Tensor& y, const Tensor& rstd) {
  with_storage(qkv, [&]<typename T>(T) {
    rms_norm_head_rows(stream_of(device), normed_heads(qkv, heads, kv_heads), elements_of<T>(qkv),
                       elements_of<T>(q_weight), elements_of<T>(k_weight), static_cast<Real<T>>(eps), elements_of<T>(y),
                       elements_of<Real<T>>(rstd));
  });
}

void rms_norm_heads_input_gradient(const Device& device, const Tensor& dy, const Tensor& qkv, const Tensor& q_weight,
                                   const Tensor& k_weight, const Tensor& rstd, std::int64_t heads,
                                   std::int64_t kv_heads, const Tensor& dqkv) {
  with_storage(qkv, [&]<typename T>(T) {
    rms_norm_head_gradient_rows(stream_of(device), normed_heads(qkv, heads, kv_heads), elements_of<T>(dy),
                                elements_of<T>(qkv), elements_of<T>(q_weight), elements_of<T>(k_weight),
                                elements_of<Real<T>>(rstd), elements_of<T>(dqkv));
  });
}

void rms_norm_heads_weight_gradient(const Device& device, const Tensor& dy, const Tensor& qkv, const Tensor& rstd,
                                    std::int64_t heads, std::int64_t kv_heads, const Tensor& dq_weight,
                                    const Tensor& dk_weight) {
  const NormedHeads s = normed_heads(qkv, heads, kv_heads);
  with_storage(qkv, [&]<typename T>(T) {
    for (std::int64_t h = 0; h < s.normed(); ++h) {
      add_over_rows(device, s.rows, s.D, elements_of<Real<T>>(h < s.H ? dq_weight : dk_weight),
                    AddNormWeights<T>{elements_of<T>(dy) + h * s.D, elements_of<T>(qkv) + h * s.D, nullptr,
                                      elements_of<Real<T>>(rstd) + h * s.rows, s.stride()});
    }
  });
}

void add_column_sum(const Device& device, const Tensor& x, const Tensor& out) {
  with_storage(x, [&]<typename T>(T) {
    add_over_rows(device, row_count(x), row_length(x), elements_of<Real<T>>(out),
                  AddColumns<T>{elements_of<T>(x), row_length(x)});
  });
}

// ---------------------------------------------------------------- elementwise

namespace {

template <typename T>
void gelu_elements(cudaStream_t stream, std::int64_t n, const T* x, T* y) {
  map_elements(
      stream, n, [] CUBOID_DEVICE(T a, T & b) { b = static_cast<T>(body::gelu(real(a))); }, in(x), out(y));
}

template <typename T>
void gelu_gradient_elements(cudaStream_t stream, std::int64_t n, const T* dy, const T* x, T* dx) {
  map_elements(
      stream, n, [] CUBOID_DEVICE(T d, T a, T & da) { da = static_cast<T>(body::gelu_gradient(real(d), real(a))); },
      in(dy), in(x), out(dx));
}

// Gates as types: a kernel's lambda cannot hold another one made on the host.
struct Swiglu {
  template <typename R>
  CUBOID_HD R operator()(R gate, R up) const {
    return body::swiglu(gate, up);
  }
  template <typename R>
  CUBOID_HD body::SwigluGradient<R> operator()(R dy, R gate, R up) const {
    return body::swiglu_gradient(dy, gate, up);
  }
};

struct Geglu {
  template <typename R>
  CUBOID_HD R operator()(R gate, R up) const {
    return body::gelu(gate) * up;
  }
  template <typename R>
  CUBOID_HD body::SwigluGradient<R> operator()(R dy, R gate, R up) const {
    return {body::gelu_gradient(dy * up, gate), dy * body::gelu(gate)};
  }
};

template <typename T, typename Gate>
void gated_rows(cudaStream_t stream, std::int64_t rows, std::int64_t n, const T* gate_up, T* y, Gate gate) {
  map_rows(
      stream, rows, n, [=] CUBOID_DEVICE(T g, T up, T & made) { made = static_cast<T>(gate(real(g), real(up))); },
      in(gate_up, 2 * n), in(gate_up + n, 2 * n), out(y, n));
}

template <typename T, typename Gate>
void gated_gradient_rows(cudaStream_t stream, std::int64_t rows, std::int64_t n, const T* dy, const T* gate_up,
                         T* dgate_up, Gate gate) {
  map_rows(
      stream, rows, n,
      [=] CUBOID_DEVICE(T d, T g, T up, T & dgate, T & dup) {
        const auto made = gate(real(d), real(g), real(up));
        dgate = static_cast<T>(made.dgate);
        dup = static_cast<T>(made.dup);
      },
      in(dy, n), in(gate_up, 2 * n), in(gate_up + n, 2 * n), out(dgate_up, 2 * n), out(dgate_up + n, 2 * n));
}

template <typename Gate>
void gated(const Device& device, const Tensor& gate_up, const Tensor& y) {
  with_storage(y, [&]<typename T>(T) {
    gated_rows(stream_of(device), row_count(gate_up), row_length(gate_up) / 2, elements_of<T>(gate_up),
               elements_of<T>(y), Gate{});
  });
}

template <typename Gate>
void gated_gradient(const Device& device, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
  with_storage(dy, [&]<typename T>(T) {
    gated_gradient_rows(stream_of(device), row_count(gate_up), row_length(gate_up) / 2, elements_of<T>(dy),
                        elements_of<T>(gate_up), elements_of<T>(dgate_up), Gate{});
  });
}

template <typename T>
void add_elements(cudaStream_t stream, std::int64_t n, const T* a, const T* b, T* c) {
  map_elements(
      stream, n, [] CUBOID_DEVICE(T x, T y, T & sum) { sum = static_cast<T>(real(x) + real(y)); }, in(a), in(b),
      out(c));
}

template <typename T>
void add_bias_rows(cudaStream_t stream, std::int64_t rows, std::int64_t n, const T* x, const T* bias, T* y) {
  map_rows(
      stream, rows, n, [] CUBOID_DEVICE(T a, T b, T & sum) { sum = static_cast<T>(real(a) + real(b)); }, in(x, n),
      in(bias), out(y, n));
}

template <typename T>
void scale_elements(cudaStream_t stream, std::int64_t n, T* t, Real<T> factor) {
  map_elements(
      stream, n, [=] CUBOID_DEVICE(T & x) { x = static_cast<T>(real(x) * factor); }, in_out(t));
}

template <typename From, typename To>
void convert_elements(cudaStream_t stream, std::int64_t n, const From* from, To* to) {
  map_elements(
      stream, n, [] CUBOID_DEVICE(From x, To & y) { y = static_cast<To>(real(x)); }, in(from), out(to));
}

// y = [residual +] dropout(x), x (T,B,C); residual may be null.
template <typename T>
void dropout_rows(cudaStream_t stream, const Shape& shape, const T* x, const T* residual, const Dropout& mask, T* y) {
  const std::int64_t batch = shape[1];
  const std::int64_t n = shape[2];
  const DropoutRows<Real<T>> mask_rows(mask);
  launch_rows(stream, shape[0] * batch, n, [=] CUBOID_DEVICE(RowLanes lanes, std::int64_t r) {
    const auto row = mask_rows.at(r % batch, r / batch, 0);
    const T* const in = x + r * n;
    const T* const add = residual == nullptr ? nullptr : residual + r * n;
    T* const out = y + r * n;
    body::dropout_row(lanes, n, row, [=](std::int64_t i, Real<T> factor) {
      const Real<T> kept = real(in[i]) * factor;
      out[i] = static_cast<T>(add == nullptr ? kept : real(add[i]) + kept);
    });
  });
}

}  // namespace

void gelu(const Device& device, const Tensor& x, const Tensor& y) {
  with_storage(
      x, [&]<typename T>(T) { gelu_elements(stream_of(device), x.elements(), elements_of<T>(x), elements_of<T>(y)); });
}

void gelu_gradient(const Device& device, const Tensor& dy, const Tensor& x, const Tensor& dx) {
  with_storage(x, [&]<typename T>(T) {
    gelu_gradient_elements(stream_of(device), x.elements(), elements_of<T>(dy), elements_of<T>(x), elements_of<T>(dx));
  });
}

void swiglu(const Device& device, const Tensor& gate_up, const Tensor& y) {
  gated<Swiglu>(device, gate_up, y);
}

void swiglu_gradient(const Device& device, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
  gated_gradient<Swiglu>(device, dy, gate_up, dgate_up);
}

void geglu(const Device& device, const Tensor& gate_up, const Tensor& y) {
  gated<Geglu>(device, gate_up, y);
}

void geglu_gradient(const Device& device, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
  gated_gradient<Geglu>(device, dy, gate_up, dgate_up);
}

void add(const Device& device, const Tensor& a, const Tensor& b, const Tensor& c) {
  with_storage(a, [&]<typename T>(T) {
    add_elements(stream_of(device), a.elements(), elements_of<T>(a), elements_of<T>(b), elements_of<T>(c));
  });
}

void add_bias(const Device& device, const Tensor& x, const Tensor& bias, const Tensor& y) {
  with_storage(x, [&]<typename T>(T) {
    add_bias_rows(stream_of(device), row_count(x), row_length(x), elements_of<T>(x), elements_of<T>(bias),
                  elements_of<T>(y));
  });
}

void scale(const Device& device, const Tensor& t, double factor) {
  with_storage(t, [&]<typename T>(T) {
    scale_elements(stream_of(device), t.elements(), elements_of<T>(t), static_cast<Real<T>>(factor));
  });
}

void convert(const Device& device, const Tensor& from, const Tensor& to) {
  if (from.dtype() == to.dtype()) return device.copy(from, to);
  with_storage(from, [&]<typename From>(From) {
    with_storage(to, [&]<typename To>(To) {
      convert_elements(stream_of(device), from.elements(), elements_of<From>(from), elements_of<To>(to));
    });
  });
}

void convert(const Device& device, const float* numbers, const Tensor& out) {
  if (out.dtype() == DType::float32) return device.write(numbers, out);
  const Tensor wide = device.empty(out.shape(), DType::float32, Category::workspace);
  device.write(numbers, wide);
  convert(device, wide, out);
}

void dropout(const Device& device, const Tensor& x, const Dropout& mask, const Tensor& y) {
  if (mask.p == 0) return device.copy(x, y);
  with_storage(x, [&]<typename T>(T) {
    dropout_rows<T>(stream_of(device), x.shape(), elements_of<T>(x), nullptr, mask, elements_of<T>(y));
  });
}

void dropout_add(const Device& device, const Tensor& x, const Tensor& residual, const Dropout& mask, const Tensor& y) {
  if (mask.p == 0) return add(device, residual, x, y);
  with_storage(x, [&]<typename T>(T) {
    dropout_rows<T>(stream_of(device), x.shape(), elements_of<T>(x), elements_of<T>(residual), mask, elements_of<T>(y));
  });
}

}  // namespace cuboid::kernels::cuda
