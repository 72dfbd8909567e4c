#include "block_probe.h"

#include <algorithm>

namespace cuboid {
namespace {

TracedBytes bytes_of(const MemoryAccount& account, std::int64_t (MemoryAccount::*count)(Category) const) {
  return {(account.*count)(Category::activations), (account.*count)(Category::communication),
          (account.*count)(Category::workspace)};
}

TracedBytes operator-(const TracedBytes& a, const TracedBytes& b) {
  return {a.activations - b.activations, a.communication - b.communication, a.workspace - b.workspace};
}

}  // namespace

LayerKinds kinds_of_layers(const ModelConfig& model) {
  const Model& family = model_of(model);
  LayerKinds kinds;
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

BlockProbe::BlockProbe(const Device& device, Communicator& tensor, Communicator& experts, Communicator& context,
                       Communicator& data, const LayerKinds& kinds, const TraceOptions& options, Recording recording)
    : device_(device),
      options_(options),
      model_(kinds.model),
      tp_{&tensor, options.sequence_parallel, options.reduce_dtype},
      ep_{&experts, &context},
      cp_{&context, options.reduce_dtype},
      table_(parameters_of(model_)),
      recording_(std::move(recording)) {
  spans_.push_back({0, 0, 0, true, false});
  for (const auto& layers : kinds.layers) {
    spans_.push_back({static_cast<int>(spans_.size()), layers.front(), 1, false, false});
  }
  spans_.push_back({static_cast<int>(spans_.size()), static_cast<int>(model_.layers), 0, false, true});
  std::vector<StageBlocks> blocks;
  for (const StageSpan& span : spans_) blocks.push_back(stage_blocks(span));
  const CopyGroups groups(data, data, experts.rank(), experts.size());
  store_ = std::make_unique<ParameterStore>(device_, table_, blocks, tensor.rank(), tensor.size(), groups,
                                            ParameterOptions{.dtype = options.dtype});
  for (std::size_t i = 0; i < kMicroBatches; ++i) batch_.push_back({tokens(), tokens(), 0});
  for (const StageSpan& span : spans_) {
    stages_.push_back(std::make_unique<ModelStage>(device_, model_, tp_, *store_, span, options.seq_len,
                                                   options.recompute, ep_, cp_));
  }
}

TracedBlock BlockProbe::run(std::size_t number) {
  ModelStage& stage = *stages_[number];
  const bool first = spans_[number].first;
  const bool last = spans_[number].last;
  const auto input = [&] { return first ? Tensor() : boundary(); };
  const auto gradient = [&] { return last ? Tensor() : boundary(); };
  stage.begin(batch_, {.dropout = options_.dropout}, 1.0, Tape::Mode::record);
  TracedBlock block;
  block.parameters = count_parameters(stage_blocks(spans_[number]).begin);
  // The first micro-batch makes what later ones find: rotary tables.
  const TracedBytes before = live();
  if (!last) block.output_bytes = static_cast<std::int64_t>(boundary().bytes());
  stage.forward(0, input());
  stage.backward(0, gradient());
  block.resident = live() - before;
  if (last) block.resident.activations -= loss_bytes();

  base_ = live();
  measure(block.forward, [&] { stage.forward(1, input()); });
  block.kept = live() - base_;
  measure(block.backward, [&] { stage.backward(1, gradient()); });

  stage.forward(2, input());
  base_ = live() - block.kept;
  measure(block.input_gradient, [&] { stage.input_gradient(2, gradient()); });
  block.kept_after_input_gradient = live() - base_;
  measure(block.weight_gradient, [&] { stage.weight_gradient(2); });
  return block;
}

TracedBytes BlockProbe::live() const {
  return bytes_of(device_.account(), &MemoryAccount::live);
}

template <typename F>
void BlockProbe::measure(TracedPass& pass, F&& body) {
  MemoryAccount& account = device_.account();
  account.reset_peaks();
  if (recording_) recording_(&pass.events);
  body();
  if (recording_) recording_(nullptr);
  pass.peak = bytes_of(account, &MemoryAccount::peak) - base_;
  std::int64_t others = base_.total();
  for (const Category category : {Category::parameters, Category::gradients, Category::optimizer}) {
    others += account.live(category);
  }
  pass.peak_total = account.peak_total() - others;
}

TracedParameters BlockProbe::count_parameters(int block) const {
  TracedParameters counts;
  counts.total = table_.total_of_block(block);
  for (const ParameterInfo& row : table_.rows()) {
    if (row.block != block) continue;
    if (row.split_dim < 0) counts.replicated += row.shape.elements();
    if (!on_expert_rank(row, ep_.rank(), ep_.size())) continue;
    const std::int64_t local = shard_shape(row, tp_.rank(), tp_.size()).elements();
    counts.local += local;
    if (row.expert >= 0) counts.local_expert += local;
  }
  return counts;
}

Tensor BlockProbe::tokens() const {
  return device_.zeros({part(), options_.micro_batch}, DType::int32);
}

// What crosses from block to block: (T/cp,B,C), or its shard of the sequence.
Tensor BlockProbe::boundary() const {
  const std::int64_t positions = tp_.splits_sequence() ? part() / tp_.size() : part();
  return device_.empty({positions, options_.micro_batch, model_.hidden}, options_.dtype);
}

// A micro-batch's loss outlives its backward: it is read at the end of the step.
std::int64_t BlockProbe::loss_bytes() const {
  return options_.micro_batch * static_cast<std::int64_t>(size_of(DType::float64));
}

}  // namespace cuboid
