#include <string>
#include <type_traits>

#include "cuboid/core/error.h"

#include "../operation.h"
#include "kernel_launch.h"
#include "runtime/cuda/gpu.h"
#include "shared_gpu.h"

namespace cuboid::detail {
namespace {

using kernels::cuda::launch_elements;
using kernels::cuda::on_device;

// The members' pointers, as a kernel's argument.
template <typename T>
struct Pointers {
  T* of[kMostOnOneGpu];
  int count;
};

template <typename T>
struct Accumulator {
  using Type = T;
};
template <>
struct Accumulator<BFloat16> {
  using Type = float;
};
// Sums of integers wrap around.
template <>
struct Accumulator<std::int32_t> {
  using Type = std::uint32_t;
};
template <>
struct Accumulator<std::int64_t> {
  using Type = std::uint64_t;
};

template <typename T>
CUBOID_HD T larger(T a, T b) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return static_cast<float>(b) > static_cast<float>(a) || b.bits != b.bits ? b : a;
  } else {
    return b > a || b != b ? b : a;  // a NaN wins
  }
}

// outs[j][i] = in[0][i] op in[1][i] op …, from left to right.
template <typename T>
void reduce_elements(cudaStream_t stream, std::int64_t n, const Pointers<T>& ins, const Pointers<T>& outs,
                     ReduceOp op) {
  using A = typename Accumulator<T>::Type;
  launch_elements(stream, n, [=] CUBOID_DEVICE(std::int64_t i) {
    T result = ins.of[0][i];
    if (op == ReduceOp::sum) {
      A sum = static_cast<A>(result);
      for (int r = 1; r < ins.count; ++r) sum += static_cast<A>(ins.of[r][i]);
      result = static_cast<T>(sum);
    } else {
      for (int r = 1; r < ins.count; ++r) result = larger(result, ins.of[r][i]);
    }
    for (int r = 0; r < outs.count; ++r) outs.of[r][i] = result;
  });
}

template <typename F>
void with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::float32:
      return f(float{});
    case DType::float64:
      return f(double{});
    case DType::bfloat16:
      return f(BFloat16{});
    case DType::int32:
      return f(std::int32_t{});
    case DType::int64:
      return f(std::int64_t{});
  }
}

class SharedGpuStream final : public SharedGpu {
 public:
  StreamMark run(const Operation& operation) override {
    for (const StreamMark& ready : operation.ready) stream_.wait(std::static_pointer_cast<cuda::Event>(ready));
    const Call& call = operation.call;
    if (call.kind == CallKind::all_reduce || call.kind == CallKind::reduce_scatter) {
      with_type(call.dtype, [&]<typename T>(T) { reduce<T>(operation); });
    } else {
      move(operation);
    }
    return stream_.mark();
  }

 private:
  template <typename T>
  void reduce(const Operation& operation) {
    const Call& call = operation.call;
    const auto size = static_cast<int>(operation.in.size());
    const auto pointers = [&](const std::vector<std::byte*>& from, std::int64_t offset) {
      Pointers<T> made{};
      for (std::byte* base : from) made.of[made.count++] = on_device(reinterpret_cast<T*>(base) + offset);
      return made;
    };
    if (call.kind == CallKind::all_reduce) {
      reduce_elements<T>(stream_.get(), call.count, pointers(operation.in, 0), pointers(operation.out, 0), call.reduce);
      return;
    }
    for (int part = 0; part < size; ++part) {
      reduce_elements<T>(stream_.get(), call.count, pointers(operation.in, part * call.count),
                         pointers({operation.out[static_cast<std::size_t>(part)]}, 0), call.reduce);
    }
  }

  void move(const Operation& operation) {
    const Call& call = operation.call;
    const auto size = static_cast<std::int64_t>(operation.in.size());
    const std::int64_t bytes = call.count * static_cast<std::int64_t>(size_of(call.dtype));
    for (std::int64_t from = 0; from < size; ++from) {
      std::byte* const in = operation.in[static_cast<std::size_t>(from)];
      for (std::int64_t to = 0; to < size; ++to) {
        std::byte* const out = operation.out[static_cast<std::size_t>(to)];
        if (call.kind == CallKind::all_gather) copy(in, out + from * bytes, bytes);
        if (call.kind == CallKind::all_to_all) copy(in + to * bytes, out + from * bytes, bytes);
        if (call.kind == CallKind::broadcast && from == call.root) copy(in, out, bytes);
      }
    }
  }

  void copy(const std::byte* from, std::byte* to, std::int64_t bytes) {
    if (from == to || bytes == 0) return;
    CUBOID_CUDA(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, stream_.get()));
  }

  cuda::Stream stream_;
};

}  // namespace

StreamMark mark_of(const Device& device) {
  return cuda::gpu_of(device).compute().mark();
}

void wait_for(const Device& device, const StreamMark& mark) {
  cuda::gpu_of(device).compute().wait(std::static_pointer_cast<cuda::Event>(mark));
}

std::unique_ptr<SharedGpu> make_shared_gpu(int members) {
  if (members > kMostOnOneGpu) {
    throw Error(ErrorKind::request, std::to_string(members) + " ranks on one GPU; at most " +
                                        std::to_string(kMostOnOneGpu) + " can share one");
  }
  return std::make_unique<SharedGpuStream>();
}

}  // namespace cuboid::detail
