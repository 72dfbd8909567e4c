#include "cuboid/formats/hf_config.h"

#include "cuboid/core/text.h"

#include "files.h"

namespace cuboid {
namespace {

using test::case_path;
using test::expect_mentions;
using test::refusal;

ModelConfig read_case(const std::string& name) {
  return read_hf_config(test::contents(case_path("hf-config/" + name)), name);
}

/// A small sound llama with entries appended.
std::string llama(const std::string& extra = "") {
  return R"({"model_type": "llama", "hidden_size": 96, "intermediate_size": 250, "max_position_embeddings": 128,
             "num_attention_heads": 6, "num_hidden_layers": 5, "vocab_size": 501)" +
         (extra.empty() ? "" : ", " + extra) + "}";
}
std::string gpt2(const std::string& extra = "") {
  return R"({"model_type": "gpt2", "n_embd": 96, "n_head": 6, "n_layer": 5, "n_positions": 128, "vocab_size": 501)" +
         (extra.empty() ? "" : ", " + extra) + "}";
}
std::string refusal_of(const std::string& json) {
  const std::string message = refusal([&] { read_hf_config(json, "c.json"); });
  expect_mentions(message, {"c.json: "});
  return message;
}

/// Parameter total by the dimensions, counted independently of the model code.
std::int64_t parameters(const ModelConfig& c) {
  const bool gpt2 = c.family == "gpt2";
  const std::int64_t q = c.heads * c.head_dim;
  const std::int64_t kv = c.kv_heads * c.head_dim;
  const std::int64_t norms = (gpt2 ? 4 : 2) * c.hidden;
  std::int64_t layer = c.hidden * (q + 2 * kv) + q * c.hidden + norms;
  layer += (gpt2 ? 2 : 3) * c.hidden * c.ffn * std::max<std::int64_t>(1, c.experts) + c.experts * c.hidden;
  if (c.attention_bias) layer += q + 2 * kv;
  if (c.attention_output_bias) layer += c.hidden;
  if (c.qk_norm) layer += 2 * c.head_dim;
  if (c.mlp_bias) layer += (gpt2 ? 1 : 2) * c.ffn + c.hidden;
  return c.vocab * c.hidden * (c.tied ? 1 : 2) + (gpt2 ? c.positions * c.hidden : 0) + c.layers * layer +
         (gpt2 ? 2 : 1) * c.hidden;
}

// ---------------------------------------------------------------- the shared cases

TEST(HfConfig, Gpt2) {
  const ModelConfig c = read_case("gpt2-124m.json");
  EXPECT_EQ(c.name, "gpt2-124m.json");
  EXPECT_EQ(c.family, "gpt2");
  EXPECT_EQ(c.layers, 12);
  EXPECT_EQ(c.hidden, 768);
  EXPECT_EQ(c.heads, 12);
  EXPECT_EQ(c.kv_heads, 12);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.ffn, 3072);
  EXPECT_EQ(c.positions, 1024);
  EXPECT_TRUE(c.tied);
  EXPECT_EQ(parameters(c), 124'439'808);
}

TEST(HfConfig, LlamaWithScaledRope) {
  const ModelConfig c = read_case("llama3.2-1b-rope-scaled.json");
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.kv_heads, 8);
  EXPECT_TRUE(c.tied);
  EXPECT_EQ(c.rope_theta, 500000);
  EXPECT_EQ(c.rope_scaling, (RopeScaling{RopeScaling::Kind::llama3, 32, 1, 4, 8192}));
  EXPECT_EQ(parameters(c), 1'235'814'400);
}

TEST(HfConfig, NewSpelling) {
  const ModelConfig c = read_case("tiny-odd-newkeys.json");
  EXPECT_EQ(c.layers, 7);
  EXPECT_EQ(c.heads, 6);
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_EQ(c.head_dim, 20);
  EXPECT_EQ(c.ffn, 260);
  EXPECT_EQ(c.vocab, 251);
  EXPECT_EQ(c.norm_eps, 1e-6);
  EXPECT_EQ(c.rope_theta, 10000);
  EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::linear);
  EXPECT_EQ(c.rope_scaling.factor, 4);
  EXPECT_EQ(parameters(c), 764'736);
}

TEST(HfConfig, GemmaHasHeadsApartFromItsHiddenSize) {
  const ModelConfig c = read_case("gemma-7b-headdim.json");
  EXPECT_EQ(c.family, "gemma");
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_TRUE(c.tied) << "Gemma's default";
  EXPECT_EQ(parameters(c), 8'537'680'896);
}

TEST(HfConfig, Qwen2HasBiasesAndNoWindowUnlessSwitchedOn) {
  const std::string rest = R"("num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 11,
    "intermediate_size": 12, "max_position_embeddings": 64, "sliding_window": 4, "use_sliding_window": )";
  const ModelConfig c = read_hf_config(R"({"model_type": "qwen2", )" + rest + "false}", "x");
  EXPECT_TRUE(c.attention_bias);
  EXPECT_FALSE(c.attention_output_bias);
  EXPECT_FALSE(c.tied);
  EXPECT_EQ(c.window, 0);
  const ModelConfig on = read_hf_config(R"({"model_type": "qwen2", "max_window_layers": 1, )" + rest + "true}", "x");
  EXPECT_EQ(on.window, 4);
  EXPECT_EQ(on.window_of(0), 0) << "the first max_window_layers see everything";
  EXPECT_EQ(on.window_of(1), 4);
  // All layers below the default of 28 see everything: there is no window.
  EXPECT_EQ(read_hf_config(R"({"model_type": "qwen2", )" + rest + "true}", "x"), c);
}

/// A small sound mistral or qwen3 with entries appended.
std::string relative(const std::string& type, const std::string& extra = "") {
  return R"({"model_type": ")" + type + R"(", "hidden_size": 96, "intermediate_size": 250, "vocab_size": 501,
             "max_position_embeddings": 128, "num_attention_heads": 6, "num_key_value_heads": 2,
             "num_hidden_layers": 5)" +
         (extra.empty() ? "" : ", " + extra) + "}";
}

TEST(HfConfig, MistralHasAWindowUnlessItIsNullOrSwitchedOff) {
  const auto window = [](const std::string& extra) { return read_hf_config(relative("mistral", extra), "x").window; };
  EXPECT_EQ(window(R"("sliding_window": 33)"), 33);
  EXPECT_EQ(window(""), 4096) << "the family's default";
  EXPECT_EQ(window(R"("sliding_window": null)"), 0);
  EXPECT_EQ(window(R"("sliding_window": 33, "use_sliding_window": false)"), 0);
  EXPECT_EQ(read_hf_config(llama(R"("sliding_window": 33, "use_sliding_window": false)"), "x"),
            read_hf_config(llama(), "x"));
  expect_mentions(refusal_of(relative("mistral", R"("sliding_window": -1)")), {"sliding_window -1"});
  expect_mentions(refusal_of(relative("mistral", R"("sliding_window": "wide")")), {"sliding_window \"wide\""});
  expect_mentions(refusal_of(relative("mistral", R"("use_sliding_window": 1)")), {"use_sliding_window 1"});
  expect_mentions(refusal_of(relative("mistral", R"("attention_bias": true)")), {"attention_bias = true"});
}

TEST(HfConfig, Qwen3HasNormsOfHeadsAndAHeadDimensionOfItsOwn) {
  const ModelConfig c = read_hf_config(relative("qwen3"), "x");
  EXPECT_TRUE(c.qk_norm);
  EXPECT_FALSE(c.attention_bias);
  EXPECT_EQ(c.head_dim, 128) << "the family's default, not 96/6";
  EXPECT_EQ(c.window, 0) << "off unless switched on";
  EXPECT_EQ(read_hf_config(relative("qwen3", R"("head_dim": 32)"), "x").head_dim, 32);
  EXPECT_TRUE(read_hf_config(relative("qwen3", R"("attention_bias": true)"), "x").attention_output_bias);
  expect_mentions(refusal_of(R"({"model_type": "qwen3", "num_attention_heads": 6})"),
                  {"num_key_value_heads is missing"});
}

TEST(HfConfig, LayerTypesSayWhichLayersSlide) {
  const std::string slide =
      R"("use_sliding_window": true, "sliding_window": 7, "max_window_layers": 1, "layer_types": )";
  const ModelConfig c = read_hf_config(
      relative("qwen3", slide + R"(["full_attention", "full_attention", "sliding_attention", "sliding_attention",
                                    "sliding_attention"])"),
      "x");
  EXPECT_EQ(c.full_layers, 2) << "they override max_window_layers";
  EXPECT_EQ(c.window, 7);
  for (const auto& [types, fault] : std::vector<std::pair<std::string, std::string>>{
           {R"(["sliding_attention"])", "names 1 layers, num_hidden_layers is 5"},
           {R"(["sliding_attention", "full_attention"])", "full_attention layers first"},
           {R"(["chunked_attention"])", "full_attention layers first"},
           {R"("full_attention")", "only full_attention"}}) {
    expect_mentions(refusal_of(relative("qwen3", slide + types)), {"layer_types", fault});
  }
}

TEST(HfConfig, RegisteredFamiliesAreReadByLlamasKeys) {
  register_config_family({.type = "outsider",
                          .classes = {"OutsiderForCausalLM"},
                          .tied = true,
                          .rotary = false,
                          .activation = "gelu",
                          .extra = {{"slope", 8}}});
  const auto read = [](const std::string& extra) { return read_hf_config(relative("outsider", extra), "x"); };
  const ModelConfig c = read(R"("hidden_act": "gelu", "slope": 2.5)");
  EXPECT_EQ(c.family, "outsider");
  EXPECT_TRUE(c.tied);
  EXPECT_EQ(c.extra.at("slope"), 2.5);
  EXPECT_EQ(read("").extra.at("slope"), 8);
  EXPECT_EQ(read_hf_config(write_hf_config(c), "x"), c);
  expect_mentions(refusal_of(relative("outsider", R"("hidden_act": "silu")")), {"hidden_act \"silu\""});
  expect_mentions(refusal_of(relative("outsider", R"("rope_theta": 5, "slopes": 3)")),
                  {"rope_theta = 5", "slopes = 3"});
  EXPECT_THROW(register_config_family({.type = "llama", .classes = {"X"}}), std::logic_error);
}

TEST(HfConfig, MixtralHasExperts) {
  const std::string rest = R"("num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 11,
    "intermediate_size": 12, "max_position_embeddings": 64, "output_router_logits": true,
    "router_aux_loss_coef": 0.02, )";
  const auto mixtral = [&](const std::string& more) { return R"({"model_type": "mixtral", )" + rest + more + "}"; };
  const ModelConfig c = read_hf_config(mixtral(R"("num_local_experts": 6, "num_experts_per_tok": 3)"), "x");
  EXPECT_EQ(c.experts, 6);
  EXPECT_EQ(c.experts_per_token, 3);
  const ModelConfig defaults = read_hf_config(mixtral(R"("sliding_window": null)"), "x");
  EXPECT_EQ(defaults.experts, 8);
  EXPECT_EQ(defaults.experts_per_token, 2);
  expect_mentions(refusal_of(mixtral(R"("num_local_experts": 2, "num_experts_per_tok": 3)")),
                  {"num_experts_per_tok 3: more than the 2 experts"});
  expect_mentions(refusal_of(mixtral(R"("router_jitter_noise": 0.1)")), {"router_jitter_noise 0.1"});
  expect_mentions(refusal_of(mixtral(R"("num_shared_experts": 1)")), {"num_shared_experts"});
  EXPECT_EQ(defaults.window, 0);
  EXPECT_EQ(read_hf_config(mixtral(R"("rope_theta": 5)"), "x").window, 0) << "none by default, other than in a Mistral";
  EXPECT_EQ(read_hf_config(mixtral(R"("sliding_window": 7)"), "x").window, 7);
}

TEST(HfConfig, UnknownArchitectureIsRefused) {
  expect_mentions(refusal_of(R"({"model_type": "gemma2"})"),
                  {"model_type \"gemma2\"", "known are gpt2, llama, mistral, qwen2, qwen3, gemma, mixtral",
                   "the nearest is gemma"});
  expect_mentions(refusal_of(R"({"model_type": "lama"})"), {"the nearest is llama"});
  expect_mentions(refusal_of("{}"), {"model_type is missing"});
}

TEST(HfConfig, BadShapesNamesAllReasons) {
  expect_mentions(refusal([] { read_case("bad-shapes.json"); }),
                  {"8 attention heads (num_attention_heads) are not a multiple of 3 key/value heads",
                   "hidden_size 100 is not divisible by 8 attention heads, and no head_dim is given",
                   "rope_scaling: low_freq_factor is missing", "rope_scaling: high_freq_factor is missing",
                   "rope_scaling: original_max_position_embeddings is missing",
                   "tie_word_embeddings \"yes\": must be true or false, is a string"});
}

TEST(HfConfig, OracleConfigsAreRead) {
  for (const char* name : {"gpt2-tiny", "llama-tiny", "llama-odd"}) {
    const ModelConfig c = load_model(test::oracle_path(name));
    EXPECT_EQ(c, load_model(test::oracle_path(name) + "/config.json")) << name;
    EXPECT_GT(parameters(c), 200'000) << name;
  }
}

// ---------------------------------------------------------------- rules

TEST(HfConfig, Defaults) {
  const ModelConfig c = read_hf_config(llama(), "x");
  EXPECT_EQ(c.kv_heads, 6);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_FALSE(c.tied);
  EXPECT_FALSE(c.attention_bias);
  EXPECT_EQ(c.norm_eps, 1e-6);
  EXPECT_EQ(c.rope_theta, 10000);
  EXPECT_EQ(c.rope_scaling, RopeScaling{});
  EXPECT_EQ(read_hf_config(llama(R"("head_dim": null, "num_key_value_heads": null, "rope_scaling": null)"), "x"), c);
  const ModelConfig g = read_hf_config(gpt2(), "x");
  EXPECT_TRUE(g.tied);
  EXPECT_EQ(g.ffn, 384);
  EXPECT_EQ(g.norm_eps, 1e-5);
  EXPECT_FALSE(read_hf_config(gpt2(R"("tie_word_embeddings": false)"), "x").tied);
  EXPECT_EQ(read_hf_config(gpt2(R"("n_inner": 250)"), "x").ffn, 250);
}

TEST(HfConfig, MissingAndWrongValuesAllAtOnce) {
  expect_mentions(refusal_of(R"({"model_type": "llama"})"),
                  {"num_hidden_layers is missing", "hidden_size is missing", "num_attention_heads is missing",
                   "intermediate_size is missing", "vocab_size is missing", "max_position_embeddings is missing"});
  const std::string gpt2_message =
      refusal_of(R"({"model_type": "gpt2", "n_embd": "96", "n_head": 0, "n_layer": 2.5, "n_positions": -1,
                     "vocab_size": 1e30, "layer_norm_epsilon": 0, "initializer_range": null})");
  expect_mentions(gpt2_message,
                  {"n_embd \"96\": must be a whole number", "n_head 0: must be a whole number", "n_layer 2.5",
                   "n_positions -1", "vocab_size 1e+30", "layer_norm_epsilon 0: must be a number above 0"});
  EXPECT_EQ(gpt2_message.find("initializer_range"), std::string::npos);  // null means the default
  expect_mentions(refusal_of("[1]"), {"must be a JSON object, is an array"});
  expect_mentions(refusal_of("{\"model_type\": "), {"not valid JSON"});
  expect_mentions(refusal_of(llama(R"("vocab_size": 502)")), {"duplicate key vocab_size"});
}

TEST(HfConfig, ChangedMathematicsIsRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {gpt2(R"("scale_attn_by_inverse_layer_idx": true)"), "scale_attn_by_inverse_layer_idx true: not supported"},
      {gpt2(R"("scale_attn_weights": false)"), "scale_attn_weights false: not supported; must be true"},
      {gpt2(R"("activation_function": "relu")"), "\"gelu_new\" or \"gelu_pytorch_tanh\""},
      {gpt2(R"("add_cross_attention": true)"), "add_cross_attention true"},
      {gpt2(R"("n_ctx": 64)"), "n_ctx 64: differs from n_positions 128"},
      {gpt2(R"("architectures": ["GPT2ForSequenceClassification"])"), "must be a GPT2LMHeadModel or GPT2Model"},
      {llama(R"("hidden_act": "gelu")"), "hidden_act \"gelu\": not supported"},
      {llama(R"("sliding_window": 4096)"), "sliding_window 4096"},
      {llama(R"("partial_rotary_factor": 0.5)"), "partial_rotary_factor 0.5"},
      {llama(R"("quantization_config": {"bits": 4})"), "quantization_config = {\"bits\":4}"},
      {llama(R"("layer_types": ["full_attention", "sliding_attention"])"), "only full_attention is supported"},
      {llama(R"("logit_scale": 0.5, "residual_multiplier": 2)"), "logit_scale = 0.5, residual_multiplier = 2"},
      {llama(R"("head_dim": 15)"), "head dimension 15 is odd"},
      {llama(R"("head_dim": 4000000)"), "6 heads of dimension 4000000 are wider than"},
      {llama(R"("architectures": ["LlamaForSequenceClassification"])"), "must be a LlamaForCausalLM"},
      {llama(R"("n_positions": 7)"), "n_positions = 7"},
  };
  for (const auto& [json, fault] : cases) expect_mentions(refusal_of(json), {fault});
}

TEST(HfConfig, HarmlessKeysAndFeaturesThatAreOff) {
  const ModelConfig c = read_hf_config(llama(), "x");
  for (const char* extra :
       {R"("use_cache": true, "torch_dtype": "bfloat16", "transformers_version": "4.45", "_name_or_path": "y")",
        R"("sliding_window": 0, "logit_scale": 0, "some_feature": false, "quantization_config": null, "list": [])",
        R"("eos_token_id": [1, 2], "pretraining_tp": 2, "attention_dropout": 0.1, "partial_rotary_factor": 1.0)",
        R"("layer_types": ["full_attention", "full_attention", "full_attention", "full_attention",
             "full_attention"], "architectures": ["LLaMAForCausalLM"])",
        R"("hidden_act": "swish", "dtype": "float32")"}) {
    EXPECT_EQ(read_hf_config(llama(extra), "x"), c) << extra;
  }
  EXPECT_EQ(read_hf_config(gpt2(R"("reorder_and_upcast": true, "summary_type": "cls_index", "n_ctx": 128)"), "x"),
            read_hf_config(gpt2(), "x"));
}

TEST(HfConfig, RopeSpellings) {
  const auto scaled = [](const std::string& rope) { return read_hf_config(llama(rope), "x"); };
  const ModelConfig linear = scaled(R"("rope_theta": 5000, "rope_scaling": {"type": "linear", "factor": 2.5})");
  EXPECT_EQ(linear.rope_scaling.factor, 2.5);
  EXPECT_EQ(linear.rope_theta, 5000);
  EXPECT_EQ(scaled(R"("rope_theta": 5000, "rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 2.5})"),
            linear);
  EXPECT_EQ(scaled(R"("rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 5000})"), linear);
  EXPECT_EQ(
      scaled(R"("rope_theta": 5000, "rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 5000})"),
      linear);
  EXPECT_EQ(scaled(R"("rope_parameters": {"rope_theta": 5000})").rope_scaling, RopeScaling{});
  EXPECT_EQ(scaled(R"("rope_scaling": {"rope_type": "default"})").rope_scaling, RopeScaling{});

  const std::vector<std::pair<std::string, std::string>> bad = {
      {R"("rope_scaling": {"type": "yarn", "factor": 2})",
       "rope_type \"yarn\": not supported; known: default, linear, llama3"},
      {R"("rope_scaling": {"factor": 2})", "rope_type is missing"},
      {R"("rope_scaling": {"type": "linear"})", "factor is missing"},
      {R"("rope_scaling": {"type": "linear", "factor": 0})", "factor 0: must be a number above 0"},
      {R"("rope_scaling": {"type": "linear", "rope_type": "llama3", "factor": 2})", "differ"},
      {R"("rope_scaling": {"type": "linear", "factor": 2, "attention_factor": 3})", "attention_factor = 3"},
      {R"("rope_scaling": "linear")", "must be an object, is a string"},
      {R"("rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "default"})", "both given"},
      {R"("rope_theta": 4, "rope_parameters": {"rope_theta": 5})",
       "rope_theta 4: differs from rope_theta in rope_parameters"},
      {R"("rope_parameters": {"partial_rotary_factor": 0.25})", "partial_rotary_factor 0.25"},
      {R"("rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
           "original_max_position_embeddings": 64})",
       "low_freq_factor 4: must be below high_freq_factor 4"},
  };
  for (const auto& [rope, fault] : bad) expect_mentions(refusal_of(llama(rope)), {fault});
}

// ---------------------------------------------------------------- presets and paths

TEST(Presets, HaveThePublishedParameterTotals) {
  // Totals as published (model cards, safetensors metadata); of the nano and micro models as counted by hand here:
  // gpt2-nano 256·128 + 256·128 + 4·(12·128² + 13·128) + 2·128.
  const std::vector<std::pair<std::string, std::int64_t>> totals = {
      {"gpt2-nano", 858'880},           {"gpt2", 124'439'808},
      {"gpt2-medium", 354'823'168},     {"gpt2-large", 774'030'080},
      {"gpt2-xl", 1'557'611'200},       {"tinyllama-1.1b", 1'100'048'384},
      {"llama2-7b", 6'738'415'616},     {"llama2-13b", 13'015'864'320},
      {"llama2-70b", 68'976'648'192},   {"qwen2-0.5b", 494'032'768},
      {"qwen2-7b", 7'615'616'512},      {"gemma-2b", 2'506'172'416},
      {"gemma-7b", 8'537'680'896},      {"mistral-7b", 7'241'732'096},
      {"qwen3-0.6b", 596'049'920},      {"qwen3-1.7b", 1'720'574'976},
      {"qwen3-4b", 4'022'468'096},      {"qwen3-8b", 8'190'735'360},
      {"qwen3-14b", 14'768'307'200},    {"qwen3-32b", 32'762'123'264},
      {"llama3-8b", 8'030'261'248},     {"llama3.1-8b", 8'030'261'248},
      {"llama3.1-70b", 70'553'706'496}, {"llama3.2-1b", 1'235'814'400},
      {"mixtral-8x7b", 46'702'792'704}, {"gpt-1t", 1'008'038'758'400},
  };
  for (const auto& [name, total] : totals) EXPECT_EQ(parameters(load_model(name)), total) << name;
}

TEST(Presets, AllLoadAndKeepTheirName) {
  const auto names = preset_names();
  EXPECT_GE(names.size(), 20U);
  for (const std::string& name : names) EXPECT_EQ(load_model(name).name, name);
  // The small ones are byte-level, and the llama has grouped key/value heads.
  for (const char* name : {"gpt2-nano", "gpt2-micro", "llama-nano", "llama-micro"})
    EXPECT_EQ(load_model(name).vocab, 256);
  EXPECT_LT(load_model("llama-nano").kv_heads, load_model("llama-nano").heads);
  EXPECT_EQ(load_model("llama3.1-8b").rope_scaling.factor, 8);
  EXPECT_EQ(load_model("llama3-8b").rope_scaling.kind, RopeScaling::Kind::none);
}

TEST(Presets, WrittenConfigReadsBackTheSame) {
  for (const std::string& name : preset_names()) {
    const ModelConfig config = load_model(name);
    EXPECT_EQ(read_hf_config(write_hf_config(config), name), config);
  }
  ModelConfig odd = load_model("llama-nano");
  odd.rope_scaling = {.kind = RopeScaling::Kind::linear, .factor = 1.0 / 3};
  odd.head_dim = 20;
  odd.attention_bias = odd.attention_output_bias = true;
  odd.norm_eps = 1.1e-7;
  EXPECT_EQ(read_hf_config(write_hf_config(odd), odd.name), odd);
}

TEST(LoadModel, UnknownNamesListThePresets) {
  expect_mentions(refusal([] { load_model("gpt2-nanno"); }),
                  {"--model gpt2-nanno", "the nearest preset is gpt2-nano;", "llama2-70b"});
  const test::TemporaryFolder folder;
  expect_mentions(refusal([&] { load_model(folder.path()); }), {"the folder holds no config.json"});
  const std::string path = folder.write("config.json", gpt2());
  EXPECT_EQ(load_model(folder.path()).name, path);
  EXPECT_EQ(load_model(path).hidden, 96);
}

// ---------------------------------------------------------------- words

TEST(Text, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("tensor", "tesnor"), 1U);  // neighbours exchanged
  EXPECT_EQ(edit_distance("GPT2", "gpt2"), 0U);
  EXPECT_EQ(edit_distance("ca", "abc"), 3U);  // optimal string alignment edits no part twice
}

TEST(Text, NearestAndJoin) {
  EXPECT_EQ(nearest("micro-bach", {"global-batch", "micro-batch"}), "micro-batch");
  EXPECT_EQ(nearest("x", {"b", "a"}), "b");
  EXPECT_EQ(nearest("x", {}), "");
  EXPECT_EQ(join({"a", "b"}), "a, b");
  EXPECT_EQ(join({}), "");
}

TEST(Text, ExactDoubles) {
  EXPECT_EQ(exact(0.1), "0.1");
  EXPECT_EQ(exact(1), "1.0");
  EXPECT_EQ(exact(-3), "-3.0");
  EXPECT_EQ(exact(1e-8), "1e-08");
  EXPECT_EQ(exact(1e22), "1e+22");
}

}  // namespace
}  // namespace cuboid
