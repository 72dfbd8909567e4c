#include "model_stage.h"

#include "cuboid/train/pipeline_plan.h"

namespace cuboid {

std::vector<StageSpan> stage_spans(const std::vector<int>& stage_layers) {
  std::vector<StageSpan> spans;
  int layer = 0;
  for (const int count : stage_layers) {
    const int stage = static_cast<int>(spans.size());
    spans.push_back({stage, layer, count, stage == 0, spans.size() + 1 == stage_layers.size()});
    layer += count;
  }
  return spans;
}

StageBlocks stage_blocks(const StageSpan& span) {
  return {span.stage, span.first ? 0 : span.first_layer + 1, span.first_layer + span.layers + (span.last ? 2 : 1)};
}

std::vector<StageBlocks> blocks_of_rank(const PipelineLayout& layout, int pipeline_rank) {
  const std::vector<int> rank_of_stage = layout.training.rank_of_stage();
  std::vector<StageBlocks> blocks;
  for (const StageSpan& span : stage_spans(layout.stage_layers)) {
    if (rank_of_stage[static_cast<std::size_t>(span.stage)] == pipeline_rank) blocks.push_back(stage_blocks(span));
  }
  return blocks;
}

Tensor gather_vocabulary(const Device& device, const TensorParallel& tp, std::int64_t vocab, const Tensor& logits) {
  const Tensor converted = device.empty(logits.shape(), DType::float32);
  kernels::convert(device, logits, converted);
  const Tensor local = device.to_host(converted);
  Shape shape = logits.shape();
  const std::int64_t columns = shape[-1];
  shape[-1] = vocab;
  const Tensor full = device.host().zeros(shape, DType::float32);
  const std::int64_t first = even_share(vocab, tp.rank(), tp.size()).begin;
  for (std::int64_t row = 0; row < shape.rows(); ++row) {
    const float* from = local.data<float>() + row * columns;
    std::copy(from, from + columns, full.data<float>() + row * vocab + first);
  }
  all_reduce_in_place(*tp.comm, full);
  return full;
}

ModelStage::ModelStage(const Device& device, const ModelConfig& config, const TensorParallel& tp, ParameterStore& store,
                       const StageSpan& span, std::int64_t seq_len, Recompute recompute, const ExpertParallel& experts,
                       const ContextParallel& context)
    : device_(device),
      config_(config),
      model_(model_of(config)),
      tp_(tp),
      store_(store),
      span_(span),
      reduction_(device, store, span.stage),
      seq_len_(seq_len),
      recompute_(recompute),
      experts_(experts),
      context_(context) {}

void ModelStage::begin(const std::vector<MicroBatch>& batch, const StepIdentity& identity, double factor,
                       Tape::Mode mode) {
  batch_ = &batch;
  identity_ = identity;
  factor_ = factor;
  mode_ = mode;
  weights_done_ = 0;
  runs_.clear();
  runs_.resize(batch.size());
  losses_.assign(batch.size(), Tensor());
  routed_.assign(batch.size(), {});
}

Forward ModelStage::forward_on(Tape& tape, int micro_batch) {
  const MicroBatch& data = (*batch_)[static_cast<std::size_t>(micro_batch)];
  std::function<void(int, RouterReport)> on_routed;
  if (mode_ == Tape::Mode::record) {
    on_routed = [this, micro_batch](int layer, RouterReport report) {
      routed_[static_cast<std::size_t>(micro_batch)][layer] = std::move(report);
    };
  }
  return {tape,     config_, tp_,      store_,   identity_,           data.first_sample,
          seq_len_, rope_,   experts_, context_, std::move(on_routed)};
}

Tensor ModelStage::forward(int micro_batch, Tensor input) {
  const MicroBatch& data = (*batch_)[static_cast<std::size_t>(micro_batch)];
  Run& run = run_of(micro_batch);
  run.tape = std::make_unique<Tape>(device_, mode_, recompute_);
  Tape& tape = *run.tape;
  store_.await_values(span_.stage);
  tape.observe([this](Parameter& p) { reduction_.ready(p, weights_done_ + 1 == static_cast<int>(runs_.size())); },
               [this](Parameter& p) { store_.acquire_gradient(p); });
  Forward f = forward_on(tape, micro_batch);
  Var x;
  if (span_.first) {
    x = model_.embed(f, data.tokens);
  } else {
    x = tape.input(std::move(input));
    run.input = x.slot();
  }
  for (int i = 0; i < span_.layers; ++i) x = run_layer(f, span_.first_layer + i, x, micro_batch);
  if (span_.last) {
    x = model_.final_norm(f, x);
    Parameter& output = f["head.weight"];
    if (!data.targets.defined()) {
      CUBOID_CHECK(!tape.recording() && !tp_.splits_sequence() && context_.size() == 1,
                   "logits of one position: of whole sequences, untrained");
      const Var at = Tape::constant(x.value().narrow(data.logits_at, 1));
      logits_ = column_linear(tape, tp_, at, output, nullptr).value();
      run.tape.reset();
      return {};
    }
    if (keep_logits_) logits_ = column_linear(tape, tp_, Tape::constant(x.value()), output, nullptr).value();
    Loss loss =
        vocabulary_parallel_linear_cross_entropy(tape, tp_, x, output, data.targets, f.first_vocabulary_row(), factor_);
    losses_[static_cast<std::size_t>(micro_batch)] = loss.per_sequence;
    x = loss.seed;
  }
  run.output = x.slot();
  Tensor output = span_.last ? Tensor() : x.value();
  if (!tape.recording()) run.tape.reset();
  return output;
}

Var ModelStage::run_layer(Forward& f, int layer, const Var& x, int micro_batch) {
  if (recompute_ != Recompute::full || mode_ != Tape::Mode::record) return model_.layer(f, layer, x);
  return ops::recompute(f.tape, x, [this, layer, micro_batch](Tape& tape, const Var& input) {
    Forward again = forward_on(tape, micro_batch);
    return model_.layer(again, layer, input);
  });
}

// The last stage starts from its own loss, whose gradient is built into the operation.
Tensor ModelStage::seed(Tensor gradient) const {
  return span_.last ? device_.zeros({1}, DType::float64) : std::move(gradient);
}

Tensor ModelStage::backward(int micro_batch, Tensor gradient) {
  const Run run = std::exchange(run_of(micro_batch), {});
  store_.await_values(span_.stage);
  run.tape->backward(run.output, seed(std::move(gradient)));
  ++weights_done_;
  return span_.first ? Tensor() : run.tape->gradient_of(run.input);
}

Tensor ModelStage::input_gradient(int micro_batch, Tensor gradient) {
  Run& run = run_of(micro_batch);
  store_.await_values(span_.stage);
  run.tape->input_gradient(run.output, seed(std::move(gradient)));
  return span_.first ? Tensor() : run.tape->gradient_of(run.input);
}

void ModelStage::weight_gradient(int micro_batch) {
  const Run run = std::exchange(run_of(micro_batch), {});
  store_.await_values(span_.stage);
  run.tape->weight_gradient();
  ++weights_done_;
}

}  // namespace cuboid
