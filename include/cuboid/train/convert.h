// Checkpoints as a whole, apart from any run: to and from Hugging Face folders, rewritten with fewer files, compared.
// One tensor is in memory at a time, or one file's worth where files are written. Results appear whole or not at all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cuboid/formats/checkpoint.h"

namespace cuboid {

/// Largest file that is written, unless one tensor alone is larger.
inline constexpr std::int64_t kDefaultFileBytes = std::int64_t{5} << 30;

/// Writes a Hugging Face folder: config.json and float32 weights under the model's published names and layouts, a tied
/// head left out; model.safetensors, or model-00001-of-00003.safetensors … with model.safetensors.index.json.
/// @throws Error{request} if `folder` exists and is not empty; Error{failed} where writing fails
void export_hugging_face(const Checkpoint& checkpoint, const std::string& folder,
                         std::int64_t file_bytes = kDefaultFileBytes);

/// Writes a checkpoint of step 0, without moments, from a Hugging Face folder (config.json and weights).
/// @throws Error{request} with every reason why the weights are not the model's, and as export_hugging_face
void import_hugging_face(const std::string& from, const std::string& folder,
                         std::int64_t file_bytes = kDefaultFileBytes);

/// Writes the same checkpoint with every tensor whole.
void reshard(const Checkpoint& checkpoint, const std::string& folder, std::int64_t file_bytes = kDefaultFileBytes);

/// Where two checkpoints' tensors first differ, in name order.
struct Difference {
  std::string tensor;
  std::string what;           ///< "is only in A", "has shapes …", "element 7 (0,7) is 1.5 and 2.5"
  std::int64_t elements = 0;  ///< of the tensor that differ (by bits)
  friend bool operator==(const Difference&, const Difference&) = default;
};
std::optional<Difference> first_difference(const Checkpoint& a, const Checkpoint& b);

}  // namespace cuboid
