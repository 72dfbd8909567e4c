// A training run: from a checked RunConfig to metrics. Every rank runs the same code; events are called on rank 0 only.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cuboid/comm/processes.h"
#include "cuboid/runtime/memory.h"
#include "cuboid/train/checkpointing.h"
#include "cuboid/train/expert_load.h"
#include "cuboid/train/pipeline_plan.h"
#include "cuboid/value/model_config.h"
#include "cuboid/value/run_config.h"

namespace cuboid {

/// What was decided before the first step.
struct RunStart {
  std::int64_t params = 0;  ///< distinct weights of the whole model
  int world = 1;
  int micro_batches = 1;             ///< a data-parallel rank's micro-batches a step
  std::vector<int> stage_layers;     ///< layers of each pipeline stage
  bool stages_balanced = false;      ///< chosen by cost (true) or given (false)
  std::vector<double> stage_work;    ///< what a micro-batch costs each stage, all actions: why the split is this
  std::string cost_unit;             ///< "FLOP", modelled, or "s", measured
  double schedule_bubble = 0;        ///< bubble fraction of the schedule at these costs
  double schedule_barrier = 0;       ///< share of the step lost to the barrier at its end (Simulation::barrier)
  std::optional<AutoChoice> chosen;  ///< with --schedule auto
  std::int64_t train_samples = 0;
  std::int64_t validation_samples = 0;
};

struct StepMetrics {
  int step = 0;           ///< counted from 0
  double loss = 0;        ///< sum over unmasked tokens of the global batch / their number, in nats
  double grad_norm = 0;   ///< global L2 norm before clipping; NaN if any gradient is not finite
  ExpertLoad experts;     ///< of a model that has some
  int skipped_steps = 0;  ///< steps up to this one whose update was left out: their loss or gradient was not finite
  double lr = 0;
  std::int64_t tokens = 0;  ///< tokens of the global batch
  double step_seconds = 0;
  double tokens_per_second = 0;
  double tflops_per_rank = 0;  ///< model FLOPs (forward matmuls × 3) / step_seconds / world / 1e12
  double bubble_fraction = 0;  ///< measured: 1 - computing time / time from first to last action, mean over ranks
  /// What the schedule itself makes idle with this step's mean times of F, B, I and W of each stage, and free
  /// transfers; the measured bubble has waits for messages, reductions and cores on top.
  double schedule_bubble_fraction = 0;
  std::array<std::int64_t, kCategoryCount> peak_bytes{};  ///< of each category, on the rank where it is largest
  std::vector<MemoryUse> rank_peaks;                      ///< of every rank in this step
};

struct TrainResult {
  int steps = 0;       ///< done in all, those before a checkpoint included
  int first_step = 0;  ///< that this run did: 0, or where its checkpoint was
  double final_loss = 0;
  std::optional<double> validation_loss;  ///< the last one measured
  std::int64_t params = 0;
  int world = 1;
  double tokens_per_second = 0;         ///< over all steps but the first
  double bubble_fraction = 0;           ///< mean over all steps but the first
  double schedule_bubble_fraction = 0;  ///< mean over all steps but the first
  std::string weights_hash;             ///< 16 hex digits over all weights in global name and element order
  int skipped_steps = 0;                ///< as in StepMetrics
  std::vector<MemoryUse> rank_peaks;    ///< of every rank over the whole run
  bool nan_stop = false;                ///< ended early by --stop-on-nan
  bool stopped = false;                 ///< ended early because stop_wanted or --max-seconds said so
};

struct TrainEvents {
  std::function<void(const RunStart&)> on_start;
  std::function<void(const StepMetrics&)> on_step;
  std::function<void(int step, double loss)> on_validation;
  std::function<void(const Position&, const std::string& path)> on_checkpoint;  ///< one has become visible
  std::function<bool()> stop_wanted;  ///< asked after each step: save, if there is an output folder, and end
  /// After a failure: a report a rank, as RankOptions says.
  std::function<void(const std::vector<std::string>&)> on_failure;
};

/// Where the ranks run: as threads of this process, or over the processes of a job.
struct Fabric {
  Processes* job = nullptr;  ///< null: threads
  int ranks_per_process = 1;
  std::vector<int> gpus = {};  ///< as RankOptions: of this process's ranks; empty: they compute on the CPU
};

/// Trains. Writes only what the config names: dump_grads, and in out checkpoints/ and, with timeline, timeline.json.
/// @param checkpoint  to go on from, on any grid: steps, samples, weights and moments continue, the rest is the
/// config's;
///                    null: from the start
/// @throws Error{request} for anything wrong with the request, before threads start or memory is allocated by it;
///         Error{failed} or Error{deadline} for a run that broke, naming the rank.
TrainResult train(const RunConfig& run, const ModelConfig& model, const TrainEvents& events = {},
                  const Checkpoint* checkpoint = nullptr, const Fabric& fabric = {});

}  // namespace cuboid
