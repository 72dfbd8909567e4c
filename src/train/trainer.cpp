#include "cuboid/train/trainer.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <optional>

#include <fmt/format.h>

#include "cuboid/core/log.h"
#include "cuboid/train/check.h"
#include "cuboid/train/checkpointing.h"
#include "cuboid/train/data.h"
#include "cuboid/train/memory.h"
#include "cuboid/train/optimizer.h"
#include "cuboid/train/replica.h"
#include "cuboid/train/weights.h"

#include "bubble.h"
#include "profile.h"
#include "reports.h"

namespace cuboid {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// What all ranks read and none changes, made before any of them starts.
struct Inputs {
  const RunConfig& run;
  const ModelConfig& model;
  const TrainEvents& events;
  const SampleSource& samples;
  const WeightFolder* weights;   // null: initialise from the seed
  const Checkpoint* checkpoint;  // null: start at step 0
  const PipelineLayout& layout;
  FlopsPerToken flops;
  Clock::time_point begin;  // of the run
};

std::string checkpoint_folder(const RunConfig& run) {
  return run.out + "/" + std::string(Checkpoint::kFolderName);
}

/// One rank's training loop.
class RankTrainer {
 public:
  RankTrainer(RankContext& context, const Inputs& in)
      : in_(in),
        context_(context),
        replica_(context, in.run, in.model, in.layout),
        optimizer_(context.device, in.run.optimizer, replica_.parameters()),
        bubble_(in.layout.schedule),
        timeline_(in.run.timeline) {
    if (!in.run.out.empty()) {
      writer_ = std::make_unique<CheckpointWriter>(context, in.run, in.model, replica_.parameters(), optimizer_,
                                                   checkpoint_folder(in.run), in.events.on_checkpoint);
    }
    if (in.checkpoint) {
      load_checkpoint(*in.checkpoint, replica_.parameters(), optimizer_);
      position_ = {in.checkpoint->index().step, in.checkpoint->index().samples, in.checkpoint->index().loss};
    } else if (in.weights) {
      load_weights(*in.weights, in.model, replica_.parameters());
    } else {
      replica_.parameters().initialize(in.run.seed);
    }
  }

  /// The result is complete on rank 0.
  TrainResult run() {
    TrainResult result;
    result.world = context_.size;
    result.params = replica_.table().total();
    context_.world->barrier();
    const Clock::time_point start = Clock::now();
    Clock::time_point after_first = start;
    const int first = first_step();
    result.first_step = result.steps = first;
    result.final_loss = position_.loss;
    for (int s = first; s < in_.run.steps && !result.nan_stop && !result.stopped; ++s) {
      const StepMetrics metrics = step(s);
      position_ = {s + 1, position_.samples + in_.run.global_batch, metrics.loss};
      result.steps = s + 1;
      result.final_loss = metrics.loss;
      if (s == first) {
        after_first = Clock::now();
      } else {
        result.bubble_fraction += metrics.bubble_fraction;
        result.schedule_bubble_fraction += metrics.schedule_bubble_fraction;
      }
      result.skipped_steps = metrics.skipped_steps;
      result.nan_stop = in_.run.stop_on_nan && result.skipped_steps > 0;
      result.stopped = agreed_.stop && s + 1 < in_.run.steps;
      if (!result.nan_stop) save_if_due(result.stopped);
      if (in_.run.data.eval_every > 0 && ((s + 1) % in_.run.data.eval_every == 0 || s + 1 == in_.run.steps)) {
        const Clock::time_point pause = Clock::now();
        result.validation_loss = validate();
        if (rank() == 0 && in_.events.on_validation) in_.events.on_validation(s, *result.validation_loss);
        after_first += Clock::now() - pause;  // throughput is that of training
      }
    }
    if (writer_) {
      writer_->finish();
      writer_->tidy();
    }
    if (const int timed = result.steps - first - 1; timed > 0) {
      const double tokens = static_cast<double>(timed) * in_.run.global_batch * in_.run.seq_len;
      result.tokens_per_second = tokens / seconds_since(after_first);
      result.bubble_fraction /= timed;
      result.schedule_bubble_fraction /= timed;
    }
    result.weights_hash = weights_hash();
    forget_peaks();
    result.rank_peaks = gather_memory(context_.device, *context_.world, run_peaks_);
    if (in_.run.timeline) timeline_.write(in_.run.out + "/timeline.json", *context_.world);
    return result;
  }

 private:
  int rank() const { return context_.rank; }
  int first_step() const { return in_.checkpoint ? static_cast<int>(in_.checkpoint->index().step) : 0; }

  // The account's peaks are a step's; those of the run are kept here.
  void forget_peaks() {
    const MemoryUse seen = context_.device.account().peaks();
    for (std::size_t i = 0; i < kCategoryCount; ++i) {
      run_peaks_.bytes[i] = std::max(run_peaks_.bytes[i], seen.bytes[i]);
    }
    run_peaks_.total = std::max(run_peaks_.total, seen.total);
    context_.device.account().reset_peaks();
  }

  StepMetrics step(int s) {
    const Clock::time_point begin = Clock::now();
    const std::int64_t first = position_.samples;
    StepMetrics metrics;
    metrics.step = s;
    metrics.lr = learning_rate(in_.run.optimizer, s, in_.run.steps);
    forget_peaks();
    const auto read = [&](std::int64_t i, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
      in_.samples.training(first + i, inputs, targets);
      return true;
    };
    const StepIdentity identity{in_.run.seed, s, in_.run.dropout};
    const BatchLoss loss = replica_.train_batch(read, identity, first, [&] { update(s, metrics); });
    if (loss.tokens == 0 && rank() == 0) {
      log::warning(fmt::format("step {}: every target of the batch is masked; loss and gradients are zero", s));
    }
    metrics.loss = loss.mean();
    metrics.experts = replica_.expert_load();
    metrics.tokens = std::int64_t{in_.run.global_batch} * in_.run.seq_len;
    measure(metrics);
    metrics.schedule_bubble_fraction =
        bubble_.schedule_bubble(replica_.spans(), *context_.world, context_.device.host());
    metrics.step_seconds = seconds_since(begin);
    metrics.tokens_per_second = static_cast<double>(metrics.tokens) / metrics.step_seconds;
    metrics.tflops_per_rank = in_.flops.training() * metrics.tokens_per_second / context_.size / 1e12;
    if (in_.run.timeline) timeline_.add(s, begin, replica_.spans());
    if (rank() == 0 && in_.events.on_step) in_.events.on_step(metrics);
    return metrics;
  }

  // The schedule's STEP: global norm, clipping, optimizer. Norm and loss are the same numbers on every rank, so all of
  // them leave out the same update: one with a number that is not finite would destroy the weights for good.
  void update(int s, StepMetrics& metrics) {
    if (s == first_step() && !in_.run.dump_grads.empty()) dump_gradients();
    const Groups& groups = replica_.groups();
    metrics.grad_norm =
        gradient_norm(context_.device, replica_.parameters(), groups.axis(Axis::tp), groups.axis(Axis::pp));
    if (std::isfinite(metrics.grad_norm) && std::isfinite(replica_.loss().sum)) {
      if (writer_) writer_->before_update();
      optimizer_.step(metrics.lr, clipping_factor(in_.run.optimizer.clip_grad, metrics.grad_norm));
    } else {
      ++skipped_steps_;
      if (rank() == 0) {
        log::warning(fmt::format("step {}: loss {}, gradient norm {}: the update is left out on all ranks", s,
                                 std::abs(replica_.loss().mean()), std::abs(metrics.grad_norm)));
      }
    }
    metrics.skipped_steps = skipped_steps_;
  }

  // Saves after this step where that is asked for, and makes a finished background save visible.
  void save_if_due(bool stopping) {
    if (!writer_) return;
    if (writer_->in_flight() && !agreed_.writing) writer_->finish();
    const int every = in_.run.checkpoint_every;
    const bool due = every > 0 && (position_.step % every == 0 || position_.step == in_.run.steps);
    if (due || stopping) writer_->save(position_);
  }

  bool stop_wanted() const {
    if (rank() != 0) return false;
    const double limit = in_.run.max_seconds;
    return (in_.events.stop_wanted && in_.events.stop_wanted()) || (limit > 0 && seconds_since(in_.begin) >= limit);
  }

  // Bubble and memory over all ranks, and what all must agree on before the next step.
  void measure(StepMetrics& metrics) {
    double busy = 0;
    double makespan = 0;
    for (const Span& span : replica_.spans()) {
      if (!computes(span.action.kind)) continue;
      busy += span.end - span.begin;
      makespan = std::max(makespan, span.end);
    }
    metrics.rank_peaks = gather_memory(context_.device, *context_.world, context_.device.account().peaks());
    for (std::size_t i = 0; i < kCategoryCount; ++i) {
      for (const MemoryUse& use : metrics.rank_peaks) {
        metrics.peak_bytes[i] = std::max(metrics.peak_bytes[i], use.bytes[i]);
      }
    }
    constexpr int kStop = 1;
    constexpr int kWriting = kStop + 1;
    const Device host = context_.device.host();
    const Tensor largest = host.zeros({kWriting + 1}, DType::float64, Category::workspace);
    const Tensor sum = host.zeros({1}, DType::float64, Category::workspace);
    double* values = largest.data<double>();
    values[0] = makespan;
    values[kStop] = stop_wanted() ? 1 : 0;
    values[kWriting] = writer_ && writer_->writing() ? 1 : 0;
    *sum.data<double>() = busy;
    all_reduce_in_place(*context_.world, largest, ReduceOp::max);
    all_reduce_in_place(*context_.world, sum);
    agreed_ = {values[kStop] > 0, values[kWriting] > 0};
    if (values[0] > 0) metrics.bubble_fraction = 1 - *sum.data<double>() / (context_.size * values[0]);
  }

  double validate() {
    const std::int64_t samples = in_.samples.validation_samples();
    BatchLoss total;
    for (std::int64_t first = 0; first < samples; first += in_.run.global_batch) {
      const BatchLoss batch =
          replica_.evaluate_batch([&](std::int64_t i, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
            if (first + i >= samples) return false;
            in_.samples.validation(first + i, inputs, targets);
            return true;
          });
      total.sum += batch.sum;
      total.tokens += batch.tokens;
    }
    return total.mean();
  }

  // Adds numbers of which each rank has those of its own parameters.
  void add_over_owners(const Tensor& sum) {
    all_reduce_in_place(replica_.groups().axis(Axis::tp), sum);
    all_reduce_in_place(replica_.groups().axis(Axis::pp), sum);
    all_reduce_in_place(replica_.parameters().copies(), sum);
  }

  std::string weights_hash() {
    const Tensor sum = context_.device.host().zeros({1}, DType::int64, Category::workspace);
    *sum.data<std::int64_t>() = static_cast<std::int64_t>(local_weights_hash(replica_.parameters()));
    add_over_owners(sum);
    return fmt::format("{:016x}", static_cast<std::uint64_t>(*sum.data<std::int64_t>()));
  }

  // L2 norm of every Hugging Face tensor's gradient.
  void dump_gradients() {
    const auto tensors = model_of(in_.model).hugging_face_tensors(in_.model);
    const std::vector<double> squares = local_hugging_face_squares(tensors, replica_.parameters());
    const Tensor sum = context_.device.host().zeros({static_cast<std::int64_t>(squares.size())}, DType::float64);
    std::copy(squares.begin(), squares.end(), sum.data<double>());
    add_over_owners(sum);
    if (rank() != 0) return;
    std::map<std::string, double> norms;
    for (std::size_t i = 0; i < tensors.size(); ++i) norms[tensors[i].hf_name] = std::sqrt(sum.data<double>()[i]);
    write_norms(in_.run.dump_grads, norms);
  }

  const Inputs& in_;
  RankContext& context_;
  Replica replica_;
  Optimizer optimizer_;
  BubbleMeter bubble_;
  Timeline timeline_;
  int skipped_steps_ = 0;
  MemoryUse run_peaks_;
  std::unique_ptr<CheckpointWriter> writer_;  // null without an output folder
  Position position_;
  struct {
    bool stop = false;     // rank 0 was told to
    bool writing = false;  // a rank's background write goes on
  } agreed_;               // by all ranks, at the end of a step
};

RunStart describe_start(const Inputs& in, int world) {
  RunStart start;
  start.params = parameters_of(in.model).total();
  start.world = world;
  start.micro_batches = in.run.micro_batches();
  start.stage_layers = in.layout.stage_layers;
  start.stages_balanced = in.run.stage_layers.empty();
  start.schedule_bubble = in.layout.bubble;
  start.schedule_barrier = in.layout.barrier;
  start.stage_work = in.layout.stage_work;
  start.cost_unit = in.layout.unit;
  start.chosen = in.layout.chosen;
  start.train_samples = in.samples.training_samples();
  start.validation_samples = in.samples.validation_samples();
  return start;
}

void check_fabric(const RunConfig& run, const Fabric& fabric, Problems& problems) {
  problems.add_if(run.balance == Balance::measured && !fabric.gpus.empty(),
                  "--balance measured: its profile is the CPU's; with --device cuda use flops, or give --stage-layers");
  problems.add_if(run.threads_per_rank > 1 && !fabric.gpus.empty(),
                  fmt::format("--threads-per-rank {}: with --device cuda a rank computes on its GPU; leave it at 1",
                              run.threads_per_rank));
  if (fabric.job == nullptr) return;
  const int made = fabric.job->processes() * fabric.ranks_per_process;
  if (made == run.grid.world()) return;
  std::string degrees;
  for (Axis axis : kAxes) {
    if (run.grid.degree(axis) > 1)
      degrees += fmt::format("{}--{} {}", degrees.empty() ? "" : " x ", name_of(axis), run.grid.degree(axis));
  }
  problems.add(fmt::format("the grid{} has {} ranks, but {} processes with --ranks-per-process {} make {}",
                           degrees.empty() ? "" : " (" + degrees + ")", run.grid.world(), fabric.job->processes(),
                           fabric.ranks_per_process, made));
}

}  // namespace

TrainResult train(const RunConfig& run, const ModelConfig& model, const TrainEvents& events,
                  const Checkpoint* checkpoint, const Fabric& fabric) {
  const Clock::time_point begin = Clock::now();
  const bool first = fabric.job == nullptr || fabric.job->process() == 0;  // has rank 0
  Problems problems;
  check_fabric(run, fabric, problems);
  check_run(model, run, problems);
  std::optional<PipelineLayout> layout;
  const auto lay_out = [&] {
    layout = run.balance == Balance::measured && fabric.job != nullptr && fabric.job->processes() > 1
                 ? plan_pipeline(run, model, measured_block_costs(run, model, *fabric.job))
                 : plan_pipeline(run, model);
    check_memory(run, model, *layout, fabric, problems);
  };
  // A profile takes time and memory: only for a request with which nothing else is wrong.
  const bool profiled = run.balance == Balance::measured;
  if (!profiled && problems.empty()) collect(problems, lay_out);
  std::unique_ptr<SampleSource> samples;
  std::unique_ptr<WeightFolder> weights;
  collect(problems, [&] { samples = std::make_unique<SampleSource>(run.data, run.seq_len, model.vocab, run.seed); });
  if (checkpoint) {
    check_checkpoint(*checkpoint, model, problems);
  } else if (!run.weights.empty()) {
    collect(problems, [&] {
      weights = std::make_unique<WeightFolder>(WeightFolder::open(run.weights));
      check_weights(*weights, model, problems);
    });
  }
  if (first && !run.dump_grads.empty()) collect(problems, [&] { check_writable(run.dump_grads); });
  problems.throw_if_any();

  if (profiled) lay_out();
  problems.throw_if_any();
  const Inputs in{
      run, model, events, *samples, weights.get(), checkpoint, *layout, flops_per_token(model, run.seq_len), begin};
  const int world = run.grid.world();
  if (first && events.on_start) events.on_start(describe_start(in, world));
  // What a killed run was writing or removing; on_start has seen to it that no other run uses the folder.
  if (first && !run.out.empty()) remove_partial_checkpoints(checkpoint_folder(run));
  TrainResult result;
  const int ranks_here = fabric.job == nullptr ? world : fabric.ranks_per_process;
  const auto shared_limits = limits_of_process(fabric, ranks_here);
  const auto train_rank = [&](RankContext& context) {
    context.device.account().set_limit(
        limit_of_rank(run, shared_limits[static_cast<std::size_t>(context.rank % ranks_here)]));
    RankTrainer trainer(context, in);
    const TrainResult mine = trainer.run();
    if (context.rank == 0) result = mine;
  };
  const RankOptions options{.deadline = run.deadline,
                            .threads_per_rank = run.threads_per_rank,
                            .gpus = fabric.gpus,
                            .on_failure = events.on_failure};
  try {
    if (fabric.job == nullptr) {
      run_ranks(world, train_rank, options);
    } else {
      fabric.job->run(world, fabric.ranks_per_process, train_rank, options);
    }
  } catch (...) {
    // All ranks have left: what they were writing is nobody's.
    if (first && !run.out.empty()) remove_partial_checkpoints(checkpoint_folder(run));
    throw;
  }
  return result;
}

}  // namespace cuboid
