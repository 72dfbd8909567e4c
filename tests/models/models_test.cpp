// Facts about models that follow from their definitions, against numbers known from elsewhere: published totals, and
// the readings of the configuration files in data/cases.
#include <algorithm>
#include <set>

#include <gmock/gmock.h>

#include "cuboid/formats/hf_config.h"
#include "cuboid/models/registry.h"
#include "cuboid/models/rope.h"

#include "tensors.h"

namespace cuboid {
namespace {

using testing::ElementsAre;

ModelConfig case_config(const std::string& name) {
  return load_model(std::string(CUBOID_TEST_DATA) + "/cases/hf-config/" + name + ".json");
}

std::vector<ModelConfig> all_configs() {
  std::vector<ModelConfig> made;
  for (const auto& name : preset_names()) made.push_back(load_model(name));
  for (const char* name : {"gpt2-124m", "llama3.2-1b-rope-scaled", "tiny-odd-newkeys"}) {
    made.push_back(case_config(name));
  }
  for (const char* name : {"gpt2-tiny", "llama-tiny", "llama-odd"}) {
    made.push_back(load_model(std::string(CUBOID_TEST_DATA) + "/oracle/" + name));
  }
  // What no file above has: biases in a Llama, a head of its own in a GPT-2.
  made.push_back(case_config("tiny-odd-newkeys"));
  made.back().attention_bias = made.back().attention_output_bias = made.back().mlp_bias = true;
  made.push_back(case_config("gpt2-124m"));
  made.back().tied = false;
  return made;
}

TEST(ParameterTotals, AreThePublishedOnes) {
  EXPECT_EQ(parameters_of(case_config("gpt2-124m")).total(), 124'439'808);
  EXPECT_EQ(parameters_of(case_config("llama3.2-1b-rope-scaled")).total(), 1'235'814'400);
  EXPECT_EQ(parameters_of(case_config("tiny-odd-newkeys")).total(), 764'736);
  const std::vector<std::pair<std::string, std::int64_t>> presets = {
      {"gpt2", 124'439'808},          {"gpt2-medium", 354'823'168},      {"gpt2-large", 774'030'080},
      {"gpt2-xl", 1'557'611'200},     {"tinyllama-1.1b", 1'100'048'384}, {"llama2-7b", 6'738'415'616},
      {"llama2-13b", 13'015'864'320}, {"llama2-70b", 68'976'648'192},    {"llama3-8b", 8'030'261'248},
      {"llama3.1-8b", 8'030'261'248}, {"llama3.1-70b", 70'553'706'496},  {"llama3.2-1b", 1'235'814'400},
      {"mistral-7b", 7'241'732'096},  {"qwen2-0.5b", 494'032'768},       {"qwen2-7b", 7'615'616'512},
      {"gemma-2b", 2'506'172'416},    {"gemma-7b", 8'537'680'896},       {"qwen3-0.6b", 596'049'920},
      {"qwen3-1.7b", 1'720'574'976},  {"qwen3-4b", 4'022'468'096},       {"qwen3-8b", 8'190'735'360},
      {"qwen3-14b", 14'768'307'200},  {"qwen3-32b", 32'762'123'264},     {"mixtral-8x7b", 46'702'792'704}};
  for (const auto& [name, total] : presets) {
    const ParameterTable table = parameters_of(load_model(name));
    EXPECT_EQ(table.total(), total) << name;
    EXPECT_EQ(table.active(2), name == "mixtral-8x7b" ? 12'879'925'248 : total) << name;
  }
}

TEST(ParameterTotals, OfBlocksAddUp) {
  const ParameterTable table = parameters_of(case_config("gpt2-124m"));
  EXPECT_EQ(table.total_of_block(0), 50257 * 768 + 1024 * 768);
  for (int layer = 1; layer <= 12; ++layer) EXPECT_EQ(table.total_of_block(layer), 7'087'872);
  EXPECT_EQ(table.total_of_block(13), 2 * 768) << "the final norm: the head is tied";
  for (const ModelConfig& config : all_configs()) {
    const ParameterTable rows = parameters_of(config);
    std::int64_t sum = 0;
    for (int block = 0; block <= config.layers + 1; ++block) sum += rows.total_of_block(block);
    EXPECT_EQ(sum, rows.total()) << config.name;
  }
}

TEST(Flops, CountEveryMatrixThatMultipliesActivations) {
  const ModelConfig config = case_config("llama3.2-1b-rope-scaled");
  const FlopsPerToken flops = flops_per_token(config, 4096);
  EXPECT_EQ(flops.parameters, 2'471'493'632.0);
  EXPECT_EQ(flops.attention, 536'870'912.0 / 2) << "half of the full square: causal";
  EXPECT_EQ(flops.training(), 3 * flops.forward());
  // Of keys outside a window there are no scores: T = 8, W = 3.
  ModelConfig sliding = config;
  sliding.window = 3;
  EXPECT_EQ(flops_per_token(sliding, 8).attention, 16 * 4.0 * (3 - 9.0 / 16) * 32 * 64);
  sliding.full_layers = 15;
  EXPECT_EQ(flops_per_token(sliding, 8).attention, (15 * 4.0 * 4 + 4.0 * (3 - 9.0 / 16)) * 32 * 64);
  EXPECT_EQ(flops_per_token(sliding, 3).attention, flops_per_token(config, 3).attention);
  // GPT-2: 12 layers of 12·C², and the tied head; gathers of embedding rows are no products.
  EXPECT_EQ(flops_per_token(case_config("gpt2-124m"), 8).parameters, 2.0 * (12 * 12 * 768 * 768 + 50257 * 768));
}

TEST(Flops, OfATokenCountTheExpertsThatItVisits) {
  const ModelConfig config = load_model("mixtral-8x7b");
  const double embedding = 32000.0 * 4096;
  const double norms = 65.0 * 4096;
  EXPECT_EQ(flops_per_token(config, 8).parameters, 2 * (12'879'925'248.0 - embedding - norms));
  EXPECT_THAT(usable_expert_degrees(config), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(usable_expert_degrees(case_config("gpt2-124m")), ElementsAre(1));
}

TEST(Flops, OfBlocksAreWhatStagesAreBalancedBy) {
  const ModelConfig config = case_config("tiny-odd-newkeys");
  const std::vector<double> costs = block_costs(config, 64);
  ASSERT_EQ(costs.size(), static_cast<std::size_t>(config.layers + 2));
  double sum = 0;
  for (const double cost : costs) sum += cost;
  const double forward = flops_per_token(config, 64).forward();
  EXPECT_GT(sum, forward);
  for (int layer = 2; layer <= config.layers; ++layer) EXPECT_EQ(costs[static_cast<std::size_t>(layer)], costs[1]);
  EXPECT_LT(costs.front(), costs[1]) << "a gather costs less than a layer";
}

TEST(Rope, FrequenciesOfLlama3Scaling) {
  const ModelConfig config = case_config("llama3.2-1b-rope-scaled");
  ModelConfig unscaled = config;
  unscaled.rope_scaling = {};
  const auto scaled = rope_frequencies(config);
  const auto plain = rope_frequencies(unscaled);
  ASSERT_EQ(scaled.size(), 32U);
  EXPECT_NEAR(plain[16], 1.414213562e-03, 1e-12);
  EXPECT_NEAR(scaled[16], 4.295567966e-04, 1e-13);
  for (std::size_t j = 0; j < 32; ++j) {
    if (j <= 14) {
      EXPECT_EQ(scaled[j], plain[j]) << j;
    } else if (j <= 17) {
      EXPECT_LT(scaled[j], plain[j]) << j;
      EXPECT_GT(scaled[j], plain[j] / 32) << j;
    } else {
      EXPECT_EQ(scaled[j], plain[j] / 32) << j;
    }
  }
}

TEST(Rope, FrequenciesOfLinearScaling) {
  const ModelConfig config = case_config("tiny-odd-newkeys");
  const auto scaled = rope_frequencies(config);
  ASSERT_EQ(scaled.size(), 10U) << "head_dim 20";
  for (std::size_t j = 0; j < scaled.size(); ++j) {
    EXPECT_DOUBLE_EQ(scaled[j], std::pow(10000.0, -static_cast<double>(j) / 10) / 4) << j;
  }
}

// rope_angle_per_position of data/oracle/llama-odd/expected.json, made by another program.
TEST(Rope, FrequenciesOfTheOracle) {
  const auto scaled = rope_frequencies(load_model(std::string(CUBOID_TEST_DATA) + "/oracle/llama-odd"));
  const std::vector<double> expected = {1.0,
                                        0.19392274474868576,
                                        0.03760603093086393,
                                        0.007292664737217109,
                                        0.0005248461609929547,
                                        3.428102195952591e-05,
                                        6.647869871181235e-06,
                                        1.2891731721515574e-06};
  ASSERT_EQ(scaled.size(), expected.size());
  for (std::size_t j = 0; j < expected.size(); ++j) EXPECT_NEAR(scaled[j], expected[j], 1e-14 * expected[j]) << j;
}

TEST(TensorDegrees, AreThoseThatCutHeadsAndMlp) {
  EXPECT_THAT(usable_tensor_degrees(case_config("gpt2-124m")), ElementsAre(1, 2, 3, 4, 6, 12));
  EXPECT_THAT(usable_tensor_degrees(case_config("tiny-odd-newkeys")), ElementsAre(1, 2));
  EXPECT_THAT(usable_tensor_degrees(case_config("llama3.2-1b-rope-scaled")), ElementsAre(1, 2, 4, 8, 16, 32));
  EXPECT_THAT(usable_tensor_degrees(case_config("llama3.2-1b-rope-scaled"), 4), ElementsAre(1, 2, 4));
  ModelConfig few_heads = case_config("gpt2-124m");
  few_heads.ffn = 3;
  EXPECT_THAT(usable_tensor_degrees(few_heads), ElementsAre(1, 3)) << "not 2: gate and up are cut apart";
}

TEST(TensorDegrees, AllowEverySplitOfTheTable) {
  for (const ModelConfig& config : all_configs()) {
    const ParameterTable table = parameters_of(config);
    for (const int tp : usable_tensor_degrees(config, 8)) {
      for (const auto& info : table.rows()) {
        if (info.block > 1 && info.block <= config.layers) continue;  // layers are alike
        std::int64_t counted = 0;
        for (int rank = 0; rank < tp; ++rank) {
          for (const cuboid::Run& run : shard_runs(info, rank, tp)) {
            counted += counts_piece(info, run.piece, rank, tp) ? run.count : 0;
          }
        }
        ASSERT_EQ(counted, info.shape.elements()) << config.name << ", tp " << tp << ": " << info.name;
      }
    }
  }
}

TEST(HuggingFaceNames, CoverEveryElementOnce) {
  for (const ModelConfig& config : all_configs()) {
    const ParameterTable table = parameters_of(config);
    std::set<std::string> names;
    std::map<std::string, std::set<int>> pieces;  // of each parameter
    for (const HfTensor& hf : model_of(config).hugging_face_tensors(config)) {
      EXPECT_TRUE(names.insert(hf.hf_name).second) << config.name << ": " << hf.hf_name << " twice";
      EXPECT_TRUE(pieces[hf.parameter].insert(hf.piece).second) << config.name << ": " << hf.parameter << " twice";
      EXPECT_TRUE(!hf.transposed || table.at(hf.parameter).shape.rank() == 2) << hf.hf_name;
    }
    std::size_t covered = 0;
    for (const auto& info : table.rows()) {
      if (!info.tied_with.empty()) {
        EXPECT_FALSE(pieces.contains(info.name)) << config.name << ": " << info.name << " is stored as its partner";
        continue;
      }
      const auto& found = pieces[info.name];
      ++covered;
      if (found == std::set<int>{-1}) continue;
      std::set<int> expected;
      for (int i = 0; i < static_cast<int>(info.pieces.size()); ++i) expected.insert(i);
      EXPECT_EQ(found, expected) << config.name << ": " << info.name;
    }
    EXPECT_EQ(covered, pieces.size()) << config.name << ": names of parameters that do not exist";
  }
}

TEST(HuggingFaceNames, AreThoseOfThePublishedFiles) {
  const auto names_of = [](const ModelConfig& config) {
    std::set<std::string> names;
    for (const HfTensor& hf : model_of(config).hugging_face_tensors(config)) names.insert(hf.hf_name);
    return names;
  };
  const auto gpt2 = names_of(case_config("gpt2-124m"));
  EXPECT_EQ(gpt2.size(), 2U + 12 * 12 + 2);
  EXPECT_TRUE(gpt2.contains("transformer.h.11.mlp.c_proj.bias"));
  const auto llama = names_of(case_config("llama3.2-1b-rope-scaled"));
  EXPECT_EQ(llama.size(), 1U + 16 * 9 + 1);
  EXPECT_TRUE(llama.contains("model.layers.15.post_attention_layernorm.weight"));
  EXPECT_FALSE(llama.contains("lm_head.weight"));
}

TEST(Registry, NamesTheKnownFamilies) {
  EXPECT_THAT(model_families(), ElementsAre("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "mixtral"));
  ModelConfig config;
  config.family = "mamba";
  try {
    model_of(config);
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    EXPECT_STREQ(error.what(),
                 "model family 'mamba' is unknown; known are gpt2, llama, mistral, qwen2, qwen3, gemma, mixtral");
  }
}

TEST(Parameters, DecayActsOnMatricesAndEmbeddingsOnly) {
  for (const ModelConfig& config : all_configs()) {
    const ParameterTable table = parameters_of(config);
    for (const auto& info : table.rows()) {
      EXPECT_EQ(info.decay, info.shape.rank() == 2) << config.name << ": " << info.name;
    }
  }
}

}  // namespace
}  // namespace cuboid
