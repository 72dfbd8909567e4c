// One block at a time through forward and backward on a device, with its memory measured on the way. The tracer runs it
// on the meta device; tests run the same on the CPU, where the bytes must come out the same. Private to plan/.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cuboid/models/registry.h"
#include "cuboid/plan/trace.h"

#include "train/model_stage.h"

namespace cuboid {

/// The layers of a model by kind; and the model cut off behind the last layer that is the first of its kind.
struct LayerKinds {
  std::vector<std::vector<int>> layers;
  ModelConfig model;
};
LayerKinds kinds_of_layers(const ModelConfig& model);

/// Embedding, one layer of each kind and the head, each a stage of its own, on one rank.
class BlockProbe {
 public:
  /// Called with the events of the pass that begins, and with null when it has ended.
  using Recording = std::function<void(std::vector<TracedEvent>*)>;

  /// @param experts  the expert group
  /// @param context  the context group
  /// @param data     the data-parallel ranks with the same experts
  /// @param options  what they say about ranks must be what the communicators say
  BlockProbe(const Device& device, Communicator& tensor, Communicator& experts, Communicator& context,
             Communicator& data, const LayerKinds& kinds, const TraceOptions& options, Recording recording = {});

  /// Blocks are numbered 0 embedding, then the kinds of layers, then the head.
  std::size_t blocks() const { return stages_.size(); }
  TracedBlock run(std::size_t block);

 private:
  static constexpr std::size_t kMicroBatches = 3;

  TracedBytes live() const;
  template <typename F>
  void measure(TracedPass& pass, F&& body);
  TracedParameters count_parameters(int block) const;
  std::int64_t part() const { return options_.seq_len / cp_.size(); }
  Tensor tokens() const;
  Tensor boundary() const;
  std::int64_t loss_bytes() const;

  Device device_;
  TraceOptions options_;
  ModelConfig model_;
  TensorParallel tp_;
  ExpertParallel ep_;
  ContextParallel cp_;
  ParameterTable table_;
  Recording recording_;
  std::unique_ptr<ParameterStore> store_;
  std::vector<MicroBatch> batch_;
  std::vector<StageSpan> spans_;
  std::vector<std::unique_ptr<ModelStage>> stages_;
  TracedBytes base_;
};

}  // namespace cuboid
