// The trace against what it stands for: bytes against those that the same code allocates on the CPU, FLOPs against the
// formulas of the models' papers, and all ranks' shares against the whole.
#include <chrono>
#include <map>

#include <gtest/gtest.h>

#include "cuboid/comm/ranks.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/models/registry.h"
#include "cuboid/parallel/groups.h"

#include "src/plan/block_probe.h"
#include "tensors.h"

namespace cuboid {
namespace {

using Kind = TracedKernel::Kind;

// A small model of a family, sizes pairwise different; tp may be 1, 2 and 4, where key/value heads are copied.
ModelConfig small_model(const std::string& family) {
  ModelConfig c;
  c.name = c.family = family;
  c.layers = 3;
  c.hidden = 56;
  c.heads = 4;
  c.kv_heads = family == "gpt2" ? 4 : 2;
  c.head_dim = 14;
  c.ffn = 76;
  c.vocab = 131;
  c.positions = 96;
  c.attention_bias = c.attention_output_bias = c.mlp_bias = family == "gpt2";
  c.tied = family == "gpt2";
  if (family == "mistral") c.window = 37;
  if (family == "mistral") c.full_layers = 1;
  if (family == "mixtral") c.experts = 8;
  if (family == "mixtral") c.experts_per_token = 3;
  return c;
}

TraceOptions options_of(int tp, bool sequence_parallel, Recompute recompute, DType dtype) {
  TraceOptions options;
  options.tp = tp;
  options.sequence_parallel = sequence_parallel;
  options.recompute = recompute;
  options.dtype = dtype;
  options.micro_batch = 3;
  options.seq_len = 88;
  return options;
}

std::vector<TracedBlock> blocks_of(const ModelTrace& trace) {
  std::vector<TracedBlock> blocks = {trace.embedding};
  blocks.insert(blocks.end(), trace.layers.begin(), trace.layers.end());
  blocks.push_back(trace.head);
  return blocks;
}

// The blocks of every rank that works on the same samples, tensor ranks of a context rank together, run on the CPU.
std::vector<std::vector<TracedBlock>> run_on_cpu(const ModelConfig& model, const TraceOptions& options) {
  const Grid grid({{options.tp, options.cp, 1, 1, 1}}, Grid::kDefaultOrder);
  std::vector<std::vector<TracedBlock>> ranks(static_cast<std::size_t>(grid.world()));
  run_ranks(grid.world(), [&](RankContext& context) {
    const Groups groups(grid, *context.world);
    const auto alone = make_self_communicator(context.device, "ep, dp");
    BlockProbe probe(context.device, groups.axis(Axis::tp), *alone, groups.axis(Axis::cp), *alone,
                     kinds_of_layers(model), options);
    for (std::size_t i = 0; i < probe.blocks(); ++i) {
      ranks[static_cast<std::size_t>(context.rank)].push_back(probe.run(i));
    }
  });
  return ranks;
}

void expect_equal(const TracedBytes& traced, const TracedBytes& allocated, const std::string& what) {
  EXPECT_EQ(traced.activations, allocated.activations) << what << ": activations";
  EXPECT_EQ(traced.communication, allocated.communication) << what << ": communication";
  EXPECT_EQ(traced.workspace, allocated.workspace) << what << ": workspace";
}

void expect_equal(const TracedPass& traced, const TracedPass& ran, const std::string& what) {
  expect_equal(traced.peak, ran.peak, what);
  EXPECT_EQ(traced.peak_total, ran.peak_total) << what;
}

// On every rank.
void expect_traced_bytes(const ModelConfig& model, TraceOptions options) {
  const auto ranks = run_on_cpu(model, options);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    options.tp_rank = static_cast<int>(rank) % options.tp;
    const auto traced = blocks_of(trace_model(model, options));
    const auto& ran = ranks[rank];
    ASSERT_EQ(traced.size(), ran.size());
    for (std::size_t i = 0; i < ran.size(); ++i) {
      const std::string what = model.family + " tp " + std::to_string(options.tp) + " cp " +
                               std::to_string(options.cp) + " rank " + std::to_string(rank) +
                               (options.sequence_parallel ? " sp" : "") + " recompute " +
                               std::to_string(static_cast<int>(options.recompute)) + " " + name_of(options.dtype) +
                               " block " + std::to_string(i);
      expect_equal(traced[i].kept, ran[i].kept, what + " kept");
      expect_equal(traced[i].kept_after_input_gradient, ran[i].kept_after_input_gradient, what + " kept by I");
      expect_equal(traced[i].resident, ran[i].resident, what + " resident");
      expect_equal(traced[i].forward, ran[i].forward, what + " F");
      expect_equal(traced[i].backward, ran[i].backward, what + " B");
      expect_equal(traced[i].input_gradient, ran[i].input_gradient, what + " I");
      expect_equal(traced[i].weight_gradient, ran[i].weight_gradient, what + " W");
    }
  }
}

TEST(TracedBytes, OfContextRanksAreThoseTheCpuAllocates) {
  for (const char* family : {"gpt2", "mistral", "mixtral"}) {
    for (const Recompute recompute : {Recompute::none, Recompute::full}) {
      TraceOptions options = options_of(2, recompute == Recompute::none, recompute, DType::bfloat16);
      options.cp = recompute == Recompute::none ? 2 : 4;
      expect_traced_bytes(small_model(family), options);
    }
  }
}

TEST(TracedBytes, AreThoseTheCpuAllocates) {
  for (const std::string& family : model_families()) {
    const ModelConfig model = small_model(family);
    for (const int tp : {1, 2, 4}) {
      for (const bool sequence_parallel : {false, true}) {
        if (tp == 1 && sequence_parallel) continue;
        for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
          // All dtypes on two ranks, one each elsewhere.
          for (const DType dtype : {DType::float32, DType::bfloat16}) {
            if (tp != 2 && (dtype == DType::bfloat16) != (tp == 4)) continue;
            TraceOptions options = options_of(tp, sequence_parallel, recompute, dtype);
            options.dropout = tp == 2 ? 0.25 : 0;
            expect_traced_bytes(model, options);
          }
        }
      }
    }
  }
}

double sum_flops(const TracedPass& pass, TracedPhase phase, Kind kind) {
  double sum = 0;
  for (const TracedEvent& event : pass.events) {
    const auto* kernel = std::get_if<TracedKernel>(&event);
    if (kernel && kernel->phase == phase && kernel->kind == kind) sum += kernel->flops;
  }
  return sum;
}

double sum_flops(const TracedPass& pass, Kind kind) {
  double sum = 0;
  for (const auto phase : {TracedPhase::forward, TracedPhase::input_gradient, TracedPhase::weight_gradient}) {
    sum += sum_flops(pass, phase, kind);
  }
  return sum;
}

// Of the whole model's step on one micro-batch: forward, and both gradients.
TEST(TracedFlops, AreThoseOfThePapers) {
  struct Case {
    const char* model;
    double weights;  // that multiply activations: 12·L·C² + V·C for GPT-2; with SwiGLU and grouped heads for Llama
  };
  for (const Case& c :
       {Case{"gpt2", 12.0 * 12 * 768 * 768 + 50257.0 * 768},
        Case{"llama3.2-1b", 16 * (2048.0 * 2048 * 2 + 2 * 2048.0 * 512 + 3 * 2048.0 * 8192) + 128256.0 * 2048}}) {
    const ModelConfig model = load_model(c.model);
    TraceOptions options = options_of(1, false, Recompute::none, DType::bfloat16);
    options.seq_len = 1024;
    const ModelTrace trace = trace_model(model, options);
    const double tokens = 3.0 * 1024;
    const double attention =
        4.0 * static_cast<double>(model.layers * model.heads * model.head_dim) * 3 * 1024 * 1025 / 2;
    double products = 0;
    double scores = 0;
    for (const TracedBlock& block : blocks_of(trace)) {
      products += block.repeat * (sum_flops(block.forward, Kind::matmul) + sum_flops(block.backward, Kind::matmul));
      scores += block.repeat * sum_flops(block.forward, Kind::attention);
    }
    EXPECT_EQ(products, 3 * 2 * c.weights * tokens) << c.model;
    EXPECT_EQ(scores, attention) << c.model;
    EXPECT_EQ(2 * c.weights, flops_per_token(model, 1024).parameters) << c.model;
  }
}

TEST(TracedFlops, RecomputeAddsOneForward) {
  const ModelConfig model = small_model("llama");
  const auto layer = [&](Recompute recompute) {
    return trace_model(model, options_of(2, true, recompute, DType::float32)).layers.at(0);
  };
  const TracedBlock none = layer(Recompute::none);
  const TracedBlock full = layer(Recompute::full);
  EXPECT_EQ(flops(none.backward), model_flops(none.backward));
  EXPECT_EQ(flops(full.backward) - flops(none.backward), flops(none.forward));
  EXPECT_EQ(model_flops(full.backward), model_flops(none.backward));
  const TracedBlock selective = layer(Recompute::selective);
  EXPECT_EQ(flops(selective.backward), flops(none.backward)) << "nothing with a matrix product is computed again";
  EXPECT_GT(bytes_moved(selective.backward), bytes_moved(none.backward));
  EXPECT_LT(selective.kept.total(), none.kept.total());
  EXPECT_LT(full.kept.total(), selective.kept.total());
}

TEST(TracedPasses, OfInputAndWeightGradientsMakeUpBackward) {
  for (const std::string& family : model_families()) {
    const ModelTrace trace = trace_model(small_model(family), options_of(2, true, Recompute::none, DType::float32));
    const TracedBlock& layer = trace.layers.at(0);
    EXPECT_EQ(flops(layer.input_gradient) + flops(layer.weight_gradient), flops(layer.backward)) << family;
    // Apart, the head computes its logits twice.
    const double logits = sum_flops(trace.head.backward, TracedPhase::forward, Kind::matmul);
    EXPECT_EQ(flops(trace.head.input_gradient) + flops(trace.head.weight_gradient), flops(trace.head.backward) + logits)
        << family;
    EXPECT_EQ(sum_flops(trace.head.weight_gradient, TracedPhase::recompute, Kind::matmul), logits) << family;
  }
}

// Work of all ranks = work of one rank + stated redundancy.
TEST(Conservation, OfFlops) {
  for (const std::string& family : model_families()) {
    const ModelConfig model = small_model(family);
    for (const int tp : {2, 4}) {
      for (const bool sequence_parallel : {false, true}) {
        const auto whole = blocks_of(trace_model(model, options_of(1, false, Recompute::none, DType::float32)));
        std::vector<double> sums(whole.size());
        for (int rank = 0; rank < tp; ++rank) {
          TraceOptions options = options_of(tp, sequence_parallel, Recompute::none, DType::float32);
          options.tp_rank = rank;
          const auto share = blocks_of(trace_model(model, options));
          for (std::size_t i = 0; i < share.size(); ++i) sums[i] += flops(share[i].forward) + flops(share[i].backward);
        }
        // Ranks that share a key/value head all project it, three times over (forward and both gradients).
        const double copies = static_cast<double>(std::max<std::int64_t>(0, tp - model.kv_heads));
        const double redundant =
            3 * 2.0 * 88 * 3 * static_cast<double>(model.hidden) * 2 * static_cast<double>(model.head_dim) * copies;
        // All tensor ranks route the rows that they share.
        const double routers =
            sequence_parallel ? 0 : 3 * 2.0 * 88 * 3 * static_cast<double>(model.hidden * model.experts) * (tp - 1);
        for (std::size_t i = 0; i < whole.size(); ++i) {
          const bool is_layer = i > 0 && i + 1 < whole.size();
          EXPECT_EQ(sums[i], flops(whole[i].forward) + flops(whole[i].backward) + (is_layer ? redundant + routers : 0))
              << family << " tp " << tp << " block " << i;
        }
      }
    }
  }
}

std::map<std::string, double> bytes_by_operation(const TracedPass& pass) {
  std::map<std::string, double> sums;
  for (const TracedEvent& event : pass.events) {
    if (const auto* message = std::get_if<TracedCommunication>(&event))
      sums[name_of(message->operation)] += message->bytes;
  }
  return sums;
}

// Megatron-LM: two all-reduces of (T,B,C) forward and two backward; sequence parallelism makes each a reduce-scatter
// and a gather, and gathers the two inputs of column-split layers once more for their weight gradients.
TEST(Conservation, OfMessages) {
  const double boundary = 88 * 3 * 56 * 4;
  const ModelConfig model = small_model("gpt2");
  const auto plain = trace_model(model, options_of(2, false, Recompute::none, DType::float32)).layers.at(0);
  EXPECT_EQ(bytes_by_operation(plain.forward), (std::map<std::string, double>{{"all-reduce", 2 * boundary}}));
  EXPECT_EQ(bytes_by_operation(plain.backward), (std::map<std::string, double>{{"all-reduce", 2 * boundary}}));
  const auto split = trace_model(model, options_of(2, true, Recompute::none, DType::float32)).layers.at(0);
  EXPECT_EQ(bytes_by_operation(split.forward),
            (std::map<std::string, double>{{"all-gather", 2 * boundary}, {"reduce-scatter", 2 * boundary}}));
  EXPECT_EQ(bytes_by_operation(split.backward),
            (std::map<std::string, double>{{"all-gather", 4 * boundary}, {"reduce-scatter", 2 * boundary}}));
  const auto alone = trace_model(model, options_of(1, false, Recompute::none, DType::float32)).layers.at(0);
  EXPECT_TRUE(bytes_by_operation(alone.forward).empty() && bytes_by_operation(alone.backward).empty());
}

// Tokens are taken to be spread evenly. k copies of each cross the expert group there and back, and once more backward;
// numbers of rows for each expert cross first.
TEST(Conservation, OfTokensOnTheirWayToExperts) {
  const ModelConfig model = small_model("mixtral");
  TraceOptions options = options_of(1, false, Recompute::none, DType::float32);
  const auto alone = trace_model(model, options).layers.at(0);
  EXPECT_TRUE(bytes_by_operation(alone.forward).empty());
  const double copies = 88 * 3 * 3 * 56 * 4;
  for (const int ep : {2, 8}) {
    options.ep = ep;
    const auto layer = trace_model(model, options).layers.at(0);
    EXPECT_EQ(bytes_by_operation(layer.forward), (std::map<std::string, double>{{"all-to-all", 2 * copies + 8 * 8}}));
    EXPECT_EQ(bytes_by_operation(layer.backward), (std::map<std::string, double>{{"all-to-all", 2 * copies}}));
    EXPECT_EQ(sum_flops(layer.forward, Kind::matmul), sum_flops(alone.forward, Kind::matmul));
    EXPECT_EQ(layer.parameters.local_expert, 8 / ep * 3 * 56 * 76);
    EXPECT_EQ(layer.parameters.local - layer.parameters.local_expert,
              alone.parameters.local - alone.parameters.local_expert);
  }
}

// Every layer traced by itself, whatever its family says about kinds.
TEST(LayerKinds, AreAlikeWhereTheFamilySaysSo) {
  for (const std::string& family : model_families()) {
    const ModelConfig model = small_model(family);
    const TraceOptions options = options_of(2, true, Recompute::none, DType::bfloat16);
    const ModelTrace trace = trace_model(model, options);
    int layers = 0;
    for (const TracedBlock& block : trace.layers) layers += block.repeat;
    EXPECT_EQ(layers, model.layers) << family;
    for (int i = 0; i < model.layers; ++i) {
      const Device device = Device::meta();
      const auto tensor = make_meta_communicator(device, 0, 2, "tp", {});
      const auto other = make_meta_communicator(device, 0, 1, "ep, dp", {});
      BlockProbe probe(device, *tensor, *other, *other, *other, {{{i}}, model}, options);
      const TracedBlock alone = probe.run(1);
      const TracedBlock& kind = trace.layers[static_cast<std::size_t>(trace.kind_of_layer(i))];
      EXPECT_EQ(alone.kept, kind.kept) << family << " layer " << i;
      EXPECT_EQ(alone.backward.peak, kind.backward.peak) << family << " layer " << i;
      EXPECT_EQ(alone.parameters.local, kind.parameters.local) << family << " layer " << i;
    }
  }
}

TEST(LayerKinds, SeeTheirWindows) {
  const ModelTrace trace = trace_model(small_model("mistral"), options_of(1, false, Recompute::none, DType::float32));
  ASSERT_EQ(trace.layers.size(), 2U);
  EXPECT_EQ(trace.layers[1].layers, (std::vector<int>{1, 2}));
  // The first 37 queries see all before them, the others 37 keys each.
  const double pairs = 37 * 38 / 2.0 + (88 - 37) * 37;
  EXPECT_EQ(sum_flops(trace.layers[1].forward, Kind::attention), 4.0 * 14 * 4 * 3 * pairs);
  EXPECT_EQ(sum_flops(trace.layers[0].forward, Kind::attention), 4.0 * 14 * 4 * 3 * (88 * 89 / 2.0));
}

TEST(TracedParameters, AddUp) {
  for (const std::string& family : model_families()) {
    const ModelConfig model = small_model(family);
    const ModelTrace trace = trace_model(model, options_of(2, false, Recompute::none, DType::float32));
    EXPECT_EQ(trace.total_parameters, parameters_of(model).total()) << family;
  }
}

TEST(Trace, OfATrillionParametersTakesMilliseconds) {
  ModelConfig model = small_model("gpt2");
  model.layers = 128;
  model.hidden = 25600;
  model.heads = model.kv_heads = 160;
  model.head_dim = 160;
  model.ffn = 4 * 25600;
  model.vocab = 51200;
  model.positions = 2048;
  TraceOptions options = options_of(8, true, Recompute::selective, DType::bfloat16);
  options.seq_len = 2048;
  ModelTrace trace;
  double best = 1;
  for (int i = 0; i < 5; ++i) {  // the machine may be busy: the shortest counts
    const auto begin = std::chrono::steady_clock::now();
    trace = trace_model(model, options);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  EXPECT_NEAR(static_cast<double>(trace.total_parameters), 1.008e12, 0.001e12);
  EXPECT_LT(best, 0.02);
}

TEST(MetaDevice, HasNoData) {
  const Device device = Device::meta();
  const Tensor tensor = device.zeros({3, 5}, DType::float32, Category::gradients);
  EXPECT_EQ(device.account().live(Category::gradients), 60);
  EXPECT_THROW(tensor.data<float>(), std::logic_error);
  EXPECT_THROW(make_meta_communicator(Device(), 0, 2, "tp", {}), std::logic_error);
}

// A context rank computes its share of everything, attention too; keys and values travel in forward and again in
// backward, whose gradients come back as float32 sums.
TEST(Trace, ContextRanksShareOutTheWorkAndExchangeKeysAndValues) {
  const ModelConfig model = small_model("llama");
  TraceOptions options = options_of(1, false, Recompute::none, DType::bfloat16);
  const ModelTrace whole = trace_model(model, options);
  options.cp = 4;
  const ModelTrace part = trace_model(model, options);
  const TracedBlock& layer = part.layers.front();
  EXPECT_DOUBLE_EQ(flops(layer.forward), flops(whole.layers.front().forward) / 4);
  EXPECT_DOUBLE_EQ(flops(layer.backward), flops(whole.layers.front().backward) / 4);
  EXPECT_EQ(layer.output_bytes, whole.layers.front().output_bytes / 4);
  const double keys_and_values = 2.0 * static_cast<double>(options.micro_batch * options.seq_len) *
                                 static_cast<double>(model.kv_heads * model.head_dim);
  const auto messages = [](const TracedPass& pass) {
    std::vector<std::pair<Collective, double>> all;
    for (const TracedEvent& event : pass.events) {
      if (const auto* message = std::get_if<TracedCommunication>(&event); message && message->axis == Axis::cp) {
        all.emplace_back(message->operation, message->bytes);
      }
    }
    return all;
  };
  using Messages = std::vector<std::pair<Collective, double>>;
  EXPECT_EQ(messages(layer.forward), (Messages{{Collective::all_gather, 2 * keys_and_values}}));
  EXPECT_EQ(messages(layer.backward), (Messages{{Collective::all_gather, 2 * keys_and_values},
                                                {Collective::reduce_scatter, 4 * keys_and_values}}));
  EXPECT_EQ(messages(part.head.forward), Messages{});
}

}  // namespace
}  // namespace cuboid
