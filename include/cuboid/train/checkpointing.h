// Checkpoints between the ranks of a run and a folder: which rank writes which elements, when a checkpoint becomes
// visible, and how a run goes on from one on any grid. The files are formats/checkpoint.h.
#pragma once

#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cuboid/comm/ranks.h"
#include "cuboid/formats/checkpoint.h"
#include "cuboid/parallel/groups.h"
#include "cuboid/train/optimizer.h"

namespace cuboid {

/// Adds every reason why a run of this model cannot go on from the checkpoint: missing tensors and differing shapes.
void check_checkpoint(const Checkpoint& checkpoint, const ModelConfig& model, Problems& problems);

/// Reads this rank's weights and moments, and nothing else. Moments that the checkpoint lacks stay zero; then the
/// optimizer counts its updates from 0. @pre check_checkpoint found nothing
void load_checkpoint(const Checkpoint& checkpoint, ParameterStore& store, Optimizer& optimizer);

/// Reads this rank's weights alone. @pre check_checkpoint found nothing
void load_checkpoint_weights(const Checkpoint& checkpoint, ParameterStore& store);

/// What a rank writes, and the host memory that its slices point into: the tensors themselves, or copies from a GPU.
struct OwnSlices {
  std::vector<SliceToWrite> slices;
  std::vector<Tensor> numbers;
};
/// The slices that this rank writes: over all ranks, every element of every global tensor exactly once. Elements held
/// by several ranks are written by one; whole parameters are dealt out over data-parallel ranks that hold the same.
/// Pointers lie in the store and the optimizer.
OwnSlices slices_to_write(const ParameterStore& store, const Optimizer& optimizer);

/// Where a run is after a step.
struct Position {
  std::int64_t step = 0;     ///< steps done
  std::int64_t samples = 0;  ///< of the training stream
  double loss = 0;           ///< of the last step
};

/// Writes a rank's part of checkpoints and, on rank 0, makes them visible. All members are collective over the world.
/// A fault of any rank's disk is that rank's Error{failed} with path and reason, and ends the run.
class CheckpointWriter {
 public:
  /// @param folder     of the checkpoints; made if need be
  /// @param on_visible called on rank 0 with the path of each checkpoint that has become visible
  CheckpointWriter(RankContext& context, const RunConfig& run, const ModelConfig& model, const ParameterStore& store,
                   const Optimizer& optimizer, std::string folder,
                   std::function<void(const Position&, const std::string&)> on_visible);
  ~CheckpointWriter();

  /// Saves. In the background (async_save) it begins to copy this rank's part and returns; one checkpoint is in flight
  /// at most, an earlier one is finished first. @pre in the background: before_update() is called before weights or
  /// moments change
  void save(const Position& position);
  /// Waits until what is saved in the background has been copied, which goes on beside forward and backward passes. Not
  /// collective.
  void before_update();
  /// True while this rank's background write goes on. Not collective.
  bool writing() const;
  /// True from a background save until finish().
  bool in_flight() const { return in_flight_.has_value(); }
  /// Waits for the checkpoint in flight, if any, and makes it visible.
  void finish();
  /// At the end of a run: removes what runs that were killed between two removals have left, as saving would.
  /// @pre nothing is in flight
  void tidy();

 private:
  struct Background;
  std::string temporary_folder() const;
  void begin(const Position& position);
  CheckpointIndex write(const std::vector<SliceToWrite>& slices) const;
  void commit(const CheckpointIndex& part);
  void remove_old(const std::string& latest) const;

  RankContext& context_;
  const RunConfig& run_;
  const ModelConfig& model_;
  const ParameterStore& store_;
  const Optimizer& optimizer_;
  std::string folder_;
  std::function<void(const Position&, const std::string&)> on_visible_;
  std::optional<Position> in_flight_;
  int optimizer_steps_ = 0;  // at the checkpoint in flight
  std::unique_ptr<Background> background_;
  std::future<void> removal_;  // of old checkpoints, after a background save
};

}  // namespace cuboid
