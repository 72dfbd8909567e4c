// Every tensor-parallel layer: its weights split, run on 1 to 6 ranks with and without sequence parallelism, and each
// rank's outputs and gradients compared with its part of what one rank computes in double.
#include <functional>
#include <limits>

#include "cuboid/comm/ranks.h"
#include "cuboid/parallel/gradients.h"
#include "cuboid/parallel/tensor_parallel.h"

#include "tensors.h"

namespace cuboid {
namespace {

using test::index;
using test::Values;

constexpr std::int64_t kT = 12, kB = 5;  // T divides by 1, 2, 3, 4 and 6

ParameterInfo parameter(std::string name, const Shape& shape, int split_dim = -1, std::vector<Piece> pieces = {}) {
  ParameterInfo info;
  info.name = std::move(name);
  info.shape = shape;
  info.split_dim = split_dim;
  info.pieces = std::move(pieces);
  return info;
}

/// How an activation (T,B,n) is laid out over the tensor ranks.
enum class Layout {
  whole,    ///< replicated, or cut along T under sequence parallelism
  columns,  ///< last dim cut evenly
};

/// A layer and what it maps to what.
struct LayerCase {
  std::string name;
  std::vector<ParameterInfo> parameters;
  std::int64_t in = 0, out = 0;  ///< last dims of input and output
  Layout input = Layout::whole, output = Layout::whole;
  std::vector<int> degrees;  ///< tensor-parallel degrees to run
  double terms = 0;          ///< longest chain of sums an output or gradient element comes from
  std::function<Var(Tape&, const TensorParallel&, const ParameterStore&, const Var&)> apply;
};

void PrintTo(const LayerCase& layer, std::ostream* out) {
  *out << layer.name;
}

/// The part of a global activation (T,B,n) that a rank holds.
Values part_of(const Values& global, std::int64_t n, Layout layout, const TensorParallel& tp) {
  const std::int64_t rank = tp.rank();
  const std::int64_t size = tp.size();
  Values part;
  if (layout == Layout::whole) {
    const std::int64_t rows = tp.splits_sequence() ? kT / size : kT;
    const std::int64_t first = tp.splits_sequence() ? rank * rows : 0;
    part.assign(global.begin() + first * kB * n, global.begin() + (first + rows) * kB * n);
    return part;
  }
  for (std::int64_t row = 0; row < kT * kB; ++row) {
    const auto begin = global.begin() + row * n + rank * (n / size);
    part.insert(part.end(), begin, begin + n / size);
  }
  return part;
}

Shape shape_of_part(std::int64_t n, Layout layout, const TensorParallel& tp) {
  if (layout == Layout::columns) return {kT, kB, n / tp.size()};
  return {tp.splits_sequence() ? kT / tp.size() : kT, kB, n};
}

/// A rank's elements of a global parameter.
Values shard_of(const Values& global, const ParameterInfo& info, int rank, int size) {
  Values shard(index(shard_shape(info, rank, size).elements()));
  for (const Run& run : shard_runs(info, rank, size)) {
    std::copy_n(global.begin() + run.global, run.count, shard.begin() + run.local);
  }
  return shard;
}

struct Results {
  Values output, input_gradient;
  std::vector<Values> gradients;
  double squares = 0;
};

/// Runs the layer on this rank, forward and backward from random output gradients.
Results run_layer(const LayerCase& layer, RankContext& context, bool sequence_parallel, DType dtype) {
  const Device& device = context.device;
  const TensorParallel tp{context.world, sequence_parallel};
  const ParameterTable table(layer.parameters);
  ParameterStore store(device, table, {{0, 0, 1}}, tp.rank(), tp.size(), {.dtype = dtype});
  TensorPartialGradients partial(device, table, store, *tp.comm, sequence_parallel);
  for (const Parameter* p : store.all()) {
    const Values global = test::random_values(p->info->name, p->info->shape.elements());
    test::assign(p->value, shard_of(global, *p->info, tp.rank(), tp.size()));
  }
  const Values x = test::random_values("x", kT * kB * layer.in);
  const Values dy = test::random_values("dy", kT * kB * layer.out);
  Tape tape(device);
  const Var input = tape.input(
      test::tensor_of(device, shape_of_part(layer.in, layer.input, tp), part_of(x, layer.in, layer.input, tp), dtype));
  const Var y = layer.apply(tape, tp, store, input);
  EXPECT_EQ(y.shape(), shape_of_part(layer.out, layer.output, tp));
  Results results;
  results.output = test::values_of(y.value());
  tape.input_gradient(y.slot(), test::tensor_of(device, y.shape(), part_of(dy, layer.out, layer.output, tp), dtype));
  tape.weight_gradient();
  partial.reduce();
  const Tensor dx = tape.gradient_of(input.slot());
  if (dx.defined()) results.input_gradient = test::values_of(dx);
  for (const Parameter* p : store.all()) results.gradients.push_back(test::values_of(p->gradient));
  const auto self = make_self_communicator(device);
  const double norm = gradient_norm(device, store, *tp.comm, *self);
  results.squares = norm * norm;
  return results;
}

class Layers : public testing::TestWithParam<LayerCase> {};

TEST_P(Layers, EqualOneRank) {
  const LayerCase& layer = GetParam();
  Results one;
  run_ranks(1, [&](RankContext& context) { one = run_layer(layer, context, false, DType::float64); });
  double squares = 0;
  for (const Values& gradient : one.gradients) {
    for (const double g : gradient) squares += g * g;
  }
  EXPECT_NEAR(one.squares, squares, 1e-12 * squares);

  for (const DType dtype : {DType::float64, DType::float32}) {
    const double eps = dtype == DType::float64 ? std::numeric_limits<double>::epsilon()
                                               : double{std::numeric_limits<float>::epsilon()};
    // A sum of n products of numbers below 1 is off by at most n·eps·n in any order (Higham, section 3.1).
    const double tolerance = layer.terms * layer.terms * eps;
    for (const int tp_size : layer.degrees) {
      for (const bool sequence_parallel : {false, true}) {
        const std::string what = std::string(name_of(dtype)) + ", tp " + std::to_string(tp_size) +
                                 (sequence_parallel ? ", sequence parallel" : "");
        run_ranks(tp_size, [&](RankContext& context) {
          const Results mine = run_layer(layer, context, sequence_parallel, dtype);
          const TensorParallel tp{context.world, sequence_parallel};
          const std::string where = what + ", rank " + std::to_string(tp.rank());
          test::expect_near_all(mine.output, part_of(one.output, layer.out, layer.output, tp), tolerance,
                                where + ": output");
          if (layer.in > 0) {
            test::expect_near_all(mine.input_gradient, part_of(one.input_gradient, layer.in, layer.input, tp),
                                  tolerance, where + ": input gradient");
          }
          for (std::size_t i = 0; i < layer.parameters.size(); ++i) {
            const ParameterInfo& info = layer.parameters[i];
            test::expect_near_all(mine.gradients[i], shard_of(one.gradients[i], info, tp.rank(), tp.size()), tolerance,
                                  where + ": gradient of " + info.name);
          }
          // Each element counted once: a copy too many would be a change of a few percent.
          EXPECT_NEAR(mine.squares, one.squares, 1e-4 * one.squares) << where;
        });
      }
    }
  }
}

LayerCase attention_case(const std::string& name, std::int64_t heads, std::int64_t kv_heads, std::vector<int> degrees) {
  constexpr std::int64_t kHeadDim = 4, kHidden = 10;
  const std::vector<Piece> pieces = {{.name = "q", .units = heads, .unit = kHeadDim},
                                     {.name = "k", .units = kv_heads, .unit = kHeadDim, .replicable = true},
                                     {.name = "v", .units = kv_heads, .unit = kHeadDim, .replicable = true}};
  const std::int64_t width = (heads + 2 * kv_heads) * kHeadDim;
  return {
      .name = name,
      .parameters = {parameter("qkv.weight", {width, kHidden}, 0, pieces), parameter("qkv.bias", {width}, 0, pieces),
                     parameter("output.weight", {kHidden, heads * kHeadDim}, 1, {{.units = heads, .unit = kHeadDim}})},
      .in = kHidden,
      .out = kHidden,
      .degrees = std::move(degrees),
      .terms = static_cast<double>(heads * kHeadDim * kT * kB) / 4,
      .apply = [=](Tape& tape, const TensorParallel& tp, const ParameterStore& store, const Var& x) {
        const Var qkv = column_linear(tape, tp, x, *store.find("qkv.weight"), store.find("qkv.bias"));
        const ops::RopeTables rope =
            ops::rope_tables(tape.device(), {1.0, 0.2}, {}, kT, store.all().front()->value.dtype());
        const std::int64_t local = heads / tp.size();
        const kernels::Dropout mask{.p = 0.3, .key = 5, .first_sample = 3, .first_head = tp.rank() * local};
        const ops::AttentionShape shape{local, std::max<std::int64_t>(1, kv_heads / tp.size()), kHeadDim};
        const Var context = ops::attention(tape, qkv, shape, rope.cos, rope.sin, mask);
        return row_linear(tape, tp, context, *store.find("output.weight"), nullptr);
      }};
}

Tensor tokens(const Device& device, std::int64_t vocabulary) {
  std::vector<std::int32_t> ids(index(kT * kB));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>((7 * i + i / 3) % index(vocabulary));
  return test::tokens_of(device, {kT, kB}, ids);
}

std::vector<LayerCase> layer_cases() {
  constexpr std::int64_t kVocabulary = 37;  // prime: no degree divides it
  const std::vector<int> all = {1, 2, 3, 4};
  return {
      {.name = "column_linear",
       .parameters = {parameter("weight", {24, 14}, 0, {{.units = 24}}), parameter("bias", {24}, 0, {{.units = 24}})},
       .in = 14,
       .out = 24,
       .output = Layout::columns,
       .degrees = all,
       .terms = kT * kB,
       .apply = [](Tape& t, const TensorParallel& tp, const ParameterStore& s,
                   const Var& x) { return column_linear(t, tp, x, *s.find("weight"), s.find("bias")); }},
      {.name = "row_linear",
       .parameters = {parameter("weight", {22, 36}, 1, {{.units = 36}}), parameter("bias", {22})},
       .in = 36,
       .out = 22,
       .input = Layout::columns,
       .degrees = all,
       .terms = kT * kB,
       .apply = [](Tape& t, const TensorParallel& tp, const ParameterStore& s,
                   const Var& x) { return row_linear(t, tp, x, *s.find("weight"), s.find("bias")); }},
      {.name = "row_linear_without_bias",
       .parameters = {parameter("weight", {22, 36}, 1, {{.units = 36}})},
       .in = 36,
       .out = 22,
       .input = Layout::columns,
       .degrees = {3},
       .terms = kT * kB,
       .apply = [](Tape& t, const TensorParallel& tp, const ParameterStore& s,
                   const Var& x) { return row_linear(t, tp, x, *s.find("weight"), nullptr); }},
      // The MLP of a transformer between two uses of its input: norm, split product, split product, residual.
      {.name = "mlp_block",
       .parameters = {parameter("norm", {14}), parameter("up.weight", {48, 14}, 0, {{.units = 24}, {.units = 24}}),
                      parameter("down.weight", {14, 24}, 1, {{.units = 24}}), parameter("down.bias", {14})},
       .in = 14,
       .out = 14,
       .degrees = all,
       .terms = kT * kB * 14,
       .apply =
           [](Tape& t, const TensorParallel& tp, const ParameterStore& s, const Var& x) {
             Var h = ops::rms_norm(t, x, *s.find("norm"), 1e-2);
             h = column_linear(t, tp, h, *s.find("up.weight"), nullptr);
             h = ops::swiglu(t, h);
             h = row_linear(t, tp, h, *s.find("down.weight"), s.find("down.bias"));
             return ops::add(t, x, h);
           }},
      {.name = "vocabulary_parallel_embedding",
       .parameters = {parameter("table", {kVocabulary, 10}, 0, {{.units = kVocabulary, .uneven = true}})},
       .out = 10,
       .degrees = all,
       .terms = kT * kB,
       .apply =
           [](Tape& t, const TensorParallel& tp, const ParameterStore& s, const Var&) {
             return vocabulary_parallel_embedding(t, tp, tokens(t.device(), kVocabulary), *s.find("table"),
                                                  even_share(kVocabulary, tp.rank(), tp.size()).begin);
           }},
      attention_case("attention", 12, 4, {1, 2, 4}),
      attention_case("attention_with_replicated_kv_heads", 12, 2, {4, 6}),
      attention_case("attention_with_one_kv_head", 6, 1, {2, 3}),
  };
}

INSTANTIATE_TEST_SUITE_P(TensorParallel, Layers, testing::ValuesIn(layer_cases()),
                         [](const auto& layer) { return layer.param.name; });

TEST(RowLinear, AddsItsBiasOnceAndNotOncePerRank) {
  const ParameterTable table({parameter("weight", {3, 8}, 1, {{.units = 8}}), parameter("bias", {3})});
  for (const bool sequence_parallel : {false, true}) {
    run_ranks(4, [&](RankContext& context) {
      const TensorParallel tp{context.world, sequence_parallel};
      ParameterStore store(context.device, table, {{0, 0, 1}}, tp.rank(), tp.size());
      test::assign(store.find("weight")->value, Values(6, 0.0));
      test::assign(store.find("bias")->value, Values(3, 1.0));
      Tape tape(context.device);
      const Var x = tape.input(test::tensor_of(context.device, {4, 1, 2}, Values(8, 5.0), DType::float32));
      const Var y = row_linear(tape, tp, x, *store.find("weight"), store.find("bias"));
      for (const double value : test::values_of(y.value())) EXPECT_EQ(value, 1);
      for (const double value : test::values_of(store.find("bias")->value)) EXPECT_EQ(value, 1);
    });
  }
}

/// An output matrix that passes its input on: rows first … first + count - 1 of the identity.
struct IdentityHead {
  IdentityHead(const Device& device, std::int64_t vocabulary, std::int64_t first, std::int64_t count, DType dtype) {
    Values rows(static_cast<std::size_t>(count * vocabulary));
    for (std::int64_t i = 0; i < count; ++i) rows[static_cast<std::size_t>(i * vocabulary + first + i)] = 1;
    parameter.value = test::tensor_of(device, {count, vocabulary}, rows, dtype);
    parameter.gradient = device.zeros({count, vocabulary}, dtype);
  }
  Parameter parameter;
};

TEST(CrossEntropy, EqualsTheDefinitionOnAnySplit) {
  constexpr std::int64_t kVocabulary = 37, kRows = 4, kBatch = 3;
  constexpr double kFactor = 0.125;
  const Values logits = test::random_values("logits", kRows * kBatch * kVocabulary);
  std::vector<std::int32_t> targets = {0, 36, 17, 18, kernels::kIgnore, 9, 27, 28, 12, 24, kernels::kIgnore, 1};
  Values losses(kBatch, 0.0);
  Values gradient(logits.size(), 0.0);
  for (std::int64_t row = 0; row < kRows * kBatch; ++row) {
    const std::int32_t target = targets[index(row)];
    if (target == kernels::kIgnore) continue;
    double sum = 0;
    for (std::int64_t v = 0; v < kVocabulary; ++v) sum += std::exp(logits[index(row * kVocabulary + v)]);
    losses[index(row % kBatch)] += std::log(sum) - logits[index(row * kVocabulary + target)];
    for (std::int64_t v = 0; v < kVocabulary; ++v) {
      const double softmax = std::exp(logits[index(row * kVocabulary + v)]) / sum;
      gradient[index(row * kVocabulary + v)] = (softmax - (v == target ? 1 : 0)) * kFactor;
    }
  }
  for (const int size : {1, 2, 3, 4, 8}) {
    run_ranks(size, [&](RankContext& context) {
      const TensorParallel tp{context.world};
      const auto [first, count] = even_share(kVocabulary, tp.rank(), size);
      for (const bool split : {false, true}) {  // B, or I and W
        IdentityHead head(context.device, kVocabulary, first, count, DType::float64);
        Tape tape(context.device);
        const Var x = tape.input(test::tensor_of(context.device, {kRows, kBatch, kVocabulary}, logits));
        const Loss loss = vocabulary_parallel_linear_cross_entropy(
            tape, tp, x, head.parameter, test::tokens_of(context.device, {kRows, kBatch}, targets), first, kFactor);
        const Tensor seed = context.device.zeros({1}, DType::float64);
        if (split) {
          tape.input_gradient(loss.seed.slot(), seed);
          tape.weight_gradient();
        } else {
          tape.backward(loss.seed.slot(), seed);
        }
        const std::string where = "tp " + std::to_string(size) + ", rank " + std::to_string(tp.rank());
        test::expect_near_all(test::values_of(loss.per_sequence), losses, 1e-13, where + ": loss");
        // Through an identity, the input's gradient is that of the logits: softmax, minus one at the target, and
        // nothing in ignored rows.
        test::expect_near_all(test::values_of(tape.gradient_of(x.slot())), gradient, 1e-15, where + ": gradient");
        Values weights(static_cast<std::size_t>(count * kVocabulary));
        for (std::int64_t row = 0; row < kRows * kBatch; ++row) {
          for (std::int64_t v = 0; v < count; ++v) {
            for (std::int64_t c = 0; c < kVocabulary; ++c) {
              weights[static_cast<std::size_t>(v * kVocabulary + c)] +=
                  gradient[static_cast<std::size_t>(row * kVocabulary + first + v)] *
                  logits[static_cast<std::size_t>(row * kVocabulary + c)];
            }
          }
        }
        test::expect_near_all(test::values_of(head.parameter.gradient), weights, 1e-13, where + ": weight gradient");
        Tape evaluation(context.device, Tape::Mode::forward_only);
        const Loss same = vocabulary_parallel_linear_cross_entropy(
            evaluation, tp, Tape::constant(x.value()), head.parameter,
            test::tokens_of(context.device, {kRows, kBatch}, targets), first, kFactor);
        EXPECT_TRUE(test::same_bits(same.per_sequence, loss.per_sequence)) << "evaluation gives the same loss";
      }
    });
  }
}

TEST(CrossEntropy, OfUniformLogitsIsTheLogarithmOfTheVocabulary) {
  constexpr std::int64_t kVocabulary = 50257;
  for (const int size : {1, 2, 4, 8}) {
    run_ranks(size, [&](RankContext& context) {
      const TensorParallel tp{context.world};
      const auto [first, count] = even_share(kVocabulary, tp.rank(), size);
      Tape tape(context.device, Tape::Mode::forward_only);
      Parameter zeros;
      zeros.value = context.device.zeros({count, 3}, DType::float32);
      const Loss loss = vocabulary_parallel_linear_cross_entropy(
          tape, tp, Tape::constant(context.device.zeros({1, 2, 3}, DType::float32)), zeros,
          test::tokens_of(context.device, {1, 2}, {50256, kernels::kIgnore}), first, 1.0);
      EXPECT_NEAR(loss.per_sequence.data<double>()[0], 10.824905, 5e-7) << "tp " << size;
      EXPECT_EQ(loss.per_sequence.data<double>()[1], 0) << "its only target is left out";
    });
  }
}

// Large logits: the maximum of all ranks, not of each, is taken out before exp.
TEST(CrossEntropy, DoesNotOverflow) {
  run_ranks(2, [](RankContext& context) {
    const TensorParallel tp{context.world};
    Tape tape(context.device);
    IdentityHead head(context.device, 4, 2 * context.rank, 2, DType::float32);
    const Var x = tape.input(test::tensor_of(context.device, {1, 1, 4}, {-300, -300, 300, 300}, DType::float32));
    const Loss loss = vocabulary_parallel_linear_cross_entropy(
        tape, tp, x, head.parameter, test::tokens_of(context.device, {1, 1}, {0}), 2 * context.rank, 1.0);
    tape.backward(loss.seed.slot(), context.device.zeros({1}, DType::float64));
    EXPECT_NEAR(loss.per_sequence.data<double>()[0], 600 + std::log(2.0), 1e-4);
    test::expect_near_all(test::values_of(tape.gradient_of(x.slot())), Values{-1, 0, 0.5, 0.5}, 1e-6, "gradient");
  });
}

}  // namespace
}  // namespace cuboid
