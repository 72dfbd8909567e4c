#include "cuboid/models/registry.h"

#include <algorithm>

#include "families.h"

namespace cuboid {
namespace {

std::vector<std::unique_ptr<Model>>& models() {
  static auto instance = [] {
    std::vector<std::unique_ptr<Model>> made;
    made.push_back(make_gpt2());
    made.push_back(make_llama());
    made.push_back(make_mistral());
    made.push_back(make_qwen2());
    made.push_back(make_qwen3());
    made.push_back(make_gemma());
    made.push_back(make_mixtral());
    return made;
  }();
  return instance;
}

// Weights of a block that multiply a token: its matrices, but for the gathered tables of the embedding block and the
// experts that the token does not visit.
std::int64_t matrix_weights(const ModelConfig& config, const ParameterTable& table, int block) {
  std::int64_t sum = 0;
  for (const auto& row : table.rows()) {
    if (row.block != block || block == 0 || row.shape.rank() != 2) continue;
    if (row.expert < config.experts_per_token) sum += row.shape.elements();
  }
  return sum;
}

// Of a layer, per token.
double attention_flops(const ModelConfig& c, std::int64_t seq_len, std::int64_t layer) {
  const std::int64_t window = c.window_of(layer) > 0 ? std::min(c.window_of(layer), seq_len) : seq_len;
  const auto w = static_cast<double>(window);
  const double seen = w - w * w / (2.0 * static_cast<double>(seq_len));
  return 4.0 * seen * static_cast<double>(c.heads * c.head_dim);
}

}  // namespace

const Model& model_of(const ModelConfig& config) {
  for (const auto& model : models()) {
    if (model->family() == config.family) return *model;
  }
  std::string known;
  for (const auto& family : model_families()) known += (known.empty() ? "" : ", ") + family;
  throw Error(ErrorKind::request, "model family '" + config.family + "' is unknown; known are " + known);
}

void register_model(std::unique_ptr<Model> model, ConfigFamily configuration) {
  const std::string family = model->family();
  CUBOID_CHECK(configuration.type == family,
               "model family " + family + " with configurations of " + configuration.type);
  const auto names = model_families();
  CUBOID_CHECK(std::find(names.begin(), names.end(), family) == names.end(), "model family " + family + " twice");
  register_config_family(std::move(configuration));
  models().push_back(std::move(model));
}

std::vector<std::string> model_families() {
  std::vector<std::string> names;
  for (const auto& model : models()) names.push_back(model->family());
  return names;
}

ParameterTable parameters_of(const ModelConfig& config) {
  return model_of(config).parameters(config);
}

bool learns_positions(const ModelConfig& config) {
  const ParameterTable table = parameters_of(config);
  return std::any_of(table.rows().begin(), table.rows().end(),
                     [](const ParameterInfo& info) { return info.name == "positions.weight"; });
}

FlopsPerToken flops_per_token(const ModelConfig& config, std::int64_t seq_len) {
  const ParameterTable table = parameters_of(config);
  FlopsPerToken flops;
  for (int block = 1; block <= config.layers + 1; ++block) {
    flops.parameters += 2.0 * static_cast<double>(matrix_weights(config, table, block));
  }
  for (std::int64_t i = 0; i < config.layers; ++i) flops.attention += attention_flops(config, seq_len, i);
  return flops;
}

std::vector<double> block_costs(const ModelConfig& config, std::int64_t seq_len) {
  const ParameterTable table = parameters_of(config);
  // Row kernels (gathers, norms, softmax of the loss) move memory instead of multiplying: as FLOPs of equal duration, a
  // few hundred per element at the usual ratio of a hundred FLOPs a byte.
  constexpr double kFlopsPerElement = 200;
  std::vector<double> costs;
  for (int block = 0; block <= config.layers + 1; ++block) {
    double cost = 2.0 * static_cast<double>(matrix_weights(config, table, block));
    cost += kFlopsPerElement * static_cast<double>(config.hidden);
    if (block == config.layers + 1) {
      cost += kFlopsPerElement / 4 * static_cast<double>(config.vocab);
    } else if (block > 0) {
      cost += attention_flops(config, seq_len, block - 1);
    }
    costs.push_back(cost);
  }
  return costs;
}

std::vector<int> usable_expert_degrees(const ModelConfig& config) {
  std::vector<int> degrees = {1};
  for (int ep = 2; ep <= config.experts; ++ep) {
    if (config.experts % ep == 0) degrees.push_back(ep);
  }
  return degrees;
}

std::vector<int> usable_tensor_degrees(const ModelConfig& config, int limit) {
  std::vector<int> degrees;
  for (int tp = 1; tp <= limit && tp <= config.heads && tp <= config.vocab; ++tp) {
    const bool kv = config.kv_heads % tp == 0 || (tp > config.kv_heads && tp % config.kv_heads == 0);
    if (config.heads % tp == 0 && config.ffn % tp == 0 && kv) degrees.push_back(tp);
  }
  return degrees;
}

}  // namespace cuboid
