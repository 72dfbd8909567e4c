// A pipeline stage of a model: its blocks' forward code on a tape per micro-batch. Private to train/.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "cuboid/models/registry.h"
#include "cuboid/parallel/gradients.h"
#include "cuboid/parallel/pipeline/executor.h"

namespace cuboid {

struct MicroBatch {
  Tensor tokens;  ///< (T,B) int32; with context parallelism this rank's part (T/cp,B)
  /// Like tokens, kernels::kIgnore where left out. Undefined: no loss is computed, only the logits of one position.
  Tensor targets;
  std::int64_t first_sample = 0;  ///< global index of b = 0
  std::int64_t logits_at = 0;     ///< without targets: the position
};

/// Which blocks a stage runs.
struct StageSpan {
  int stage = 0;
  int first_layer = 0;
  int layers = 0;
  bool first = false;  ///< holds the embedding
  bool last = false;   ///< holds the head and the loss
};

/// Every column of logits (…,V/tp) on every rank of the tensor group, as float32 (…,V). Collective.
Tensor gather_vocabulary(const Device& device, const TensorParallel& tp, std::int64_t vocab, const Tensor& logits);

/// One span a stage, from the layers of each.
std::vector<StageSpan> stage_spans(const std::vector<int>& stage_layers);

/// Blocks [begin, end) of a stage: 0 is the embedding, layer i is block i + 1, the head follows the last layer.
StageBlocks stage_blocks(const StageSpan& span);

struct PipelineLayout;
/// Blocks of each stage that a pipeline rank runs.
std::vector<StageBlocks> blocks_of_rank(const PipelineLayout& layout, int pipeline_rank);

class ModelStage final : public Stage {
 public:
  ModelStage(const Device& device, const ModelConfig& config, const TensorParallel& tp, ParameterStore& store,
             const StageSpan& span, std::int64_t seq_len, Recompute recompute, const ExpertParallel& experts = {},
             const ContextParallel& context = {});

  /// What the coming micro-batches are. `factor`: 1 / unmasked targets of the global batch.
  void begin(const std::vector<MicroBatch>& batch, const StepIdentity& identity, double factor, Tape::Mode mode);

  Tensor forward(int micro_batch, Tensor input) override;
  Tensor backward(int micro_batch, Tensor gradient) override;
  Tensor input_gradient(int micro_batch, Tensor gradient) override;
  void weight_gradient(int micro_batch) override;
  void reduce_gradient() override { reduction_.finish(weights_done_ == static_cast<int>(runs_.size())); }
  void unshard() override { store_.unshard(span_.stage); }
  void reshard() override { store_.reshard(span_.stage); }

  /// What the routers of the stage's layers did with a micro-batch that has run forward in training.
  const std::map<int, RouterReport>& routed(int micro_batch) const {
    return routed_[static_cast<std::size_t>(micro_batch)];
  }
  bool last() const { return span_.last; }
  /// Last stage: loss sums (B) float64 of a micro-batch that has run forward.
  const Tensor& losses(int micro_batch) const { return losses_[static_cast<std::size_t>(micro_batch)]; }
  void keep_logits(bool keep) { keep_logits_ = keep; }
  /// (T,B,V/tp) of the last micro-batch that kept them; without targets (1,B,V/tp).
  const Tensor& logits() const { return logits_; }

 private:
  struct Run {  // a micro-batch between its forward and its last gradient
    std::unique_ptr<Tape> tape;
    Slot input, output;
  };
  Run& run_of(int micro_batch) { return runs_[static_cast<std::size_t>(micro_batch)]; }
  Forward forward_on(Tape& tape, int micro_batch);
  Var run_layer(Forward& f, int layer, const Var& x, int micro_batch);
  Tensor seed(Tensor gradient) const;

  Device device_;
  const ModelConfig& config_;
  const Model& model_;
  const TensorParallel& tp_;
  ParameterStore& store_;
  StageSpan span_;
  GradientReduction reduction_;
  std::int64_t seq_len_;
  Recompute recompute_;
  ExpertParallel experts_;
  ContextParallel context_;
  ops::RopeTables rope_;

  const std::vector<MicroBatch>* batch_ = nullptr;
  StepIdentity identity_;
  double factor_ = 0;
  Tape::Mode mode_ = Tape::Mode::record;
  std::vector<Run> runs_;
  int weights_done_ = 0;  // micro-batches whose weight gradients have been added
  std::vector<Tensor> losses_;
  std::vector<std::map<int, RouterReport>> routed_;  // by micro-batch and layer
  bool keep_logits_ = false;
  Tensor logits_;
};

}  // namespace cuboid
