#include "cuboid/plan/trace.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "cuboid/models/registry.h"

#include "train/model_stage.h"

namespace cuboid {
namespace {

TracedBytes bytes_of(const MemoryAccount& account, std::int64_t (MemoryAccount::*count)(Category) const) {
  return {(account.*count)(Category::activations), (account.*count)(Category::communication),
          (account.*count)(Category::workspace)};
}

TracedBytes operator-(const TracedBytes& a, const TracedBytes& b) {
  return {a.activations - b.activations, a.communication - b.communication, a.workspace - b.workspace};
}

// The layers of a model by kind; and the model cut off behind the last layer that is the first of its kind.
struct Kinds {
  std::vector<std::vector<int>> layers;
  ModelConfig model;
};

Kinds kinds_of(const ModelConfig& model) {
  const Model& family = model_of(model);
  Kinds kinds;
  std::vector<int> numbers;
  for (int i = 0; i < model.layers; ++i) {
    const int number = family.layer_kind(model, i);
    const auto found = std::find(numbers.begin(), numbers.end(), number);
    if (found == numbers.end()) {
      numbers.push_back(number);
      kinds.layers.push_back({i});
    } else {
      kinds.layers[static_cast<std::size_t>(found - numbers.begin())].push_back(i);
    }
  }
  kinds.model = model;
  kinds.model.layers = kinds.layers.back().front() + 1;
  return kinds;
}

/// Embedding, one layer of each kind and the head, each a stage of its own, on one rank of the meta device.
class Tracer {
 public:
  Tracer(const Kinds& kinds, const TraceOptions& options)
      : options_(options),
        device_(Device::meta([this](const TracedKernel& kernel) { add(kernel); })),
        model_(kinds.model),
        tensor_(communicator(Axis::tp, options.tp_rank, options.tp)),
        data_(communicator(Axis::dp, 0, 1)),
        tp_{tensor_.get(), options.sequence_parallel, options.reduce_dtype},
        table_(parameters_of(model_)) {
    std::vector<StageSpan> spans = {{0, 0, 0, true, false}};
    for (const auto& layers : kinds.layers) spans.push_back({static_cast<int>(spans.size()), layers.front(), 1});
    spans.push_back({static_cast<int>(spans.size()), static_cast<int>(model_.layers), 0, false, true});
    std::vector<StageBlocks> blocks;
    for (const StageSpan& span : spans) blocks.push_back(stage_blocks(span));
    store_ = std::make_unique<ParameterStore>(device_, table_, blocks, options.tp_rank, options.tp, *data_,
                                              ParameterOptions{.dtype = options.dtype});
    batch_.assign(kMicroBatches, {tokens(), tokens()});
    for (const StageSpan& span : spans) {
      stages_.push_back(
          std::make_unique<ModelStage>(device_, model_, tp_, *store_, span, options.seq_len, options.recompute));
    }
  }

  TracedBlock block(std::size_t number) {
    ModelStage& stage = *stages_[number];
    const bool first = number == 0;
    const bool last = number + 1 == stages_.size();
    stage.begin(batch_, {.dropout = options_.dropout}, 1.0, Tape::Mode::record);
    TracedBlock block;
    const TracedBytes before = live();
    // The first micro-batch computes what later ones find: rotary tables.
    Tensor output = stage.forward(0, first ? Tensor() : boundary());
    if (!last) block.output_bytes = static_cast<std::int64_t>(output.bytes());
    output = Tensor();
    stage.backward(0, last ? Tensor() : boundary());
    block.resident = live() - before;
    if (last) block.resident.activations -= loss_bytes();

    base_ = live();
    run(block.forward, [&] { stage.forward(1, first ? Tensor() : boundary()); });
    block.kept = live() - base_;
    run(block.backward, [&] { stage.backward(1, last ? Tensor() : boundary()); });

    stage.forward(2, first ? Tensor() : boundary());
    // A loss is kept until the end of the step.
    base_ = live() - block.kept;
    run(block.input_gradient, [&] { stage.input_gradient(2, last ? Tensor() : boundary()); });
    block.kept_after_input_gradient = live() - base_;
    run(block.weight_gradient, [&] { stage.weight_gradient(2); });
    return block;
  }

  TracedParameters parameters(int block) const {
    TracedParameters counts;
    counts.total = table_.total_of_block(block);
    for (const ParameterInfo& row : table_.rows()) {
      if (row.block != block) continue;
      if (row.split_dim < 0) counts.replicated += row.shape.elements();
      counts.local += shard_shape(row, options_.tp_rank, options_.tp).elements();
    }
    return counts;
  }

 private:
  static constexpr std::size_t kMicroBatches = 3;

  std::unique_ptr<Communicator> communicator(Axis axis, int rank, int size) {
    return make_meta_communicator(
        device_, rank, size, name_of(axis), [this, axis, size](Collective operation, double bytes, DType dtype) {
          if (!events_) return;
          events_->push_back(TracedCommunication{axis, operation, size, bytes, dtype, device_.phase()});
        });
  }

  void add(const TracedKernel& kernel) {
    if (events_) events_->push_back(kernel);
  }

  TracedBytes live() const { return bytes_of(device_.account(), &MemoryAccount::live); }

  template <typename F>
  void run(TracedPass& pass, F&& body) {
    device_.account().reset_peaks();
    events_ = &pass.events;
    body();
    events_ = nullptr;
    pass.peak = bytes_of(device_.account(), &MemoryAccount::peak) - base_;
    std::int64_t others = base_.total();
    for (const Category category : {Category::parameters, Category::gradients, Category::optimizer}) {
      others += device_.account().live(category);
    }
    pass.peak_total = device_.account().peak_total() - others;
  }

  Tensor tokens() const { return device_.empty({options_.seq_len, options_.micro_batch}, DType::int32); }
  // What crosses from block to block: (T,B,C), or its shard of the sequence.
  Tensor boundary() const {
    const std::int64_t positions = tp_.splits_sequence() ? options_.seq_len / options_.tp : options_.seq_len;
    return device_.empty({positions, options_.micro_batch, model_.hidden}, options_.dtype);
  }
  std::int64_t loss_bytes() const { return options_.micro_batch * static_cast<std::int64_t>(size_of(DType::float64)); }

  TraceOptions options_;
  std::vector<TracedEvent>* events_ = nullptr;  // null: nothing is recorded
  Device device_;
  ModelConfig model_;
  std::unique_ptr<Communicator> tensor_;
  std::unique_ptr<Communicator> data_;
  TensorParallel tp_;
  ParameterTable table_;
  std::unique_ptr<ParameterStore> store_;
  std::vector<MicroBatch> batch_;
  std::vector<std::unique_ptr<ModelStage>> stages_;
  TracedBytes base_;
};

}  // namespace

ModelTrace trace_model(const ModelConfig& model, const TraceOptions& options) {
  if (options.cp != 1) {
    throw Error(ErrorKind::request, fmt::format("--cp {}: no model splits the context yet; use 1", options.cp));
  }
  const Kinds kinds = kinds_of(model);
  Tracer tracer(kinds, options);
  ModelTrace trace;
  trace.options = options;
  trace.embedding = tracer.block(0);
  trace.embedding.parameters = tracer.parameters(0);
  for (const auto& layers : kinds.layers) {
    TracedBlock block = tracer.block(trace.layers.size() + 1);
    block.layers = layers;
    block.repeat = static_cast<int>(layers.size());
    block.parameters = tracer.parameters(layers.front() + 1);
    trace.layers.push_back(std::move(block));
  }
  trace.head = tracer.block(kinds.layers.size() + 1);
  trace.head.parameters = tracer.parameters(static_cast<int>(kinds.model.layers) + 1);
  trace.total_parameters = trace.embedding.parameters.total + trace.head.parameters.total;
  for (const TracedBlock& layer : trace.layers) trace.total_parameters += layer.repeat * layer.parameters.total;
  return trace;
}

}  // namespace cuboid
