// Parameters and gradients of replicas: initialisation that does not know the grid, buckets over the data axis, tied
// parameters, and norms that count each element once.
#include <atomic>
#include <cmath>
#include <map>

#include "cuboid/comm/ranks.h"
#include "cuboid/parallel/gradients.h"
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

/// All blocks on `stages` pipeline ranks: what one of them holds.
std::vector<StageBlocks> blocks_of(int stage, int stages) {
  const int blocks = kLayers + 2;
  return {{stage, stage * blocks / stages, (stage + 1) * blocks / stages}};
}

ParameterStore make_store(const Device& device, const ParameterTable& table, int tp_rank, int tp_size, int stage = 0,
                          int stages = 1) {
  return {device, table, blocks_of(stage, stages), tp_rank, tp_size};
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
  const auto padded = [](std::int64_t n) { return (n + 63) / 64 * 64 * 4; };
  std::int64_t values = 0;
  std::int64_t gradients = 0;
  for (const auto& info : table.rows()) {
    // The vocabulary's shards are uneven: each takes the space of the largest.
    const std::int64_t bytes = padded(shard_shape(info, 3, 4).elements());
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
  Work all_to_all_v(const Tensor& in, const std::vector<std::int64_t>& sent, const Tensor& out,
                    const std::vector<std::int64_t>& received) override {
    return inner_.all_to_all_v(in, sent, out, received);
  }
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

/// The whole gradient of each parameter, from the parts of all data-parallel ranks.
std::map<std::string, Values> gathered(const Device& device, const ParameterStore& store) {
  std::map<std::string, Values> all;
  for (const ParameterBucket& bucket : store.buckets()) {
    const Tensor whole = device.empty({bucket.layout.elements}, DType::float32);
    if (bucket.layout.parts > 1) {
      bucket.copies->all_gather(bucket.gradient_shard, whole).wait();
    } else {
      device.copy(bucket.gradient_shard, whole);
    }
    const Values values = test::values_of(whole);
    for (const ParameterPlace& place : bucket.layout.places) {
      const auto first = values.begin() + place.offset;
      all[place.info->name] = Values(first, first + place.shape.elements());
    }
  }
  return all;
}

TEST(GradientReduction, GivesTheBitsOfOneReductionWhateverTheOrderSizeAndStage) {
  const ParameterTable table = make_table();
  for (const int dp : {1, 2, 3}) {
    for (const int zero : {0, 1, 2, 3}) {
      for (const std::int64_t bucket_bytes : {1, 500, 1 << 20}) {
        run_ranks(dp, [&](RankContext& context) {
          ParameterStore store(context.device, table, blocks_of(0, 1), 0, 1, *context.world,
                               {.zero = zero, .bucket_bytes = bucket_bytes});
          GradientReduction reduction(context.device, store, 0);
          for (int step = 0; step < 3; ++step) {  // ready for the next step by itself
            store.zero_gradients();
            for (Parameter* p : store.all()) store.acquire_gradient(*p);
            fill_gradients(store, context.rank, step);
            std::map<std::string, Values> expected;
            for (const Parameter* p : store.all()) {
              const Tensor sum = context.device.clone(p->gradient);
              all_reduce_in_place(*context.world, sum);
              expected[p->info->name] = test::values_of(sum);
            }
            auto order = store.all();
            // As backward would; from the front; every rank from another place; and nobody says anything.
            if (step == 0) std::reverse(order.begin(), order.end());
            if (step == 1) std::rotate(order.begin(), order.begin() + 3 * context.rank, order.end());
            if (step < 2) {
              for (const Parameter* p : order) reduction.ready(*p, true);
            }
            reduction.finish(true);
            EXPECT_EQ(gathered(context.device, store), expected)
                << "dp " << dp << ", zero " << zero << ", buckets of " << bucket_bytes << " bytes, step " << step;
            for (const Parameter* p : store.all())
              EXPECT_EQ(p->gradient.defined(), zero < 2) << "whole gradients freed";
          }
        });
      }
    }
  }
}

TEST(GradientReduction, StartsBucketsAsTheyFillFromTheLastParameterOn) {
  const ParameterTable table = make_table();
  run_ranks(2, [&](RankContext& context) {
    CountingCommunicator counting(*context.world);
    // A bucket is at least this large; head and embedding, being tied, are alone in theirs.
    ParameterStore store(context.device, table, blocks_of(0, 1), 0, 1, counting, {.bucket_bytes = 800});
    GradientReduction reduction(context.device, store, 0);
    fill_gradients(store, context.rank, 0);
    const auto ready = [&](const char* name, bool last) { reduction.ready(*store.find(name), last); };
    ready("head", false);
    EXPECT_EQ(counting.all_reduces, 0) << "more micro-batches follow";
    ready("layer3.bias", true);
    ready("layer3.output", true);
    EXPECT_EQ(counting.all_reduces, 0) << "the bucket before it is not full";
    ready("head", true);
    EXPECT_EQ(counting.all_reduces, 2) << "head, and layer3's bias with its output";
    ready("layer3.qkv", true);
    EXPECT_EQ(counting.all_reduces, 3);
    ready("embedding", true);
    EXPECT_EQ(counting.all_reduces, 3) << "it is in the last bucket";
    reduction.finish(true);
    EXPECT_GT(counting.all_reduces, 4);
    const int a_step = counting.all_reduces;
    reduction.finish(true);
    EXPECT_EQ(counting.all_reduces, 2 * a_step);
  });
}

TEST(ParameterStore, ShardsWhatTheZeroStageSays) {
  const ParameterTable table = make_table(false);
  constexpr int kRanks = 3;
  for (const int zero : {0, 1, 2, 3}) {
    run_ranks(kRanks, [&](RankContext& context) {
      const ParameterOptions options{.zero = zero, .bucket_bytes = 1000};
      ParameterStore store(context.device, table, blocks_of(0, 1), 0, 1, *context.world, options);
      std::int64_t whole = 0;
      for (const ParameterBucket& bucket : store.buckets()) whole += 4 * bucket.layout.elements;
      const auto live = [&](Category category) { return context.device.account().live(category); };
      EXPECT_EQ(live(Category::parameters), zero < 3 ? whole : whole / kRanks);
      EXPECT_EQ(live(Category::gradients), zero < 2 ? whole : whole / kRanks);
      EXPECT_EQ(live(Category::optimizer), 0) << "float32 values are their own masters";
      // What is gathered, used and freed again is what was drawn, and costs communication memory meanwhile.
      store.initialize(3);
      ParameterStore one(Device(), table, blocks_of(0, 1), 0, 1);
      one.initialize(3);
      store.unshard(0);
      store.await_values(0);
      for (const Parameter* p : store.all()) {
        EXPECT_TRUE(test::same_bits(p->value, one.find(p->info->name)->value)) << p->info->name;
      }
      EXPECT_EQ(live(Category::communication), zero == 3 ? whole : 0);
      store.reshard(0);
      EXPECT_EQ(live(Category::communication), 0);
      // Each element is owned once.
      for (const Parameter* p : store.all()) {
        const Tensor count = context.device.zeros({1}, DType::int64);
        *count.data<std::int64_t>() = store.owned(*p).count;
        all_reduce_in_place(*context.world, count);
        EXPECT_EQ(*count.data<std::int64_t>(), (zero == 0 ? kRanks : 1) * p->info->shape.elements());
      }
    });
  }
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

TEST(GradientNorm, CountsEveryGlobalElementOnce) {
  const ParameterTable table = make_table();
  // Small integers: sums of squares are exact in any order.
  const auto gradient_of = [](const ParameterInfo& info) {
    Values made(index(info.shape.elements()));
    const auto key = static_cast<std::int64_t>(name_key(info.name) % 97);
    for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<double>((key + 31 * i) % 19) - 9;
    return made;
  };
  double expected = 0;
  for (const auto& info : table.rows()) {
    if (!info.tied_with.empty()) continue;
    for (const double g : gradient_of(info)) expected += g * g;
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
      EXPECT_EQ(gradient_norm(context.device, store, tensor, pipeline), std::sqrt(expected))
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
