// Hugging Face weights into shards: every element where it belongs, on any grid; and what a folder must hold.
#include "cuboid/train/weights.h"

#include <map>
#include <set>

#include "formats/files.h"
#include "tensors.h"

namespace cuboid {
namespace {

using test::index;
using test::TemporaryFolder;

struct Stored {
  Shape shape;
  std::vector<float> values;
};
using StoredTensors = std::map<std::string, Stored>;

ModelConfig gpt2_config() {
  ModelConfig c;
  c.family = "gpt2";
  c.layers = 2;
  c.hidden = 12;
  c.heads = c.kv_heads = 4;
  c.head_dim = 3;
  c.ffn = 20;
  c.vocab = 29;
  c.positions = 7;
  c.tied = c.attention_bias = c.attention_output_bias = c.mlp_bias = true;
  return c;
}

/// Grouped heads that are neither as many as query heads nor as wide as the hidden size says.
ModelConfig llama_config() {
  ModelConfig c;
  c.family = "llama";
  c.layers = 2;
  c.hidden = 10;
  c.heads = 8;
  c.kv_heads = 2;
  c.head_dim = 4;
  c.ffn = 24;
  c.vocab = 31;
  c.positions = 64;
  c.attention_bias = c.attention_output_bias = c.mlp_bias = true;
  return c;
}

/// Distinct numbers, exact in float32: which tensor, and which element of it.
Stored numbered(int tensor, Shape shape) {
  Stored made{std::move(shape), {}};
  made.values.resize(index(made.shape.elements()));
  for (std::size_t i = 0; i < made.values.size(); ++i) {
    made.values[i] = static_cast<float>(4096 * tensor + static_cast<int>(i));
  }
  return made;
}

StoredTensors gpt2_tensors(const std::string& prefix = "transformer.") {
  StoredTensors made;
  int number = 0;
  const auto add = [&](const std::string& name, Shape shape) {
    made[prefix + name] = numbered(++number, std::move(shape));
  };
  add("wte.weight", {29, 12});
  add("wpe.weight", {7, 12});
  for (int i = 0; i < 2; ++i) {
    const std::string layer = "h." + std::to_string(i) + ".";
    for (const char* norm : {"ln_1", "ln_2"}) {
      add(layer + norm + ".weight", {12});
      add(layer + norm + ".bias", {12});
    }
    add(layer + "attn.c_attn.weight", {12, 36});  // Conv1D: (in, out)
    add(layer + "attn.c_attn.bias", {36});
    add(layer + "attn.c_proj.weight", {12, 12});
    add(layer + "attn.c_proj.bias", {12});
    add(layer + "mlp.c_fc.weight", {12, 20});
    add(layer + "mlp.c_fc.bias", {20});
    add(layer + "mlp.c_proj.weight", {20, 12});
    add(layer + "mlp.c_proj.bias", {12});
  }
  add("ln_f.weight", {12});
  add("ln_f.bias", {12});
  return made;
}

StoredTensors llama_tensors(bool head = true) {
  StoredTensors made;
  int number = 0;
  const auto add = [&](const std::string& name, Shape shape) { made[name] = numbered(++number, std::move(shape)); };
  add("model.embed_tokens.weight", {31, 10});
  for (int i = 0; i < 2; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    add(layer + "input_layernorm.weight", {10});
    add(layer + "post_attention_layernorm.weight", {10});
    const auto linear = [&](const std::string& name, std::int64_t out, std::int64_t in) {
      add(layer + name + ".weight", {out, in});
      add(layer + name + ".bias", {out});
    };
    linear("self_attn.q_proj", 32, 10);
    linear("self_attn.k_proj", 8, 10);
    linear("self_attn.v_proj", 8, 10);
    linear("self_attn.o_proj", 10, 32);
    linear("mlp.gate_proj", 24, 10);
    linear("mlp.up_proj", 24, 10);
    linear("mlp.down_proj", 10, 24);
  }
  add("model.norm.weight", {10});
  if (head) add("lm_head.weight", {31, 10});
  return made;
}

std::vector<float> transposed(const Stored& t) {
  std::vector<float> made;
  for (std::int64_t column = 0; column < t.shape[1]; ++column) {
    for (std::int64_t row = 0; row < t.shape[0]; ++row) made.push_back(t.values[index(row * t.shape[1] + column)]);
  }
  return made;
}

/// A parameter's global values, from the layouts the formats' authors describe.
using Globals = std::map<std::string, std::vector<float>>;

Globals gpt2_globals(const StoredTensors& stored) {
  const auto plain = [&](const std::string& name) { return stored.at("transformer." + name).values; };
  const auto conv1d = [&](const std::string& name) { return transposed(stored.at("transformer." + name)); };
  Globals made = {{"embedding.weight", plain("wte.weight")},
                  {"positions.weight", plain("wpe.weight")},
                  {"final_norm.weight", plain("ln_f.weight")},
                  {"final_norm.bias", plain("ln_f.bias")},
                  {"head.weight", plain("wte.weight")}};
  for (int i = 0; i < 2; ++i) {
    const std::string ours = "layers." + std::to_string(i) + ".";
    const std::string theirs = "h." + std::to_string(i) + ".";
    for (const char* kind : {"weight", "bias"}) {
      made[ours + "attention_norm." + kind] = plain(theirs + "ln_1." + kind);
      made[ours + "mlp_norm." + kind] = plain(theirs + "ln_2." + kind);
    }
    const std::vector<std::pair<std::string, std::string>> linears = {{"attention.qkv", "attn.c_attn"},
                                                                      {"attention.output", "attn.c_proj"},
                                                                      {"mlp.up", "mlp.c_fc"},
                                                                      {"mlp.down", "mlp.c_proj"}};
    for (const auto& [to, from] : linears) {
      made[ours + to + ".weight"] = conv1d(theirs + from + ".weight");
      made[ours + to + ".bias"] = plain(theirs + from + ".bias");
    }
  }
  return made;
}

Globals llama_globals(const StoredTensors& stored) {
  const auto rows = [&](std::initializer_list<std::string> names) {
    std::vector<float> made;
    for (const auto& name : names) {
      const auto& values = stored.at(name).values;
      made.insert(made.end(), values.begin(), values.end());
    }
    return made;
  };
  const bool head = stored.contains("lm_head.weight");
  Globals made = {{"embedding.weight", rows({"model.embed_tokens.weight"})},
                  {"final_norm.weight", rows({"model.norm.weight"})},
                  {"head.weight", rows({head ? "lm_head.weight" : "model.embed_tokens.weight"})}};
  for (int i = 0; i < 2; ++i) {
    const std::string ours = "layers." + std::to_string(i) + ".";
    const std::string theirs = "model.layers." + std::to_string(i) + ".";
    made[ours + "attention_norm.weight"] = rows({theirs + "input_layernorm.weight"});
    made[ours + "mlp_norm.weight"] = rows({theirs + "post_attention_layernorm.weight"});
    for (const std::string kind : {".weight", ".bias"}) {
      made[ours + "attention.qkv" + kind] = rows(
          {theirs + "self_attn.q_proj" + kind, theirs + "self_attn.k_proj" + kind, theirs + "self_attn.v_proj" + kind});
      made[ours + "attention.output" + kind] = rows({theirs + "self_attn.o_proj" + kind});
      made[ours + "mlp.gate_up" + kind] = rows({theirs + "mlp.gate_proj" + kind, theirs + "mlp.up_proj" + kind});
      made[ours + "mlp.down" + kind] = rows({theirs + "mlp.down_proj" + kind});
    }
  }
  return made;
}

class Weights : public testing::Test {
 protected:
  WeightFolder write(const StoredTensors& tensors) const {
    std::vector<TensorToWrite> list;
    for (const auto& [name, tensor] : tensors) {
      list.push_back({name, StoredType::F32, tensor.shape, std::as_bytes(std::span(tensor.values))});
    }
    const std::string path = folder_ / "model.safetensors";
    write_safetensors(path, list);
    return WeightFolder::open(path);
  }

  /// Loads on every rank of tp × pp and visits the stores.
  template <typename F>
  static void load_on_grid(const WeightFolder& folder, const ModelConfig& config, int tp, int pp, F&& visit) {
    const ParameterTable table = parameters_of(config);
    const int blocks = static_cast<int>(config.layers) + 2;
    for (int stage = 0; stage < pp; ++stage) {
      for (int rank = 0; rank < tp; ++rank) {
        const Device device;
        ParameterStore store(device, table, {{stage, stage * blocks / pp, (stage + 1) * blocks / pp}}, rank, tp);
        // NaN everywhere: an element that nobody loads is seen.
        for (const Parameter* p : store.all()) {
          std::fill_n(p->value.data<float>(), p->value.elements(), std::nanf(""));
        }
        load_weights(folder, config, store);
        visit(store);
      }
    }
  }

  static void expect_slices(const WeightFolder& folder, const ModelConfig& config, const Globals& globals,
                            const std::vector<int>& degrees) {
    std::vector<std::uint64_t> hashes;
    for (const int tp : degrees) {
      for (const int pp : {1, 2}) {
        std::set<std::string> seen;
        hashes.push_back(0);
        load_on_grid(folder, config, tp, pp, [&](const ParameterStore& store) {
          hashes.back() += local_weights_hash(store);
          for (const Parameter* p : store.all()) {
            seen.insert(p->info->name);
            const auto& global = globals.at(p->info->name);
            ASSERT_EQ(global.size(), index(p->info->shape.elements())) << p->info->name;
            for (const cuboid::Run& run : shard_runs(*p->info, store.tp_rank(), tp)) {
              for (std::int64_t i = 0; i < run.count; ++i) {
                ASSERT_EQ(p->value.data<float>()[run.local + i], global[index(run.global + i)])
                    << p->info->name << ", tp rank " << store.tp_rank() << " of " << tp << ", pp " << pp
                    << ", global element " << run.global + i;
              }
            }
          }
        });
        EXPECT_EQ(seen.size(), globals.size());
      }
    }
    for (const std::uint64_t hash : hashes) EXPECT_EQ(hash, hashes.front()) << "one hash on every grid";
  }

  static std::vector<std::string> problems_of(const WeightFolder& folder, const ModelConfig& config) {
    Problems problems;
    check_weights(folder, config, problems);
    return problems.reasons();
  }
  /// Expects one reason that mentions all of `words`.
  static void expect_reason(const WeightFolder& folder, const ModelConfig& config,
                            const std::vector<std::string>& words) {
    const auto reasons = problems_of(folder, config);
    ASSERT_EQ(reasons.size(), 1U) << testing::PrintToString(reasons);
    for (const auto& word : words) EXPECT_NE(reasons[0].find(word), std::string::npos) << word << "\n" << reasons[0];
  }

  TemporaryFolder folder_;
};

TEST_F(Weights, Gpt2IsSlicedAlikeOnEveryGrid) {
  const WeightFolder folder = write(gpt2_tensors());
  EXPECT_TRUE(problems_of(folder, gpt2_config()).empty());
  expect_slices(folder, gpt2_config(), gpt2_globals(gpt2_tensors()), {1, 2, 4});
}

TEST_F(Weights, Gpt2NamesMayLackTheirPrefix) {
  const WeightFolder folder = write(gpt2_tensors(""));
  EXPECT_TRUE(problems_of(folder, gpt2_config()).empty());
  expect_slices(folder, gpt2_config(), gpt2_globals(gpt2_tensors()), {1, 2});
}

TEST_F(Weights, LlamaIsSlicedAlikeOnEveryGrid) {
  const WeightFolder folder = write(llama_tensors());
  EXPECT_TRUE(problems_of(folder, llama_config()).empty());
  // 2 key/value heads on 4 and 8 ranks: copies.
  expect_slices(folder, llama_config(), llama_globals(llama_tensors()), {1, 2, 4, 8});
}

TEST_F(Weights, TieFlagAndStoredHead) {
  ModelConfig tied = llama_config();
  tied.tied = true;
  const ModelConfig untied = llama_config();
  StoredTensors equal = llama_tensors();
  equal["lm_head.weight"] = equal["model.embed_tokens.weight"];

  {
    SCOPED_TRACE("tied, absent");
    const WeightFolder folder = write(llama_tensors(false));
    EXPECT_TRUE(problems_of(folder, tied).empty());
    expect_slices(folder, tied, llama_globals(llama_tensors(false)), {1, 2});
  }
  {
    SCOPED_TRACE("tied, present and equal");
    const WeightFolder folder = write(equal);
    EXPECT_TRUE(problems_of(folder, tied).empty());
    expect_slices(folder, tied, llama_globals(equal), {1, 2});
  }
  {
    SCOPED_TRACE("tied, present and different");
    expect_reason(write(llama_tensors()), tied, {"tie_word_embeddings is true", "lm_head.weight differs"});
    // One element is enough, also the last.
    StoredTensors almost = equal;
    almost["lm_head.weight"].values.back() += 1;
    expect_reason(write(almost), tied, {"lm_head.weight differs"});
  }
  {
    SCOPED_TRACE("not tied, absent");
    expect_reason(write(llama_tensors(false)), untied, {"lm_head.weight is missing", "tie_word_embeddings is false"});
  }
  {
    SCOPED_TRACE("not tied, present");
    const WeightFolder folder = write(llama_tensors());
    EXPECT_TRUE(problems_of(folder, untied).empty());
    expect_slices(folder, untied, llama_globals(llama_tensors()), {2});
  }
}

TEST_F(Weights, Gpt2WithAStoredHead) {
  for (const std::string prefix : {"transformer.", ""}) {
    StoredTensors tensors = gpt2_tensors(prefix);
    tensors["lm_head.weight"] = tensors[prefix + "wte.weight"];
    EXPECT_TRUE(problems_of(write(tensors), gpt2_config()).empty());
    tensors["lm_head.weight"].values[5] += 1;
    expect_reason(write(tensors), gpt2_config(), {"lm_head.weight differs"});
  }
}

TEST_F(Weights, MissingAndMisshapenTensorsAreNamed) {
  StoredTensors tensors = llama_tensors();
  tensors.erase("model.layers.1.mlp.up_proj.weight");
  tensors.erase("model.norm.weight");
  tensors["model.layers.0.self_attn.k_proj.weight"] = numbered(1, {32, 10});
  tensors["model.layers.1.mlp.down_proj.weight"] = numbered(2, {24, 10});
  const auto reasons = problems_of(write(tensors), llama_config());
  ASSERT_EQ(reasons.size(), 4U) << testing::PrintToString(reasons);
  const std::string all = reasons[0] + "\n" + reasons[1] + "\n" + reasons[2] + "\n" + reasons[3];
  for (const char* words : {"model.layers.0.self_attn.k_proj.weight has shape (32,10), the model needs (8,10)",
                            "model.layers.1.mlp.down_proj.weight has shape (24,10), the model needs (10,24)",
                            "model.layers.1.mlp.up_proj.weight is missing", "model.norm.weight is missing"}) {
    EXPECT_NE(all.find(words), std::string::npos) << words << "\n" << all;
  }
}

TEST_F(Weights, ManyMissingTensorsAreCounted) {
  StoredTensors tensors = llama_tensors();
  std::erase_if(tensors, [](const auto& entry) { return entry.first.starts_with("model.layers.1."); });
  const auto reasons = problems_of(write(tensors), llama_config());
  ASSERT_EQ(reasons.size(), 6U);
  EXPECT_NE(reasons[5].find("11 more tensors are missing"), std::string::npos) << reasons[5];
}

TEST_F(Weights, HashSeesEveryBitAndPlace) {
  const WeightFolder folder = write(llama_tensors());
  load_on_grid(folder, llama_config(), 1, 1, [](const ParameterStore& store) {
    const std::uint64_t before = local_weights_hash(store);
    float* values = store.find("layers.1.mlp.down.weight")->value.data<float>();
    std::swap(values[3], values[4]);
    EXPECT_NE(local_weights_hash(store), before) << "two elements changed places";
    std::swap(values[3], values[4]);
    EXPECT_EQ(local_weights_hash(store), before);
    values[3] = std::nextafter(values[3], 0.0F);
    EXPECT_NE(local_weights_hash(store), before) << "one bit";
  });
}

TEST_F(Weights, SquaresOfStoredTensorsCountEachElementOnce) {
  const StoredTensors stored = llama_tensors();
  const WeightFolder folder = write(stored);
  const auto tensors = model_of(llama_config()).hugging_face_tensors(llama_config());
  for (const int tp : {1, 2, 8}) {
    std::vector<double> sums(tensors.size());
    load_on_grid(folder, llama_config(), tp, 2, [&](const ParameterStore& store) {
      const auto local = local_hugging_face_squares(tensors, store, true);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += local[i];
      for (const double s : local_hugging_face_squares(tensors, store)) EXPECT_EQ(s, 0) << "gradients are zero";
    });
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      double expected = 0;
      for (const float v : stored.at(tensors[i].hf_name).values) expected += double{v} * v;
      EXPECT_DOUBLE_EQ(sums[i], expected) << tensors[i].hf_name << ", tp " << tp;
    }
  }
}

}  // namespace
}  // namespace cuboid
