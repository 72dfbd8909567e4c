// Model families by name, and the facts about a model that follow from its parameter table.
#pragma once

#include <string>
#include <vector>

#include "cuboid/formats/hf_config.h"
#include "cuboid/models/model.h"

namespace cuboid {

/// The family of a configuration. @throws Error{request} naming the known families
const Model& model_of(const ModelConfig& config);
std::vector<std::string> model_families();
/// Adds a family and how its configurations are read: from then on every command knows it. Before ranks start: not
/// thread safe. @throws std::logic_error if a family of that name, or its configuration type, is known already
void register_model(std::unique_ptr<Model> model, ConfigFamily configuration);

/// True if the model learns a vector a position: it cannot see more than config.positions tokens.
bool learns_positions(const ModelConfig& config);

/// The configuration's parameters, in pipeline order.
ParameterTable parameters_of(const ModelConfig& config);

/// Forward matrix-product FLOPs per token.
struct FlopsPerToken {
  double parameters = 0;  ///< 2 × weights of the matrices that multiply a token, output head included
  /// Scores and context of the keys that a query sees: 2·T·H·D a layer (half of the full square's 4·T·H·D), or with a
  /// window W < T 4·(W - W²/(2T))·H·D.
  double attention = 0;
  double forward() const { return parameters + attention; }
  /// Forward and backward: backward costs twice the forward.
  double training() const { return 3 * forward(); }
};
FlopsPerToken flops_per_token(const ModelConfig& config, std::int64_t seq_len);

/// Relative forward cost of each block (embedding, L layers, head): FLOPs per token, with gathers and norms counted by
/// a small share of the hidden size. What stages are balanced by.
std::vector<double> block_costs(const ModelConfig& config, std::int64_t seq_len);

/// Largest tp ≤ limit etc.: all tensor-parallel degrees (1 … limit) this model can be split over.
std::vector<int> usable_tensor_degrees(const ModelConfig& config, int limit = 1024);
/// All expert-parallel degrees: the divisors of the number of experts; 1 without any.
std::vector<int> usable_expert_degrees(const ModelConfig& config);

}  // namespace cuboid
