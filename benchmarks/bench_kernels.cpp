// Rates of the CPU kernels on the shapes of a GPT-2 training step (12 layers, C 768, H 12, T 512, V 50257), on one
// thread unless OMP_NUM_THREADS says otherwise. GFLOP/s count multiplications and additions; GB/s count each operand
// once. Rates are per CPU second: other work on the machine disturbs them less.
#include <cstdlib>
#include <string>

#include <benchmark/benchmark.h>
#include <omp.h>

#include "cuboid/core/random.h"
#include "cuboid/kernels/kernels.h"

namespace cuboid::kernels {
namespace {

using benchmark::Counter;

const Device& device() {
  static const Device instance;
  return instance;
}

// Uniform numbers in [-1, 1): their cost and their branches are those of real data, unlike zeros.
Tensor random_tensor(const Shape& shape, std::uint64_t key) {
  Tensor made = device().empty(shape, DType::float32);
  for (std::int64_t i = 0; i < made.elements(); ++i) {
    made.data<float>()[i] =
        static_cast<float>(static_cast<std::int32_t>(philox(key, static_cast<std::uint32_t>(i), 0, 0, 0).x[0])) *
        0x1p-31F;
  }
  return made;
}

void rate(benchmark::State& state, double flops, double bytes) {
  const auto per_second = [](double amount) { return Counter(amount * 1e-9, Counter::kIsIterationInvariantRate); };
  if (flops > 0) state.counters["GFLOP/s"] = per_second(flops);
  if (bytes > 0) state.counters["GB/s"] = per_second(bytes);
}

// ---------------------------------------------------------------- matrix product

enum class Use { forward, input_gradient, weight_gradient, bias };

// A linear layer with weight (out,in) on `rows` rows.
void linear(benchmark::State& state, Use use, std::int64_t rows, std::int64_t in, std::int64_t out) {
  const Tensor x = random_tensor({rows, in}, 1);
  const Tensor w = random_tensor({out, in}, 2);
  const Tensor y = random_tensor({rows, out}, 3);
  const Tensor bias = random_tensor({out}, 4);
  for (auto _ : state) {
    switch (use) {
      case Use::forward:
        matmul(device(), x, w, y, {.transpose_b = true});
        break;
      case Use::bias:
        matmul(device(), x, w, y, {.transpose_b = true}, bias);
        break;
      case Use::input_gradient:
        matmul(device(), y, w, x);
        break;
      case Use::weight_gradient:
        matmul(device(), y, x, w, {.transpose_a = true, .accumulate = true});
        break;
    }
  }
  rate(state, 2.0 * static_cast<double>(rows * in * out), 0);
}

void register_linear() {
  benchmark::RegisterBenchmark("matmul/1024x1024x1024", linear, Use::input_gradient, 1024, 1024, 1024);
  struct Layer {
    const char* name;
    std::int64_t in, out;
  };
  for (const std::int64_t rows : {512, 2048}) {
    for (const Layer& l : {Layer{"qkv", 768, 2304},
                           {"projection", 768, 768},
                           {"up", 768, 3072},
                           {"down", 3072, 768},
                           {"head", 768, 50257}}) {
      const auto add = [&](const char* what, Use use) {
        const std::string name = std::string(what) + "/" + l.name + "/rows:" + std::to_string(rows);
        benchmark::RegisterBenchmark(name.c_str(), linear, use, rows, l.in, l.out);
      };
      add("forward", Use::forward);
      if (l.out < 50257) add("forward_bias", Use::bias);
      add("input_gradient", Use::input_gradient);
      add("weight_gradient", Use::weight_gradient);
    }
  }
}

// ---------------------------------------------------------------- attention (FLOPs of the visible half)

constexpr std::int64_t kHeads = 12;
constexpr std::int64_t kHeadDim = 64;
constexpr std::int64_t kSequence = 512;

void attention_step(benchmark::State& state, bool backward) {
  const std::int64_t batch = state.range(0);
  const Dropout mask{.p = static_cast<double>(state.range(1)) / 100, .key = 9};
  const Shape head_shape{batch, kHeads, kSequence, kHeadDim};
  const Tensor q = random_tensor(head_shape, 1);
  const Tensor k = random_tensor(head_shape, 2);
  const Tensor v = random_tensor(head_shape, 3);
  const Tensor dout = random_tensor({kSequence, batch, kHeads * kHeadDim}, 4);
  const Tensor out = device().empty(dout.shape(), DType::float32);
  const Tensor log_sum = device().empty({batch, kHeads, kSequence}, DType::float32);
  const Tensor dq = device().empty(head_shape, DType::float32);
  const Tensor dk = device().empty(head_shape, DType::float32);
  const Tensor dv = device().empty(head_shape, DType::float32);
  attention(device(), q, k, v, mask, out, log_sum);
  for (auto _ : state) {
    if (backward) {
      attention_gradient(device(), dout, q, k, v, out, log_sum, mask, dq, dk, dv);
    } else {
      attention(device(), q, k, v, mask, out, log_sum);
    }
  }
  const auto pairs = static_cast<double>(batch * kHeads * kSequence * (kSequence + 1) / 2);
  rate(state, (backward ? 10 : 4) * pairs * static_cast<double>(kHeadDim), 0);
}
BENCHMARK_CAPTURE(attention_step, forward, false)->ArgNames({"B", "p%"})->ArgsProduct({{1, 4}, {0, 10}});
BENCHMARK_CAPTURE(attention_step, backward, true)->ArgNames({"B", "p%"})->ArgsProduct({{1, 4}, {0, 10}});

// ---------------------------------------------------------------- row and element kernels, each with its bytes

constexpr std::int64_t kHidden = 768;
constexpr std::int64_t kFfn = 3072;
constexpr std::int64_t kVocabulary = 50257;

double bytes_of(std::int64_t tensors, const Tensor& t) {
  return static_cast<double>(tensors) * static_cast<double>(t.bytes());
}

void layer_norm_forward(benchmark::State& state) {
  const Tensor x = random_tensor({kSequence, kHidden}, 1);
  const Tensor w = random_tensor({kHidden}, 2);
  const Tensor y = device().empty(x.shape(), DType::float32);
  const Tensor mean = device().empty({kSequence}, DType::float32);
  const Tensor rstd = device().empty({kSequence}, DType::float32);
  for (auto _ : state) layer_norm(device(), x, w, w, 1e-5, y, mean, rstd);
  rate(state, 0, bytes_of(2, x));
}
BENCHMARK(layer_norm_forward);

void layer_norm_backward(benchmark::State& state) {
  const Tensor x = random_tensor({kSequence, kHidden}, 1);
  const Tensor w = random_tensor({kHidden}, 2);
  const Tensor dx = device().empty(x.shape(), DType::float32);
  const Tensor dw = device().zeros({kHidden}, DType::float32);
  const Tensor db = device().zeros({kHidden}, DType::float32);
  const Tensor mean = device().zeros({kSequence}, DType::float32);
  const Tensor rstd = random_tensor({kSequence}, 3);
  for (auto _ : state) {
    layer_norm_input_gradient(device(), x, x, w, mean, rstd, dx);
    layer_norm_weight_gradient(device(), x, x, mean, rstd, dw, db);
  }
  rate(state, 0, bytes_of(5, x));
}
BENCHMARK(layer_norm_backward);

void column_sum(benchmark::State& state) {
  const Tensor x = random_tensor({kSequence, kFfn}, 1);
  const Tensor out = device().zeros({kFfn}, DType::float32);
  for (auto _ : state) add_column_sum(device(), x, out);
  rate(state, 0, bytes_of(1, x));
}
BENCHMARK(column_sum);

void gelu_forward(benchmark::State& state) {
  const Tensor x = random_tensor({kSequence, kFfn}, 1);
  const Tensor y = device().empty(x.shape(), DType::float32);
  for (auto _ : state) gelu(device(), x, y);
  rate(state, 0, bytes_of(2, x));
}
BENCHMARK(gelu_forward);

void gelu_backward(benchmark::State& state) {
  const Tensor x = random_tensor({kSequence, kFfn}, 1);
  const Tensor y = device().empty(x.shape(), DType::float32);
  for (auto _ : state) gelu_gradient(device(), x, x, y);
  rate(state, 0, bytes_of(3, x));
}
BENCHMARK(gelu_backward);

void swiglu_forward(benchmark::State& state) {
  const Tensor x = random_tensor({kSequence, 2 * kFfn}, 1);
  const Tensor y = device().empty({kSequence, kFfn}, DType::float32);
  for (auto _ : state) swiglu(device(), x, y);
  rate(state, 0, bytes_of(3, y));
}
BENCHMARK(swiglu_forward);

void dropout_forward(benchmark::State& state) {
  const Tensor x = random_tensor({kSequence, 1, kHidden}, 1);
  const Tensor y = device().empty(x.shape(), DType::float32);
  for (auto _ : state) dropout(device(), x, {.p = 0.1, .key = 7}, y);
  rate(state, 0, bytes_of(2, x));
}
BENCHMARK(dropout_forward);

void split_heads_forward(benchmark::State& state) {
  const bool rotates = state.range(0) != 0;
  const Tensor qkv = random_tensor({kSequence, 1, 3 * kHidden}, 1);
  const Shape head_shape{1, kHeads, kSequence, kHeadDim};
  const Tensor q = device().empty(head_shape, DType::float32);
  const Tensor k = device().empty(head_shape, DType::float32);
  const Tensor v = device().empty(head_shape, DType::float32);
  const Tensor angles = rotates ? random_tensor({kSequence, kHeadDim / 2}, 2) : Tensor{};
  for (auto _ : state) split_heads(device(), qkv, angles, angles, q, k, v);
  rate(state, 0, bytes_of(2, qkv));
}
BENCHMARK(split_heads_forward)->ArgName("rope")->Arg(0)->Arg(1);

void cross_entropy(benchmark::State& state) {
  const Tensor logits = random_tensor({kSequence, kVocabulary}, 1);
  const Tensor targets = device().empty({kSequence}, DType::int32);
  for (int i = 0; i < kSequence; ++i) targets.data<std::int32_t>()[i] = i * 97;
  const Tensor max = device().empty({kSequence}, DType::float32);
  const Tensor sum = device().empty({kSequence}, DType::float32);
  const Tensor at_target = device().empty({kSequence}, DType::float32);
  for (auto _ : state) {
    cross_entropy_statistics(device(), logits, targets, 0, max, sum, at_target);
    cross_entropy_gradient(device(), logits, targets, 0, max, sum, 1.0, logits);
  }
  rate(state, 0, bytes_of(3, logits));
}
BENCHMARK(cross_entropy);

void adamw_step(benchmark::State& state) {
  const Shape shape{7'000'000};  // the parameters of a layer
  const Tensor g = random_tensor(shape, 1);
  const Tensor w = random_tensor(shape, 2);
  const Tensor m = device().zeros(shape, DType::float32);
  const Tensor v = device().zeros(shape, DType::float32);
  const AdamW options{.lr = 1e-4,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .eps = 1e-8,
                      .weight_decay = 0.1,
                      .bias_correction1 = 0.5,
                      .bias_correction2 = 0.5,
                      .gradient_scale = 1};
  for (auto _ : state) adamw(device(), options, g, w, m, v);
  rate(state, 0, bytes_of(7, g));
}
BENCHMARK(adamw_step);

void square_sum(benchmark::State& state) {
  const Tensor x = random_tensor({7'000'000}, 1);
  for (auto _ : state) {
    const Tensor words = device().zeros({ExactSum::kWords}, DType::int64);
    add_squares(device(), x, words);
    benchmark::DoNotOptimize(words.data<std::int64_t>()[0]);
  }
  rate(state, 0, bytes_of(1, x));
}
BENCHMARK(square_sum);

}  // namespace
}  // namespace cuboid::kernels

int main(int argc, char** argv) {
  if (std::getenv("OMP_NUM_THREADS") == nullptr) omp_set_num_threads(1);
  cuboid::kernels::register_linear();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
