// Between Hugging Face tensors and a rank's shards: names, layouts and ties are the model's (models/), bytes are the
// format's (formats/safetensors.h); here they meet.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cuboid/core/error.h"
#include "cuboid/formats/safetensors.h"
#include "cuboid/models/registry.h"

namespace cuboid {

/// The name under which a folder holds a Hugging Face tensor: GPT-2's published files leave out "transformer.".
std::string name_in(const WeightFolder& folder, const std::string& name);

/// Global rows of the parameter that the Hugging Face tensor covers, and the shape in which it is stored.
Range covered_rows(const HfTensor& hf, const ParameterInfo& info);
Shape stored_shape(const HfTensor& hf, const ParameterInfo& info);

/// Adds every reason why the folder does not hold this model's weights: missing tensors, wrong shapes, an untied model
/// without an output head, a tied one whose stored head differs from its embedding. Reads headers (and, for a stored
/// tied head, its values) only.
void check_weights(const WeightFolder& folder, const ModelConfig& config, Problems& problems);

/// Reads this rank's shards, and nothing else, straight into the store. @pre check_weights found nothing
void load_weights(const WeightFolder& folder, const ModelConfig& config, ParameterStore& store);

/// Σ over a rank's own elements of a 64-bit mix of (global name, global element index, bits of the float32 master),
/// modulo 2^64: the sum over ranks (tensor, pipeline, and data where the store is sharded) hashes the whole model, the
/// same on any grid that holds the same bits. Copies and ties count once.
std::uint64_t local_weights_hash(const ParameterStore& store);

/// Σ gradient² of each Hugging Face tensor, this rank's elements only (copies once), in the order of
/// Model::hugging_face_tensors. @param of_values  squares of the weights instead
std::vector<double> local_hugging_face_squares(const std::vector<HfTensor>& tensors, const ParameterStore& store,
                                               bool of_values = false);

}  // namespace cuboid
