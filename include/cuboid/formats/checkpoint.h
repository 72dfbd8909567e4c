// A checkpoint on disk: a folder of safetensors files, an index (checkpoint_index.h), the model's config.json and the
// run that wrote it (run.toml). Opening reads headers only; elements are read from mapped files as they are asked for.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cuboid/formats/checkpoint_index.h"
#include "cuboid/formats/safetensors.h"
#include "cuboid/value/model_config.h"
#include "cuboid/value/run_config.h"

namespace cuboid {

/// Elements [global, global + count) of a tensor, wanted at out[to, to + count).
struct WantedRun {
  std::int64_t global = 0;
  std::int64_t count = 0;
  std::int64_t to = 0;
};

class Checkpoint {
 public:
  static constexpr std::string_view kIndexName = "index.json";
  static constexpr std::string_view kRunName = "run.toml";
  static constexpr std::string_view kModelName = "config.json";
  static constexpr std::string_view kLatestName = "latest";
  static constexpr std::string_view kFolderName = "checkpoints";  ///< in a run's folder

  /// @param path  a checkpoint, a folder of checkpoints (its `latest`, or else the newest), or the folder of a run
  /// @throws Error{request} with every fault of index and file headers, and where the files do not fit the index
  static Checkpoint open(const std::string& path);
  /// The folder that open(path) would read; nothing if there is no checkpoint.
  static std::optional<std::string> find(const std::string& path);

  const std::string& path() const { return path_; }
  const CheckpointIndex& index() const { return index_; }
  const ModelConfig& model() const { return model_; }
  /// Null for a checkpoint that no run wrote.
  const RunConfig* run() const { return run_ ? &*run_ : nullptr; }

  /// Null if there is none of that name.
  const CheckpointTensor* find_tensor(std::string_view name) const;
  /// Reads stretches of a tensor. Safe to call from many threads. @pre runs ascend in `global`, do not overlap and lie
  /// in the tensor
  /// @throws Error{request} naming file and tensor if a slice that is read whole does not have its checksum
  void read(const CheckpointTensor& tensor, std::span<const WantedRun> wanted, float* out) const;
  /// The whole tensor in row-major order.
  std::vector<float> read_whole(const CheckpointTensor& tensor) const;

  /// Reads every byte and compares checksums: one line a fault, each naming the file and, where it has one, the tensor.
  std::vector<std::string> verify() const;

 private:
  const std::byte* data_of(const StoredSlice& slice) const;

  std::string path_;
  CheckpointIndex index_;
  ModelConfig model_;
  std::optional<RunConfig> run_;
  std::map<std::string, std::shared_ptr<const SafetensorsFile>, std::less<>> files_;
};

/// "step_00000010".
std::string checkpoint_name(std::int64_t step);

/// Complete checkpoints in a folder of them, oldest step first (paths).
std::vector<std::string> list_checkpoints(const std::string& folder);

/// Removes what an interrupted save or removal has left in a folder of checkpoints. @pre nobody is saving there
void remove_partial_checkpoints(const std::string& folder);

/// A slice to be written, its elements contiguous in memory.
struct SliceToWrite {
  std::string tensor;  ///< "weights/layers.0.mlp.up.weight"
  Shape shape;         ///< global
  Slice slice;
  const float* data = nullptr;
};

/// Writes one file of slices, durably. Returns what the index needs to know of it (tensors and files only).
CheckpointIndex write_checkpoint_file(const std::string& folder, const std::string& name,
                                      std::span<const SliceToWrite> slices);

/// Completes a folder whose slice files are written: model, run and, last, the index. @throws Error{failed}
void write_checkpoint_end(const std::string& folder, CheckpointIndex index, const ModelConfig& model,
                          const RunConfig* run);

}  // namespace cuboid
