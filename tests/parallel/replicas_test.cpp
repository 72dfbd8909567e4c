// Parameters and gradients of replicas: initialisation that does not know the grid, buckets over the data axis, tied
// parameters, and norms that count each element once.
#include <atomic>

#include "cuboid/comm/ranks.h"
#include "cuboid/parallel/data_parallel.h"
#include "cuboid/parallel/groups.h"

#include "tensors.h"

namespace cuboid {
namespace {

using test::index;
using test::Values;

constexpr std::int64_t kVocabulary = 37, kHidden = 6, kHeads = 8, kKvHeads = 2, kHeadDim = 3;
constexpr int kLayers = 3;

/// Every kind of parameter: uneven, replicated, fused with replicable pieces, cut along dim 1, tied.
ParameterTable make_table(bool tied = true) {
  const std::vector<Piece> vocabulary = {{.units = kVocabulary, .uneven = true}};
  std::vector<ParameterInfo> rows;
  const auto add = [&](std::string name, Shape shape, int block, int split_dim, std::vector<Piece> pieces,
                       Initializer initializer) {
    ParameterInfo& info = rows.emplace_back();
    info.name = std::move(name);
    info.shape = std::move(shape);
    info.block = block;
    info.split_dim = split_dim;
    info.pieces = std::move(pieces);
    info.initializer = initializer;
    info.init_std = 0.5;
  };
  add("embedding", {kVocabulary, kHidden}, 0, 0, vocabulary, Initializer::normal);
  for (int i = 1; i <= kLayers; ++i) {
    const std::string layer = "layer" + std::to_string(i) + ".";
    add(layer + "norm", {kHidden}, i, -1, {}, Initializer::ones);
    add(layer + "qkv", {(kHeads + 2 * kKvHeads) * kHeadDim, kHidden}, i, 0,
        {{.name = "q", .units = kHeads, .unit = kHeadDim},
         {.name = "k", .units = kKvHeads, .unit = kHeadDim, .replicable = true},
         {.name = "v", .units = kKvHeads, .unit = kHeadDim, .replicable = true}},
        Initializer::normal);
    add(layer + "output", {kHidden, kHeads * kHeadDim}, i, 1, {{.units = kHeads, .unit = kHeadDim}},
        Initializer::normal);
    add(layer + "bias", {kHidden}, i, -1, {}, Initializer::zeros);
  }
  add("head", {kVocabulary, kHidden}, kLayers + 1, 0, vocabulary, Initializer::normal);
  if (tied) rows.back().tied_with = "embedding";
  return ParameterTable(std::move(rows));
}

/// All blocks on `stages` pipeline ranks: the stage of one of them.
ParameterStore make_store(const Device& device, const ParameterTable& table, int tp_rank, int tp_size, int stage = 0,
                          int stages = 1, DType dtype = DType::float32) {
  const int blocks = kLayers + 2;
  const ParameterStore::StageBlocks mine{stage, stage * blocks / stages, (stage + 1) * blocks / stages};
  return {device, table, {mine}, tp_rank, tp_size, dtype};
}

TEST(ParameterStore, InitialisesEachElementAlikeOnAnyGrid) {
  const Device device;
  const ParameterTable table = make_table(false);
  ParameterStore one = make_store(device, table, 0, 1);
  one.initialize(42);
  for (const int tp : {2, 4, 8}) {
    for (const int pp : {1, 2, 5}) {
      std::size_t found = 0;
      for (int rank = 0; rank < tp; ++rank) {
        for (int stage = 0; stage < pp; ++stage) {
          ParameterStore part = make_store(device, table, rank, tp, stage, pp);
          part.initialize(42);
          found += part.all().size();
          for (const Parameter* p : part.all()) {
            const float* expected = one.find(p->info->name)->value.data<float>();
            for (const cuboid::Run& run : shard_runs(*p->info, rank, tp)) {
              ASSERT_EQ(std::memcmp(p->value.data<float>() + run.local, expected + run.global, index(run.count) * 4), 0)
                  << p->info->name << ", tp rank " << rank << " of " << tp << ", stage " << stage << " of " << pp;
            }
          }
        }
      }
      EXPECT_EQ(found, table.rows().size() * index(tp)) << "every parameter on one stage";
    }
  }
}

TEST(ParameterStore, InitialValuesAreWhatTheTableSays) {
  const Device device;
  const ParameterTable table = make_table(false);
  ParameterStore store = make_store(device, table, 0, 1);
  store.initialize(42);
  for (const double v : test::values_of(store.find("layer1.norm")->value)) EXPECT_EQ(v, 1);
  for (const double v : test::values_of(store.find("layer1.bias")->value)) EXPECT_EQ(v, 0);
  const Values head = test::values_of(store.find("head")->value);
  double mean = 0;
  double square = 0;
  for (const double v : head) {
    mean += v / static_cast<double>(head.size());
    square += v * v / static_cast<double>(head.size());
  }
  // 222 numbers of deviation 0.5: four standard errors of the mean (0.034) and of the variance (0.024).
  EXPECT_NEAR(mean, 0, 0.14);
  EXPECT_NEAR(square, 0.25, 0.1);
  EXPECT_NE(head, test::values_of(store.find("embedding")->value)) << "another name draws other numbers";
  ParameterStore other = make_store(device, table, 0, 1);
  other.initialize(43);
  EXPECT_NE(head, test::values_of(other.find("head")->value)) << "another seed draws other numbers";
}

TEST(ParameterStore, TiedParametersShareValuesOrStartEqual) {
  const Device device;
  const ParameterTable table = make_table();
  ParameterStore one = make_store(device, table, 0, 1);
  one.initialize(7);
  EXPECT_TRUE(one.shares_values(*one.find("head")));
  EXPECT_FALSE(one.shares_values(*one.find("embedding")));
  EXPECT_EQ(one.find("head")->value.raw(), one.find("embedding")->value.raw());
  EXPECT_NE(one.find("head")->gradient.raw(), one.find("embedding")->gradient.raw());

  ParameterStore last = make_store(device, table, 0, 1, 1, 2);
  last.initialize(7);
  EXPECT_EQ(last.find("embedding"), nullptr);
  EXPECT_FALSE(last.shares_values(*last.find("head")));
  EXPECT_TRUE(test::same_bits(last.find("head")->value, one.find("embedding")->value));
}

TEST(ParameterStore, CountsItsMemoryAndZeroesItsGradients) {
  const Device device;
  const ParameterTable table = make_table();
  ParameterStore store = make_store(device, table, 1, 4);
  const auto padded = [](std::int64_t n) { return (n + 15) / 16 * 16 * 4; };
  std::int64_t values = 0;
  std::int64_t gradients = 0;
  for (const auto& info : table.rows()) {
    const std::int64_t bytes = padded(shard_shape(info, 1, 4).elements());
    values += info.tied_with.empty() ? bytes : 0;
    gradients += bytes;
  }
  EXPECT_EQ(device.account().live(Category::parameters), values);
  EXPECT_EQ(device.account().live(Category::gradients), gradients);
  for (Parameter* p : store.all()) test::assign(p->gradient, Values(index(p->gradient.elements()), 3.0));
  store.zero_gradients();
  for (const Parameter* p : store.all()) {
    for (const double g : test::values_of(p->gradient)) EXPECT_EQ(g, 0);
  }
}

/// Passes everything on to another communicator and counts all-reduces.
class CountingCommunicator final : public Communicator {
 public:
  explicit CountingCommunicator(Communicator& inner)
      : Communicator(inner.rank(), inner.size(), "counting"), inner_(inner) {}
  int all_reduces = 0;

  Work all_reduce(const Tensor& in, const Tensor& out, ReduceOp op) override {
    ++all_reduces;
    return inner_.all_reduce(in, out, op);
  }
  Work reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op) override {
    return inner_.reduce_scatter(in, out, op);
  }
  Work all_gather(const Tensor& in, const Tensor& out) override { return inner_.all_gather(in, out); }
  Work all_to_all(const Tensor& in, const Tensor& out) override { return inner_.all_to_all(in, out); }
  Work broadcast(const Tensor& tensor, int root) override { return inner_.broadcast(tensor, root); }
  void barrier() override { inner_.barrier(); }
  Work send(Tensor tensor, int to, int tag) override { return inner_.send(std::move(tensor), to, tag); }
  Incoming recv(Shape shape, DType dtype, int from, int tag) override {
    return inner_.recv(std::move(shape), dtype, from, tag);
  }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    return inner_.split(color, key, name);
  }

 private:
  Communicator& inner_;
};

void fill_gradients(ParameterStore& store, int rank, int step) {
  for (Parameter* p : store.all()) {
    const std::string name = p->info->name + " " + std::to_string(rank) + " " + std::to_string(step);
    test::assign(p->gradient, test::random_values(name, p->gradient.elements()));
  }
}

TEST(GradientBuckets, GiveTheBitsOfOneReductionWhateverTheOrderAndSize) {
  const ParameterTable table = make_table();
  for (const int dp : {1, 2, 3}) {
    for (const std::int64_t bucket_bytes : {1, 500, 1 << 20}) {
      run_ranks(dp, [&](RankContext& context) {
        ParameterStore store = make_store(context.device, table, 0, 1);
        GradientBuckets buckets(store.stages().front(), *context.world, bucket_bytes);
        for (int step = 0; step < 3; ++step) {  // buckets are ready for the next step by themselves
          fill_gradients(store, context.rank, step);
          const Tensor expected = context.device.clone(store.stages().front().gradients);
          all_reduce_in_place(*context.world, expected);
          auto order = store.all();
          // As backward would; from the front; every rank from another place; and nobody says anything.
          if (step == 0) std::reverse(order.begin(), order.end());
          if (step == 1) std::rotate(order.begin(), order.begin() + 3 * context.rank, order.end());
          if (step < 2) {
            for (const Parameter* p : order) buckets.ready(*p);
          }
          buckets.finish();
          EXPECT_TRUE(test::same_bits(store.stages().front().gradients, expected))
              << "dp " << dp << ", buckets of " << bucket_bytes << " bytes, step " << step;
        }
      });
    }
  }
}

TEST(GradientBuckets, StartAsTheyFillFromTheLastParameterOn) {
  const ParameterTable table = make_table();
  run_ranks(2, [&](RankContext& context) {
    CountingCommunicator counting(*context.world);
    ParameterStore store = make_store(context.device, table, 0, 1);
    // A bucket is at least this large: head alone (888 bytes); layer3's bias, output and qkv …
    GradientBuckets buckets(store.stages().front(), counting, 800);
    fill_gradients(store, context.rank, 0);
    const auto ready = [&](const char* name) { buckets.ready(*store.find(name)); };
    ready("layer3.bias");
    ready("layer3.output");
    EXPECT_EQ(counting.all_reduces, 0) << "the bucket before it is not full";
    ready("head");
    EXPECT_EQ(counting.all_reduces, 1) << "the first bucket is on its way";
    ready("layer3.qkv");
    EXPECT_EQ(counting.all_reduces, 2);
    ready("embedding");
    EXPECT_EQ(counting.all_reduces, 2) << "it is in the last bucket";
    buckets.finish();
    EXPECT_GT(counting.all_reduces, 3);
    const int a_step = counting.all_reduces;
    buckets.finish();
    EXPECT_EQ(counting.all_reduces, 2 * a_step);
  });
}

TEST(TiedGradients, AreTheSumOfBothUsesOnOneStageAndOverTwo) {
  const ParameterTable table = make_table();
  const auto fill = [](ParameterStore& store) {
    for (Parameter* p : store.all()) {
      test::assign(p->gradient, test::random_values(p->info->name, p->gradient.elements()));
    }
  };
  const Device device;
  ParameterStore one = make_store(device, table, 0, 1);
  fill(one);
  add_tied_gradients(device, table, one, nullptr);
  const auto embedding = test::random_values("embedding", kVocabulary * kHidden);
  const auto head = test::random_values("head", kVocabulary * kHidden);
  const float* sum = one.find("embedding")->gradient.data<float>();
  for (std::size_t i = 0; i < embedding.size(); ++i) {
    ASSERT_EQ(sum[i], static_cast<float>(embedding[i]) + static_cast<float>(head[i]));
  }
  EXPECT_TRUE(test::same_bits(one.find("head")->gradient, one.find("embedding")->gradient));

  run_ranks(3, [&](RankContext& context) {  // the middle stage holds neither
    const StageChannels channels(*context.world, {0, 1, 2});
    EXPECT_EQ(channels.embedding() != nullptr, context.rank != 1);
    ParameterStore store = make_store(context.device, table, 0, 1, context.rank, 3);
    fill(store);
    add_tied_gradients(context.device, table, store, channels.embedding());
    for (const char* name : {"embedding", "head"}) {
      if (const Parameter* p = store.find(name)) {
        EXPECT_TRUE(test::same_bits(p->gradient, one.find("embedding")->gradient)) << "the same bits as on one stage";
      }
    }
  });
}

TEST(GradientSquares, CountEveryGlobalElementOnce) {
  const ParameterTable table = make_table();
  // Small integers: sums of squares are exact in any order.
  const auto gradient_of = [](const ParameterInfo& info) {
    Values made(index(info.shape.elements()));
    const auto key = static_cast<std::int64_t>(name_key(info.name) % 97);
    for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<double>((key + 31 * i) % 19) - 9;
    return made;
  };
  std::vector<double> expected;
  for (const auto& info : table.rows()) {
    double sum = 0;
    for (const double g : gradient_of(info)) sum += g * g;
    expected.push_back(info.tied_with.empty() ? sum : 0);
  }
  struct Degrees {
    int tp, pp;
  };
  for (const auto [tp, pp] :
       {Degrees{1, 1}, Degrees{2, 1}, Degrees{4, 1}, Degrees{8, 1}, Degrees{1, 3}, Degrees{4, 2}}) {
    run_ranks(tp * pp, [&](RankContext& context) {
      const Groups groups(Grid({{tp, 1, 1, 1, pp}}, Grid::kDefaultOrder), *context.world);
      Communicator& tensor = groups.axis(Axis::tp);
      Communicator& pipeline = groups.axis(Axis::pp);
      ParameterStore store = make_store(context.device, table, tensor.rank(), tp, pipeline.rank(), pp);
      for (Parameter* p : store.all()) {
        const Values global = gradient_of(*p->info);
        for (const cuboid::Run& run : shard_runs(*p->info, tensor.rank(), tp)) {
          std::copy_n(global.begin() + run.global, run.count, p->gradient.data<float>() + run.local);
        }
      }
      EXPECT_EQ(gradient_squares(context.device, table, store, tensor, pipeline), expected)
          << "tp " << tp << ", pp " << pp << ", rank " << context.rank;
    });
  }
}

TEST(TensorPartialGradients, AddUpWhatRanksSawInParts) {
  const ParameterTable table = make_table(false);
  for (const bool sequence_parallel : {false, true}) {
    run_ranks(8, [&](RankContext& context) {
      ParameterStore store = make_store(context.device, table, context.rank, 8);
      TensorPartialGradients partial(context.device, table, store, *context.world, sequence_parallel);
      for (Parameter* p : store.all()) {
        test::assign(p->gradient, Values(index(p->gradient.elements()), 1.0 + context.rank));
      }
      partial.reduce();
      const auto expect_all = [&](const char* name, std::int64_t begin, std::int64_t count, double value) {
        const Tensor rows = store.find(name)->gradient.narrow(begin, count);
        for (const double g : test::values_of(rows)) {
          EXPECT_EQ(g, value) << name << ", rank " << context.rank << (sequence_parallel ? ", sequence parallel" : "");
        }
      };
      const double own = 1.0 + context.rank;
      // Replicated parameters: each rank has the whole gradient, or that of its part of the sequence: 1 + … + 8.
      expect_all("layer1.norm", 0, kHidden, sequence_parallel ? 36 : own);
      expect_all("layer3.bias", 0, kHidden, sequence_parallel ? 36 : own);
      // One query head a rank; each key and value head on four ranks: 1 + 2 + 3 + 4, and 5 + 6 + 7 + 8.
      expect_all("layer2.qkv", 0, kHeadDim, own);
      expect_all("layer2.qkv", kHeadDim, 2 * kHeadDim, context.rank < 4 ? 10 : 26);
      expect_all("layer2.output", 0, kHidden, own);
      expect_all("embedding", 0, 4, own);
    });
  }
}

}  // namespace
}  // namespace cuboid
