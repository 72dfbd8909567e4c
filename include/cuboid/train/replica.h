// This rank's part of a model on a grid: communicators, parameters, pipeline stages and the executor that runs them.
// It computes losses and gradients of a global batch; the trainer decides what to do with them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuboid/comm/ranks.h"
#include "cuboid/models/registry.h"
#include "cuboid/parallel/gradients.h"
#include "cuboid/parallel/groups.h"
#include "cuboid/parallel/pipeline/executor.h"
#include "cuboid/train/expert_load.h"
#include "cuboid/train/pipeline_plan.h"
#include "cuboid/value/run_config.h"

namespace cuboid {

/// Fills inputs (T) and targets (T; kernels::kIgnore: left out) of sample i of a global batch; false: no such sample,
/// every target is left out.
using SampleReader =
    std::function<bool(std::int64_t i, std::span<std::int32_t> inputs, std::span<std::int32_t> targets)>;

struct BatchLoss {
  double sum = 0;           ///< nats over all unmasked targets of the global batch, added in global sample order
  std::int64_t tokens = 0;  ///< unmasked targets
  double mean() const { return tokens > 0 ? sum / static_cast<double>(tokens) : 0; }
};

class ModelStage;

class Replica {
 public:
  /// Collective over the world. Weights are allocated, not set.
  Replica(RankContext& context, const RunConfig& run, const ModelConfig& config, const PipelineLayout& layout);
  ~Replica();

  const Groups& groups() const { return groups_; }
  ParameterStore& parameters() { return *store_; }
  const ParameterTable& table() const { return table_; }
  const Device& device() const { return device_; }

  /// Runs the schedule on a global batch; gradients of Σ loss / tokens are left in the store, complete: summed over
  /// data ranks, tensor-partial and tied ones added. The same loss on every rank. `step` runs inside the schedule's
  /// STEP.
  /// @param first_sample  global index of the batch's first sample, which keys its dropout
  BatchLoss train_batch(const SampleReader& read, const StepIdentity& identity, std::int64_t first_sample,
                        const std::function<void()>& step);
  /// The loss of the batch being trained, known (and the same on every rank) once `step` is called.
  const BatchLoss& loss() const { return loss_; }
  /// The expert load of the batch that was trained last, the same on every rank.
  const ExpertLoad& expert_load() const { return expert_load_; }
  /// Loss of one global batch without gradients or dropout.
  BatchLoss evaluate_batch(const SampleReader& read);
  /// Logits (T,V) of the last micro-batch's row b after evaluate_batch with `keep_logits`, on ranks of the last stage.
  /// Collective over their tensor and context groups.
  void keep_logits(bool keep);
  Tensor logits(std::int64_t b) const;

  /// Spans of the last run and this rank's computing time in it.
  const std::vector<Span>& spans() const { return executor_->spans(); }

 private:
  struct Batch;
  Batch read_batch(const SampleReader& read, std::int64_t first_sample);
  BatchLoss collect_loss(std::int64_t tokens);
  ExpertLoad collect_expert_load();
  int micro_batches() const { return layout_.training.micro_batches; }

  Device device_;
  RunConfig run_;
  ModelConfig config_;
  const PipelineLayout& layout_;
  ParameterTable table_;
  Groups groups_;
  StageChannels channels_;
  TensorParallel tp_;
  ExpertParallel experts_;
  ContextParallel context_;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<TensorPartialGradients> partial_;
  std::vector<std::unique_ptr<ModelStage>> stages_;
  BatchLoss loss_;
  ExpertLoad expert_load_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Executor> evaluator_;
};

}  // namespace cuboid
