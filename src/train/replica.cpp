#include "cuboid/train/replica.h"

#include <algorithm>
#include <numeric>

#include "model_stage.h"

namespace cuboid {

namespace {

CopyGroups copy_groups(const Groups& groups) {
  Communicator& experts = groups.axis(Axis::ep);
  return {groups.copies(), groups.expert_copies(), experts.rank(), experts.size()};
}

double micro_batches_of_all(const RunConfig& run) {
  return static_cast<double>(run.global_batch) / run.micro_batch;
}

}  // namespace

struct Replica::Batch {
  std::vector<MicroBatch> micro_batches;
  std::int64_t tokens = 0;  // unmasked targets of the global batch
};

Replica::Replica(RankContext& context, const RunConfig& run, const ModelConfig& config, const PipelineLayout& layout)
    : device_(context.device),
      run_(run),
      config_(config),
      layout_(layout),
      table_(parameters_of(config)),
      groups_(run.grid, *context.world),
      channels_(groups_.axis(Axis::pp), layout.training.rank_of_stage()),
      tp_{&groups_.axis(Axis::tp), run.sequence_parallel, run.reduce_dtype},
      experts_{&groups_.axis(Axis::ep), &groups_.axis(Axis::cp), run.router_aux_loss / micro_batches_of_all(run),
               run.router_z_loss / micro_batches_of_all(run)},
      context_{&groups_.axis(Axis::cp), run.reduce_dtype} {
  const int pipeline_rank = groups_.at()[Axis::pp];
  const std::vector<StageSpan> spans = stage_spans(layout.stage_layers);
  const std::vector<StageBlocks> mine = blocks_of_rank(layout, pipeline_rank);
  const ParameterOptions options{
      .dtype = run.dtype, .reduce_dtype = run.reduce_dtype, .zero = run.zero, .bucket_bytes = run.bucket_bytes};
  store_ =
      std::make_unique<ParameterStore>(device_, table_, mine, tp_.rank(), tp_.size(), copy_groups(groups_), options);
  partial_ = std::make_unique<TensorPartialGradients>(device_, table_, *store_, *tp_.comm, run.sequence_parallel);
  std::map<int, Stage*> stages;
  for (const StageBlocks& blocks : mine) {
    const StageSpan& span = spans[static_cast<std::size_t>(blocks.stage)];
    stages_.push_back(std::make_unique<ModelStage>(device_, config_, tp_, *store_, span, run.seq_len, run.recompute,
                                                   experts_, context_));
    stages[blocks.stage] = stages_.back().get();
  }
  const Shape boundary = {run.local_positions(), run.micro_batch, config.hidden};  // (T,B,C) or its part
  executor_ = std::make_unique<Executor>(layout_.training, pipeline_rank, stages, &channels_, boundary, run.dtype);
  evaluator_ = std::make_unique<Executor>(layout_.evaluation, pipeline_rank, stages, &channels_, boundary, run.dtype);
}

Replica::~Replica() = default;

Replica::Batch Replica::read_batch(const SampleReader& read, std::int64_t first_sample) {
  const std::int64_t rows = run_.micro_batch;
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(run_.seq_len));
  std::vector<std::int32_t> targets(static_cast<std::size_t>(run_.seq_len));
  const SequencePart part = context_.part(run_.seq_len);
  const std::int64_t length = run_.seq_len / context_.size();
  Batch batch;
  // A data-parallel rank takes a contiguous part of the global batch, its micro-batches in ascending order.
  std::int64_t sample = std::int64_t{groups_.data().rank()} * micro_batches() * rows;
  const Device host = device_.host();
  const Tensor count = host.zeros({1}, DType::int64, Category::workspace);
  for (int m = 0; m < micro_batches(); ++m) {
    MicroBatch made{host.empty({length, rows}, DType::int32), host.empty({length, rows}, DType::int32),
                    first_sample + sample};
    for (std::int64_t b = 0; b < rows; ++b, ++sample) {
      if (!read(sample, inputs, targets)) {
        std::fill(inputs.begin(), inputs.end(), 0);
        std::fill(targets.begin(), targets.end(), kernels::kIgnore);
      }
      *count.data<std::int64_t>() += std::ssize(targets) - std::count(targets.begin(), targets.end(), kernels::kIgnore);
      for (std::int64_t t = 0; t < length; ++t) {
        const auto i = static_cast<std::size_t>(part.position(t));
        made.tokens.data<std::int32_t>()[t * rows + b] = inputs[i];
        made.targets.data<std::int32_t>()[t * rows + b] = targets[i];
      }
    }
    made.tokens = device_.to_device(made.tokens);
    made.targets = device_.to_device(made.targets);
    batch.micro_batches.push_back(std::move(made));
  }
  all_reduce_in_place(groups_.data(), count);
  batch.tokens = *count.data<std::int64_t>();
  return batch;
}

BatchLoss Replica::collect_loss(std::int64_t tokens) {
  // One slot a sample of the global batch: owners write, everybody else adds zero, so the sum's order is global.
  const Tensor sums = device_.host().zeros({run_.global_batch}, DType::float64, Category::workspace);
  const std::int64_t first = std::int64_t{groups_.data().rank()} * micro_batches() * run_.micro_batch;
  for (const auto& stage : stages_) {
    if (!stage->last()) continue;
    for (int m = 0; m < micro_batches(); ++m) {
      const Tensor here = device_.to_host(stage->losses(m));
      const double* losses = here.data<double>();
      std::copy(losses, losses + run_.micro_batch, sums.data<double>() + first + std::int64_t{m} * run_.micro_batch);
    }
  }
  all_reduce_in_place(groups_.axis(Axis::cp), sums);  // of the positions that each context rank has
  all_reduce_in_place(groups_.data(), sums);
  all_reduce_in_place(groups_.axis(Axis::pp), sums);
  const auto values = sums.span<double>();
  return {std::accumulate(values.begin(), values.end(), 0.0), tokens};
}

ExpertLoad Replica::collect_expert_load() {
  if (config_.experts == 0) return {};
  // A slot for each number of each layer and micro-batch of the global batch: owners write, and sums are added in
  // global order. A router's choice is the same on all tensor ranks, but for the parts of the sequence with sequence
  // parallelism: its losses are partial sums there, and over the context ranks.
  const std::int64_t all = run_.global_batch / run_.micro_batch;
  const std::int64_t experts = config_.experts;
  const std::int64_t slots = config_.layers * all;
  const Device host = device_.host();
  const Tensor losses = host.zeros({2, slots}, DType::float64, Category::workspace);
  const Tensor tokens = host.zeros({config_.layers, experts}, DType::int64, Category::workspace);
  for (const auto& stage : stages_) {
    for (int m = 0; m < micro_batches(); ++m) {
      for (const auto& [layer, report] : stage->routed(m)) {
        if (tp_.rank() == 0 && context_.rank() == 0) {
          for (std::int64_t e = 0; e < experts; ++e) {
            tokens.data<std::int64_t>()[layer * experts + e] += report.tokens[static_cast<std::size_t>(e)];
          }
        }
        if (tp_.rank() > 0 && !tp_.splits_sequence()) continue;
        const std::int64_t slot = layer * all + std::int64_t{groups_.data().rank()} * micro_batches() + m;
        losses.data<double>()[slot] = report.aux_loss();
        losses.data<double>()[slots + slot] = report.z_loss();
      }
    }
  }
  all_reduce_in_place(groups_.world(), losses);
  all_reduce_in_place(groups_.world(), tokens);
  ExpertLoad load;
  const auto mean = [&](std::int64_t first) {
    const double* begin = losses.data<double>() + first;
    return std::accumulate(begin, begin + slots, 0.0) / static_cast<double>(all);
  };
  load.aux_loss = mean(0);
  load.z_loss = mean(slots);
  load.tokens.resize(static_cast<std::size_t>(experts));
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
    const std::int64_t* row = tokens.data<std::int64_t>() + layer * experts;
    for (std::int64_t e = 0; e < experts; ++e) load.tokens[static_cast<std::size_t>(e)] += row[e];
    const double share =
        static_cast<double>(std::accumulate(row, row + experts, std::int64_t{0})) / static_cast<double>(experts);
    load.max_over_mean =
        std::max(load.max_over_mean, static_cast<double>(*std::max_element(row, row + experts)) / share);
  }
  return load;
}

BatchLoss Replica::train_batch(const SampleReader& read, const StepIdentity& identity, std::int64_t first_sample,
                               const std::function<void()>& step) {
  const Batch batch = read_batch(read, first_sample);
  store_->zero_gradients();
  const double factor = batch.tokens > 0 ? 1.0 / static_cast<double>(batch.tokens) : 0;
  for (auto& stage : stages_) stage->begin(batch.micro_batches, identity, factor, Tape::Mode::record);
  executor_->run([&] {
    partial_->reduce();
    add_tied_gradients(device_, table_, *store_, channels_.embedding());
    loss_ = collect_loss(batch.tokens);
    expert_load_ = collect_expert_load();
    step();
  });
  return loss_;
}

BatchLoss Replica::evaluate_batch(const SampleReader& read) {
  const Batch batch = read_batch(read, 0);
  for (auto& stage : stages_) stage->begin(batch.micro_batches, {}, 0, Tape::Mode::forward_only);
  evaluator_->run([] {});
  return collect_loss(batch.tokens);
}

void Replica::keep_logits(bool keep) {
  for (auto& stage : stages_) stage->keep_logits(keep);
}

Tensor Replica::logits(std::int64_t b) const {
  const auto last = std::find_if(stages_.begin(), stages_.end(), [](const auto& s) { return s->last(); });
  if (last == stages_.end()) return {};
  const Tensor all = gather_vocabulary(device_, tp_, config_.vocab, (*last)->logits());  // (T,B,V)
  const Tensor one = device_.host().zeros({run_.seq_len, config_.vocab}, DType::float32);
  const SequencePart part = context_.part(run_.seq_len);
  for (std::int64_t t = 0; t < all.dim(0); ++t) {
    const float* row = all.data<float>() + (t * run_.micro_batch + b) * config_.vocab;
    std::copy(row, row + config_.vocab, one.data<float>() + part.position(t) * config_.vocab);
  }
  all_reduce_in_place(groups_.axis(Axis::cp), one);
  return one;
}

}  // namespace cuboid
