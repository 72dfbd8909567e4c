// cuboid models: the presets, or one model's parameters, FLOPs and the degrees that fit it.
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cuboid/core/text.h"
#include "cuboid/core/units.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/models/registry.h"
#include "cuboid/train/check.h"

#include "launch/commands.h"
#include "launch/flags.h"

namespace cuboid::launch {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kUsage = "cuboid models [--model M] [--json]";
constexpr const char* kSummary =
    "Lists the presets, or describes one model: parameters, FLOPs of a token, and the degrees it can be split into.";
// Float32 weights and gradients, and two moments of the optimizer.
constexpr double kStateBytesPerParameter = 16;

struct Description {
  ModelConfig config;
  ParameterTable parameters;
  FlopsPerToken flops;
  std::vector<int> tensor_degrees;
  std::vector<int> expert_degrees;
};

Description describe(const std::string& model, std::int64_t seq_len) {
  ModelConfig config = load_model(model);
  ParameterTable parameters = parameters_of(config);
  const FlopsPerToken flops = flops_per_token(config, seq_len > 0 ? seq_len : config.positions);
  std::vector<int> degrees = usable_tensor_degrees(config);
  std::vector<int> expert_degrees = usable_expert_degrees(config);
  return {std::move(config), std::move(parameters), flops, std::move(degrees), std::move(expert_degrees)};
}

std::string list_of(const std::vector<int>& degrees) {
  return alternatives({degrees.begin(), degrees.end()});
}

Json json_of(const Description& d, std::int64_t seq_len) {
  const ModelConfig& c = d.config;
  const int head = static_cast<int>(c.layers) + 1;
  return {{"name", c.name},
          {"family", c.family},
          {"layers", c.layers},
          {"hidden", c.hidden},
          {"heads", c.heads},
          {"kv_heads", c.kv_heads},
          {"head_dim", c.head_dim},
          {"ffn", c.ffn},
          {"experts", c.experts},
          {"experts_per_token", c.experts_per_token},
          {"vocab", c.vocab},
          {"positions", c.positions},
          {"tied", c.tied},
          {"parameters",
           {{"total", d.parameters.total()},
            {"active", d.parameters.active(c.experts_per_token)},
            {"embedding", d.parameters.total_of_block(0)},
            {"layer", d.parameters.total_of_block(1)},
            {"head", d.parameters.total_of_block(head)}}},
          {"flops_per_token",
           {{"seq_len", seq_len > 0 ? seq_len : c.positions},
            {"forward", std::llround(d.flops.forward())},
            {"forward_matrices", std::llround(d.flops.parameters)},
            {"forward_attention", std::llround(d.flops.attention)},
            {"training", std::llround(d.flops.training())}}},
          {"usable_tp", d.tensor_degrees},
          {"usable_ep", d.expert_degrees},
          {"largest_pp", c.layers}};
}

std::string table(const std::vector<Description>& all) {
  std::string text = fmt::format("{:<16} {:>12} {:>13} {:>7} {:>7} {:>6} {:>4} {:>8}  {}\n", "model", "parameters",
                                 "FLOPs a token", "layers", "hidden", "heads", "kv", "vocab", "tp");
  for (const Description& d : all) {
    const ModelConfig& c = d.config;
    text += fmt::format("{:<16} {:>12} {:>13} {:>7} {:>7} {:>6} {:>4} {:>8}  {}\n", c.name,
                        human_count(static_cast<double>(d.parameters.total())), human_count(d.flops.forward()),
                        c.layers, c.hidden, c.heads, c.kv_heads, c.vocab, list_of(d.tensor_degrees));
  }
  return text +
         "\n`cuboid models --model M` describes one. kv: key/value heads; tp: degrees that divide them; pp may be any\n"
         "number up to the layers, dp any, ep any that divides the experts. FLOPs are those of a forward pass: 2 for\n"
         "each weight of a matrix that multiplies the token, and causal attention over the model's longest sequence,\n"
         "or --seq-len T (2 x T x heads x head dim a layer; less with a window). Training takes 3 times that.\n";
}

std::string details(const Description& d, std::int64_t seq_len) {
  const ModelConfig& c = d.config;
  const double total = static_cast<double>(d.parameters.total());
  const int head = static_cast<int>(c.layers) + 1;
  std::string text = fmt::format("{} ({})\n", c.name, c.family);
  const auto row = [&](const char* what, const std::string& value) {
    text += fmt::format("  {:<28} {}\n", what, value);
  };
  row("layers", std::to_string(c.layers));
  row("hidden, ffn", fmt::format("{}, {}", c.hidden, c.ffn));
  row("heads, key/value heads", fmt::format("{}, {} of {}", c.heads, c.kv_heads, c.head_dim));
  if (c.experts > 0) row("experts, of a token", fmt::format("{}, {}", c.experts, c.experts_per_token));
  row("vocabulary, positions", fmt::format("{}, {}", c.vocab, c.positions));
  row("output head", c.tied ? "shares the embedding" : "its own");
  row("parameters", fmt::format("{} ({})", d.parameters.total(), human_count(total)));
  if (c.experts > 0) {
    const std::int64_t active = d.parameters.active(c.experts_per_token);
    row("  active a token", fmt::format("{} ({})", active, human_count(static_cast<double>(active))));
  }
  row("  embedding", std::to_string(d.parameters.total_of_block(0)));
  row("  a layer", std::to_string(d.parameters.total_of_block(1)));
  row("  final norm and head", std::to_string(d.parameters.total_of_block(head)));
  row("training state, float32", human_bytes(static_cast<std::uint64_t>(kStateBytesPerParameter * total)));
  row("FLOPs a token", fmt::format("{} forward, {} training (T = {})", human_count(d.flops.forward()),
                                   human_count(d.flops.training()), seq_len > 0 ? seq_len : c.positions));
  row("usable tp", list_of(d.tensor_degrees));
  if (c.experts > 0) row("usable ep", list_of(d.expert_degrees));
  row("usable pp", fmt::format("1 to {}", c.layers));
  return text;
}

}  // namespace

int models_command(const Arguments& arguments) {
  Flags flags(kUsage, kSummary);
  std::string model;
  std::int64_t seq_len = 0;
  bool json = false;
  flags.section("Flags");
  flags.text("model", "M", model, "describe this preset, Hugging Face config.json, or folder with one");
  flags.whole("seq-len", seq_len, "tokens of a sequence for the FLOPs of attention; 0: the model's positions", 0);
  flags.toggle("json", json, "print JSON on standard output");
  Problems problems;
  if (!flags.read(arguments, problems)) return 0;
  problems.throw_if_any();
  if (!model.empty()) {
    const Description one = describe(model, seq_len);
    fmt::print("{}", json ? json_of(one, seq_len).dump(2) + "\n" : details(one, seq_len));
    return 0;
  }
  std::vector<Description> all;
  for (const auto& name : preset_names()) all.push_back(describe(name, seq_len));
  if (!json) {
    fmt::print("{}", table(all));
    return 0;
  }
  Json list = Json::array();
  for (const Description& d : all) list.push_back(json_of(d, seq_len));
  fmt::print("{}\n", Json{{"models", list}}.dump(2));
  return 0;
}

}  // namespace cuboid::launch
