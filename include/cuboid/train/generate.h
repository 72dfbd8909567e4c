// Text from a model: tokens one after the other, each chosen from what the model says follows. The model is cut over
// tensor and pipeline ranks as for training. Every token is a forward pass over the whole sequence (nothing is kept of
// earlier ones), so the forward code is the one that trains, whatever family or operation it is made of.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cuboid/core/dtype.h"
#include "cuboid/core/error.h"
#include "cuboid/parallel/parameter_store.h"
#include "cuboid/value/grid.h"
#include "cuboid/value/model_config.h"

namespace cuboid {

/// How a token is chosen from logits.
struct TokenChoice {
  double temperature = 0;  ///< logits are divided by it; 0: the likeliest token, the first of equals
  double top_p = 1;        ///< only the likeliest tokens that together have at least this probability
  std::uint64_t seed = 0;  ///< of the random numbers, which depend on it and the token's position alone
};

/// The token at `position` of a sequence. @pre logits are not empty, temperature >= 0, 0 < top_p <= 1
std::int32_t choose_token(std::span<const float> logits, const TokenChoice& choice, std::int64_t position);

struct GenerateRequest {
  Grid grid = {};  ///< tensor and pipeline degrees; the others are 1
  DType dtype = DType::float32;
  std::vector<std::int32_t> prompt = {};
  int tokens = 200;       ///< to be made
  std::int32_t end = -1;  ///< a token that ends the text; -1: none
  TokenChoice choice = {};
  int threads_per_rank = 1;
  double deadline = 600;
};

/// Adds every reason why the model cannot do that.
void check_generate(const ModelConfig& model, const GenerateRequest& request, Problems& problems);

/// Generates on threads of this process.
/// @param load   fills a rank's weights; called on every rank
/// @return the new tokens, an `end` included. The same on every grid, but for tokens whose logits are closer than the
///         rounding of sums that the tensor ranks add
/// @pre check_generate found nothing
std::vector<std::int32_t> generate(const ModelConfig& model, const GenerateRequest& request,
                                   const std::function<void(ParameterStore&)>& load);

}  // namespace cuboid
