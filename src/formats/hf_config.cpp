#include "cuboid/formats/hf_config.h"

#include <algorithm>
#include <cctype>
#include <deque>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "cuboid/core/text.h"

#include "json_section.h"

namespace cuboid {
namespace {

/// Bounds that no real model reaches and within which parameter counts cannot overflow 63 bits: a layer has at most
/// about 8 matrices of kLargestDim², and there are at most kMostLayers.
constexpr std::int64_t kLargestDim = std::int64_t{1} << 22;
constexpr std::int64_t kMostLayers = std::int64_t{1} << 14;
constexpr std::int64_t kMostPositions = (std::int64_t{1} << 31) - 1;

/// The built-in families, and behind them those that were registered.
std::deque<ConfigFamily>& families() {
  static std::deque<ConfigFamily> known = {
      {"gpt2", {"GPT2LMHeadModel", "GPT2Model"}, true},
      {"llama", {"LlamaForCausalLM", "LlamaModel"}},
      {"mistral", {"MistralForCausalLM", "MistralModel"}},
      {"qwen2", {"Qwen2ForCausalLM", "Qwen2Model"}},
      {"qwen3", {"Qwen3ForCausalLM", "Qwen3Model"}},
      {.type = "gemma", .classes = {"GemmaForCausalLM", "GemmaModel"}, .tied = true, .activation = "gelu_pytorch_tanh"},
      {"mixtral", {"MixtralForCausalLM", "MixtralModel"}},
  };
  return known;
}

const ConfigFamily* find_family(const std::string& type) {
  const auto& all = families();
  const auto found = std::find_if(all.begin(), all.end(), [&](const ConfigFamily& f) { return f.type == type; });
  return found == all.end() ? nullptr : &*found;
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const ConfigFamily& family : families()) names.push_back(family.type);
  return names;
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// Keys without influence on what is computed here: dropout (a run's own flag), generation, tokenizer, provenance,
/// storage type, inference caches.
// clang-format off
const std::set<std::string, std::less<>> kHarmless = {
    // provenance
    "architectures", "model_type", "transformers_version", "name_or_path", "auto_map", "unsloth_version",
    "unsloth_fixed", "vocab_file", "finetuning_task",
    // dropout
    "attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout", "summary_first_dropout",
    // storage and inference
    "torch_dtype", "dtype", "use_bfloat16", "use_cache", "pretraining_tp", "reorder_and_upcast",
    "gradient_checkpointing", "chunk_size_feed_forward", "attn_implementation", "torchscript", "return_dict",
    "output_attentions", "output_hidden_states",
    // tokenizer
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "unk_token_id",
    "decoder_start_token_id", "tokenizer_class", "prefix", "max_sequence_length",
    // other heads
    "summary_activation", "summary_proj_to_labels", "summary_type", "summary_use_proj", "task_specific_params",
    "id2label", "label2id", "num_labels", "problem_type", "predict_special_tokens",
    // generation
    "return_dict_in_generate", "max_length", "min_length", "do_sample", "num_beams", "temperature", "top_k", "top_p",
    "typical_p", "repetition_penalty", "length_penalty", "num_return_sequences", "diversity_penalty",
    "early_stopping", "encoder_no_repeat_ngram_size", "no_repeat_ngram_size", "output_scores", "num_beam_groups",
    "remove_invalid_values", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id",
    "forced_eos_token_id", "exponential_decay_length_penalty",
};
// clang-format on

void check_architectures(JsonSection& top, const ConfigFamily& family) {
  const Json& names = top.value("architectures");
  if (is_off(names)) return;
  bool sound = names.is_array();
  for (const Json& name : names) {
    const std::string lower = name.is_string() ? lower_case(name.get<std::string>()) : std::string();
    sound = sound && std::any_of(family.classes.begin(), family.classes.end(),
                                 [&](const std::string& known) { return lower_case(known) == lower; });
  }
  if (!sound) top.fault("architectures", "a " + family.type + " must be a " + join(family.classes, " or "));
}

/// Rotary settings under either spelling: rope_scaling beside rope_theta, or rope_parameters that holds both.
void read_rope(JsonSection& top, ModelConfig& config, const std::string& source, Problems& problems) {
  config.rope_theta = top.real("rope_theta", 0, false, 10000);
  top.only("partial_rotary_factor", {1});
  const Json& old_spelling = top.value("rope_scaling");
  const Json& new_spelling = top.value("rope_parameters");
  if (!is_off(old_spelling) && !is_off(new_spelling)) {
    top.fault("rope_scaling and rope_parameters are both given; keep one");
    return;
  }
  const std::string key = is_off(new_spelling) ? "rope_scaling" : "rope_parameters";
  const Json& given = is_off(new_spelling) ? old_spelling : new_spelling;
  if (is_off(given)) return;
  if (!given.is_object()) return top.fault(key, "must be an object, is " + kind_of(given));

  JsonSection rope(given, source + ": " + key, problems);
  if (rope.has("rope_theta")) {
    const double theta = rope.real("rope_theta", 0, false);
    if (top.has("rope_theta") && theta != config.rope_theta) {
      top.fault("rope_theta", "differs from rope_theta in " + key);
    }
    config.rope_theta = theta;
  }
  rope.value("rope_theta");
  rope.only("partial_rotary_factor", {1});
  const Json& kind = rope.has("rope_type") ? rope.value("rope_type") : rope.value("type");
  const std::string name = kind.is_string() ? kind.get<std::string>() : std::string();
  const Json& other = rope.value("type");
  if (!other.is_null() && !(other.is_string() && other.get_ref<const std::string&>() == name)) {
    rope.fault("rope_type " + excerpt(kind) + " and type " + excerpt(other) + " differ");
  }
  RopeScaling& scaling = config.rope_scaling;
  if (name == "linear") {
    scaling.kind = RopeScaling::Kind::linear;
    scaling.factor = rope.real("factor", 0, false);
  } else if (name == "llama3") {
    scaling.kind = RopeScaling::Kind::llama3;
    scaling.factor = rope.real("factor", 0, false);
    scaling.low_frequency_factor = rope.real("low_freq_factor", 0, false);
    scaling.high_frequency_factor = rope.real("high_freq_factor", 0, false);
    scaling.original_positions = rope.natural("original_max_position_embeddings", kMostPositions);
    if (rope.has("low_freq_factor") && rope.has("high_freq_factor") &&
        !(scaling.low_frequency_factor < scaling.high_frequency_factor)) {
      rope.fault("low_freq_factor", "must be below high_freq_factor " + excerpt(given["high_freq_factor"]));
    }
  } else if (name != "default" && !(kind.is_null() && key == "rope_parameters")) {
    rope.fault(kind.is_null() ? std::string("rope_type is missing; known: default, linear, llama3")
                              : "rope_type " + excerpt(kind) + ": not supported; known: default, linear, llama3");
    return;  // its other keys belong to a kind that is not known
  }
  rope.refuse_unknown({});
}

void read_experts(JsonSection& top, ModelConfig& config) {
  constexpr std::int64_t kMostExperts = 1 << 12;
  config.experts = top.natural("num_local_experts", kMostExperts, 8);
  config.experts_per_token = top.natural("num_experts_per_tok", kMostExperts, 2);
  if (config.experts_per_token > config.experts && config.experts > 0) {
    top.fault("num_experts_per_tok", fmt::format("more than the {} experts (num_local_experts)", config.experts));
  }
  top.only("router_jitter_noise", {0.0, 0});
  // How Transformers trains; here losses of routers are a run's own flags.
  top.value("output_router_logits");
  top.value("router_aux_loss_coef");
}

/// The size of a sliding window, and in Qwen's families from which layer on it counts. It may be written and yet be
/// switched off.
void read_window(JsonSection& top, ModelConfig& config) {
  const bool mistral = config.family == "mistral";
  const bool qwen = config.family == "qwen2" || config.family == "qwen3";
  const bool on = top.boolean("use_sliding_window", !qwen);
  if (!on || top.value("sliding_window") == 0) {
    top.value("sliding_window");
    top.value("max_window_layers");
    return;
  }
  const bool mixtral = config.family == "mixtral";
  if (!mistral && !mixtral && !qwen) return top.only("sliding_window", {nullptr, 0});
  // The families' own defaults: only null means that there is no window.
  constexpr std::int64_t kDefaultWindow = 4096;
  constexpr std::int64_t kDefaultFullLayers = 28;
  if (!top.given("sliding_window")) {
    config.window = mixtral ? 0 : kDefaultWindow;
  } else if (top.has("sliding_window")) {
    config.window = top.natural("sliding_window", kMostPositions);
  }
  if (!qwen) return;
  config.full_layers =
      top.value("max_window_layers") == 0 ? 0 : top.natural("max_window_layers", kMostLayers, kDefaultFullLayers);
}

/// layer_types names every layer's attention; it overrides max_window_layers.
void read_layer_types(JsonSection& top, ModelConfig& config) {
  const Json& types = top.value("layer_types");
  if (!is_off(types)) {
    std::int64_t full = 0;
    while (types.is_array() && full < std::ssize(types) && types[static_cast<std::size_t>(full)] == "full_attention")
      ++full;
    const bool rest_slides = types.is_array() && std::all_of(types.begin() + full, types.end(), [](const Json& type) {
                               return type == "sliding_attention";
                             });
    if (!types.is_array() || (full < std::ssize(types) && config.window == 0)) {
      top.fault("layer_types", "only full_attention is supported without a sliding window");
    } else if (!rest_slides) {
      top.fault("layer_types",
                "only full_attention layers first and sliding_attention layers after them are supported");
    } else if (std::ssize(types) != config.layers) {
      top.fault("layer_types", fmt::format("names {} layers, num_hidden_layers is {}", types.size(), config.layers));
    }
    config.full_layers = full;
  }
  if (config.full_layers >= config.layers) config.window = 0;
  if (config.window == 0) config.full_layers = 0;
}

/// What sets the relatives of Llama apart in their configurations.
void read_differences(JsonSection& top, ModelConfig& config) {
  read_window(top, config);
  if (config.family == "qwen2") {
    config.attention_bias = true;
    top.only("hidden_act", {"silu", "swish"});
    return;
  }
  if (config.family == "mistral" || config.family == "mixtral") {
    top.only("hidden_act", {"silu", "swish"});
    if (config.family == "mixtral") read_experts(top, config);
    return;
  }
  config.qk_norm = config.family == "qwen3";
  config.attention_bias = top.boolean("attention_bias", false);
  config.attention_output_bias = config.attention_bias;
  if (config.family == "gemma") {
    // Released configurations say "gelu" in hidden_act but are computed with the tanh form, which hidden_activation
    // says.
    const Json& activation = top.has("hidden_activation") ? top.value("hidden_activation") : top.value("hidden_act");
    top.value("hidden_act");
    if (!activation.is_null() && activation != "gelu_pytorch_tanh" && activation != "gelu") {
      top.fault(top.has("hidden_activation") ? "hidden_activation" : "hidden_act",
                "not supported; must be \"gelu_pytorch_tanh\"");
    }
    return;
  }
  if (config.family != "qwen3") config.mlp_bias = top.boolean("mlp_bias", false);
  const ConfigFamily& family = *find_family(config.family);
  top.only("hidden_act",
           family.activation == "silu" ? std::vector<Json>{"silu", "swish"} : std::vector<Json>{family.activation});
  for (const auto& [key, fallback] : family.extra) {
    config.extra[key] = top.real(key, std::numeric_limits<double>::lowest(), true, fallback);
  }
}

void read_decoder(JsonSection& top, ModelConfig& config, const std::string& source, Problems& problems) {
  config.layers = top.natural("num_hidden_layers", kMostLayers);
  config.hidden = top.natural("hidden_size", kLargestDim);
  config.heads = top.natural("num_attention_heads", kLargestDim);
  // Where a family's own default is a number of some published model, the key must be there.
  const bool kv_heads_needed = config.family == "mistral" || config.family == "qwen3";
  config.kv_heads =
      top.natural("num_key_value_heads", kLargestDim, kv_heads_needed ? std::nullopt : std::optional(config.heads));
  config.ffn = top.natural("intermediate_size", kLargestDim);
  config.vocab = top.natural("vocab_size", kLargestDim);
  config.positions = top.natural("max_position_embeddings", kMostPositions);
  config.norm_eps = top.real("rms_norm_eps", 0, false, 1e-6);
  config.init_std = top.real("initializer_range", 0, true, 0.02);
  config.tied = top.boolean("tie_word_embeddings", find_family(config.family)->tied);
  read_differences(top, config);
  read_layer_types(top, config);
  if (config.heads > 0 && config.kv_heads > 0 && config.heads % config.kv_heads != 0) {
    top.fault(
        fmt::format("{} attention heads (num_attention_heads) are not a multiple of {} key/value heads "
                    "(num_key_value_heads)",
                    config.heads, config.kv_heads));
  }
  if (top.has("head_dim") || config.family == "qwen3") {
    constexpr std::int64_t kQwen3HeadDim = 128;  // the family's default, whatever the hidden size
    config.head_dim = top.natural("head_dim", kLargestDim, kQwen3HeadDim);
  } else if (config.heads > 0 && config.hidden > 0 && config.hidden % config.heads != 0) {
    top.fault(fmt::format("hidden_size {} is not divisible by {} attention heads, and no head_dim is given",
                          config.hidden, config.heads));
  } else if (config.heads > 0) {
    config.head_dim = config.hidden / config.heads;
  }
  top.value("head_dim");
  const bool rotary = find_family(config.family)->rotary;
  if (rotary && config.head_dim % 2 != 0) {
    top.fault(fmt::format("head dimension {} is odd; rotary embeddings need pairs", config.head_dim));
  }
  if (config.heads * config.head_dim > kLargestDim) {
    top.fault(fmt::format("{} heads of dimension {} are wider than {}", config.heads, config.head_dim, kLargestDim));
  }
  if (rotary) read_rope(top, config, source, problems);
}

void read_gpt2(JsonSection& top, ModelConfig& config) {
  config.layers = top.natural("n_layer", kMostLayers);
  config.hidden = top.natural("n_embd", kLargestDim);
  config.heads = top.natural("n_head", kLargestDim);
  config.kv_heads = config.heads;
  config.vocab = top.natural("vocab_size", kLargestDim);
  config.positions = top.natural("n_positions", kMostPositions);
  config.ffn = top.natural("n_inner", kLargestDim, 4 * config.hidden);
  config.norm_eps = top.real("layer_norm_epsilon", 0, false, 1e-5);
  config.init_std = top.real("initializer_range", 0, true, 0.02);
  config.tied = top.boolean("tie_word_embeddings", true);
  config.attention_bias = true;
  config.attention_output_bias = true;
  config.mlp_bias = true;
  top.only("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  top.only("scale_attn_weights", {true});
  top.only("scale_attn_by_inverse_layer_idx", {false});
  top.only("add_cross_attention", {false});
  // n_ctx is the older name of n_positions; files carry both.
  if (top.has("n_ctx") && top.has("n_positions") && top.natural("n_ctx", kMostPositions) != config.positions) {
    top.fault("n_ctx", fmt::format("differs from n_positions {}", config.positions));
  }
  top.value("n_ctx");
  if (config.heads > 0 && config.hidden > 0 && config.hidden % config.heads != 0) {
    top.fault(fmt::format("n_embd {} is not divisible by {} attention heads (n_head)", config.hidden, config.heads));
  } else if (config.heads > 0) {
    config.head_dim = config.hidden / config.heads;
  }
}

std::string family_of(JsonSection& top) {
  const Json& type = top.value("model_type");
  if (!type.is_string()) {
    top.fault((type.is_null() ? std::string("model_type is missing") : "model_type " + excerpt(type)) +
              "; it must be one of " + join(family_names()));
    return {};
  }
  const auto name = type.get<std::string>();
  if (find_family(name)) return name;
  top.fault(fmt::format("model_type \"{}\": this architecture is not supported; known are {}; the nearest is {}", name,
                        join(family_names()), nearest(name, family_names())));
  return {};
}

Json rope_json(const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeScaling::Kind::none:
      return nullptr;
    case RopeScaling::Kind::linear:
      return {{"rope_type", "linear"}, {"factor", scaling.factor}};
    case RopeScaling::Kind::llama3:
      return {{"rope_type", "llama3"},
              {"factor", scaling.factor},
              {"low_freq_factor", scaling.low_frequency_factor},
              {"high_freq_factor", scaling.high_frequency_factor},
              {"original_max_position_embeddings", scaling.original_positions}};
  }
  return nullptr;
}

}  // namespace

void register_config_family(ConfigFamily family) {
  CUBOID_CHECK(find_family(family.type) == nullptr, "configurations of family " + family.type + " are known already");
  families().push_back(std::move(family));
}

ModelConfig read_hf_config(const std::string& json_text, const std::string& source_name) {
  Problems problems;
  const Json json = parse_json(json_text, source_name, problems);
  if (problems.empty() && !json.is_object()) {
    problems.add(source_name + ": a model configuration must be a JSON object, is " + kind_of(json));
  }
  problems.throw_if_any();
  JsonSection top(json, source_name, problems);
  ModelConfig config;
  config.name = source_name;
  config.family = family_of(top);
  problems.throw_if_any();  // the meaning of all other keys depends on it
  check_architectures(top, *find_family(config.family));
  if (config.family == "gpt2") {
    read_gpt2(top, config);
  } else {
    read_decoder(top, config, source_name, problems);
  }
  top.refuse_unknown(kHarmless);
  problems.throw_if_any();
  return config;
}

std::string write_hf_config(const ModelConfig& config) {
  nlohmann::ordered_json json;
  if (config.family == "gpt2") {
    json = {{"architectures", {"GPT2LMHeadModel"}},
            {"model_type", "gpt2"},
            {"activation_function", "gelu_new"},
            {"initializer_range", config.init_std},
            {"layer_norm_epsilon", config.norm_eps},
            {"n_ctx", config.positions},
            {"n_embd", config.hidden},
            {"n_head", config.heads},
            {"n_inner", config.ffn},
            {"n_layer", config.layers},
            {"n_positions", config.positions},
            {"tie_word_embeddings", config.tied},
            {"vocab_size", config.vocab}};
  } else {
    const ConfigFamily* family = find_family(config.family);
    CUBOID_CHECK(family != nullptr, "family " + config.family);
    json = {{"architectures", {family->classes.front()}},
            {"model_type", family->type},
            {"head_dim", config.head_dim},
            {"hidden_act", family->activation},
            {"hidden_size", config.hidden},
            {"initializer_range", config.init_std},
            {"intermediate_size", config.ffn},
            {"max_position_embeddings", config.positions},
            {"num_attention_heads", config.heads},
            {"num_hidden_layers", config.layers},
            {"num_key_value_heads", config.kv_heads},
            {"rms_norm_eps", config.norm_eps},
            {"tie_word_embeddings", config.tied},
            {"vocab_size", config.vocab}};
    const bool mistral = config.family == "mistral" || config.family == "mixtral";
    const bool qwen = config.family == "qwen2" || config.family == "qwen3";
    if (family->rotary) {
      json["rope_scaling"] = rope_json(config.rope_scaling);
      json["rope_theta"] = config.rope_theta;
    }
    for (const auto& [key, value] : config.extra) json[key] = value;
    // A Qwen2 always has biases, a Mistral never.
    if (config.family != "qwen2" && !mistral) json["attention_bias"] = config.attention_bias;
    if (config.family != "gemma" && !mistral && !qwen) json["mlp_bias"] = config.mlp_bias;
    if (mistral || qwen) json["sliding_window"] = config.window > 0 ? nlohmann::ordered_json(config.window) : nullptr;
    if (qwen) {
      json["use_sliding_window"] = config.window > 0;
      json["max_window_layers"] = config.full_layers;
    }
    if (config.experts > 0) {
      json["num_experts_per_tok"] = config.experts_per_token;
      json["num_local_experts"] = config.experts;
    }
    if (config.family == "gemma") json["hidden_activation"] = "gelu_pytorch_tanh";
  }
  return json.dump(2) + "\n";
}

}  // namespace cuboid
