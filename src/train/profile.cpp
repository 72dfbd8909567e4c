// The short profile that tells what a model's blocks cost on this machine.
#include "profile.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "cuboid/comm/ranks.h"
#include "cuboid/core/random.h"
#include "cuboid/train/pipeline_plan.h"

#include "model_stage.h"

namespace cuboid {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRepetitions = 4;  // the first warms up caches and allocations
constexpr int kExchanges = 32;
constexpr double kNever = std::numeric_limits<double>::infinity();

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Three stages on one rank: embedding, one layer, head and loss.
const std::vector<StageSpan> kStages = {{0, 0, 0, true, false}, {1, 0, 1, false, false}, {2, 1, 0, false, true}};

StageCosts& cost_of(BlockCosts& costs, std::size_t stage) {
  return stage == 0 ? costs.embedding : stage == 1 ? costs.layer : costs.head;
}

ModelConfig with_one_layer(ModelConfig model) {
  model.layers = 1;
  return model;
}

// The ranks that compute a layer together.
Grid layer_grid(const RunConfig& run) {
  return Grid({{run.grid.degree(Axis::tp), run.grid.degree(Axis::cp), 1, 1, 1}}, Grid::kDefaultOrder);
}

class BlockProfile {
 public:
  BlockProfile(RankContext& context, const RunConfig& run, const ModelConfig& model)
      : run_(run),
        world_(*context.world),
        groups_(layer_grid(run), world_),
        device_(context.device),
        model_(with_one_layer(model)),
        tp_{&groups_.axis(Axis::tp), run.sequence_parallel},
        cp_{&groups_.axis(Axis::cp), run.reduce_dtype},
        table_(parameters_of(model_)),
        store_(device_, table_, blocks(), tp_.rank(), tp_.size(), {.dtype = run.dtype}) {
    store_.initialize(run.seed);
    store_.zero_gradients();
    for (const StageSpan& span : kStages) {
      stages_.push_back(std::make_unique<ModelStage>(device_, model_, tp_, store_, span, run.seq_len, run.recompute,
                                                     ExpertParallel{}, cp_));
    }
    // Two micro-batches a repetition: one for B, one for I and W.
    for (int i = 0; i < 2 * kRepetitions; ++i) batch_.push_back(micro_batch(i));
  }

  /// The same on every rank of the group.
  BlockCosts run() {
    BlockCosts best;
    best.source = Balance::measured;
    for (std::size_t s = 0; s < kStages.size(); ++s) cost_of(best, s) = {kNever, kNever, kNever, kNever};
    const double factor = 1.0 / (static_cast<double>(run_.seq_len) * run_.micro_batch);
    for (auto& stage : stages_) stage->begin(batch_, {run_.seed, 0, run_.dropout}, factor, Tape::Mode::record);
    for (int i = 0; i < kRepetitions; ++i) {
      const BlockCosts now = repetition(i);
      if (i == 0) continue;
      for (std::size_t s = 0; s < kStages.size(); ++s) keep_less(cost_of(best, s), now, s);
    }
    return best;
  }

 private:
  static std::vector<StageBlocks> blocks() {
    std::vector<StageBlocks> all;
    for (const StageSpan& span : kStages) all.push_back(stage_blocks(span));
    return all;
  }

  MicroBatch micro_batch(int number) const {
    const Shape shape = {run_.seq_len / cp_.size(), run_.micro_batch};
    const Device host = device_.host();
    MicroBatch made{host.empty(shape, DType::int32), host.empty(shape, DType::int32),
                    std::int64_t{number} * run_.micro_batch};
    const auto vocab = static_cast<std::uint32_t>(model_.vocab);
    for (std::int64_t i = 0; i < shape.elements(); ++i) {
      const Philox4 random = philox(run_.seed, static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(number), 0, 0);
      made.tokens.data<std::int32_t>()[i] = static_cast<std::int32_t>(random.x[0] % vocab);
      made.targets.data<std::int32_t>()[i] = static_cast<std::int32_t>(random.x[1] % vocab);
    }
    made.tokens = device_.to_device(made.tokens);
    made.targets = device_.to_device(made.targets);
    return made;
  }

  // The slowest rank's time of the work, which all begin together.
  template <typename Work>
  double timed(const Work& work) {
    world_.barrier();
    const Clock::time_point begin = Clock::now();
    work();
    device_.synchronize();
    const Tensor slowest = device_.host().zeros({1}, DType::float64, Category::workspace);
    *slowest.data<double>() = seconds_since(begin);
    all_reduce_in_place(world_, slowest, ReduceOp::max);
    return *slowest.data<double>();
  }

  BlockCosts repetition(int i) {
    BlockCosts now;
    for (const bool whole : {true, false}) {
      const int m = 2 * i + (whole ? 0 : 1);
      Tensor passed;
      for (std::size_t s = 0; s < stages_.size(); ++s) {
        cost_of(now, s).forward = timed([&] { passed = stages_[s]->forward(m, std::move(passed)); });
      }
      for (std::size_t s = stages_.size(); s-- > 0;) {
        StageCosts& cost = cost_of(now, s);
        if (whole) {
          cost.backward = timed([&] { passed = stages_[s]->backward(m, std::move(passed)); });
        } else {
          cost.input_gradient = timed([&] { passed = stages_[s]->input_gradient(m, std::move(passed)); });
        }
      }
      if (whole) continue;
      for (std::size_t s = stages_.size(); s-- > 0;) {
        cost_of(now, s).weight_gradient = timed([&] { stages_[s]->weight_gradient(m); });
      }
    }
    return now;
  }

  static void keep_less(StageCosts& best, BlockCosts now, std::size_t stage) {
    const StageCosts& cost = cost_of(now, stage);
    best = {.forward = std::min(best.forward, cost.forward),
            .backward = std::min(best.backward, cost.backward),
            .input_gradient = std::min(best.input_gradient, cost.input_gradient),
            .weight_gradient = std::min(best.weight_gradient, cost.weight_gradient)};
  }

  const RunConfig& run_;
  Communicator& world_;
  Groups groups_;
  Device device_;
  ModelConfig model_;
  TensorParallel tp_;
  ContextParallel cp_;
  ParameterTable table_;
  ParameterStore store_;
  std::vector<std::unique_ptr<ModelStage>> stages_;
  std::vector<MicroBatch> batch_;
};

// Half of the shortest exchange of a stage boundary between ranks 0 and 1: known to rank 0.
double measured_transfer(RankContext& context, const RunConfig& run, const ModelConfig& model) {
  const Shape boundary = {run.local_positions(), run.micro_batch, model.hidden};
  Communicator& world = *context.world;
  double shortest = kNever;
  if (context.rank > 1) return shortest;
  const int other = 1 - context.rank;
  Tensor message = context.rank == 0 ? context.device.zeros(boundary, run.dtype) : Tensor();
  for (int i = 0; i < kExchanges; ++i) {
    const Clock::time_point begin = Clock::now();
    if (context.rank == 0) world.send(std::move(message), other, i).wait();
    message = world.recv(boundary, run.dtype, other, i).wait();
    if (context.rank == 0) {
      shortest = std::min(shortest, seconds_since(begin) / 2);
    } else {
      world.send(std::move(message), other, i).wait();
    }
  }
  return shortest;
}

// Costs of the blocks alone, on the threads that work on the same samples in one stage.
BlockCosts measured_blocks(const RunConfig& run, const ModelConfig& model) {
  BlockCosts costs;
  run_ranks(layer_grid(run).world(),
            [&](RankContext& context) {
              const BlockCosts measured = BlockProfile(context, run, model).run();
              if (context.rank == 0) costs = measured;
            },
            {.deadline = run.deadline, .threads_per_rank = run.threads_per_rank});
  return costs;
}

// All numbers of the costs, for a message. Visits them in one order.
template <typename Visit>
void visit_numbers(BlockCosts& costs, Visit visit) {
  for (StageCosts* stage : {&costs.embedding, &costs.layer, &costs.head}) {
    for (double* number : {&stage->forward, &stage->backward, &stage->input_gradient, &stage->weight_gradient}) {
      visit(*number);
    }
  }
  visit(costs.transfer);
}
constexpr std::int64_t kNumbers = 13;

}  // namespace

BlockCosts measured_block_costs(const RunConfig& run, const ModelConfig& model) {
  BlockCosts costs = measured_blocks(run, model);
  if (run.grid.degree(Axis::pp) == 1) return costs;
  run_ranks(2,
            [&](RankContext& context) {
              const double seconds = measured_transfer(context, run, model);
              if (context.rank == 0) costs.transfer = seconds;
            },
            {.deadline = run.deadline});
  return costs;
}

BlockCosts measured_block_costs(const RunConfig& run, const ModelConfig& model, Processes& job) {
  BlockCosts costs;
  job.run(job.processes(), 1,
          [&](RankContext& context) {
            if (context.rank == 0) costs = measured_blocks(run, model);
            if (run.grid.degree(Axis::pp) > 1) {
              const double seconds = measured_transfer(context, run, model);
              if (context.rank == 0) costs.transfer = seconds;
            }
            const Tensor numbers = context.device.zeros({kNumbers}, DType::float64, Category::workspace);
            double* number = numbers.data<double>();
            visit_numbers(costs, [&](double& value) { *number++ = value; });
            context.world->broadcast(numbers, 0).wait();
            number = numbers.data<double>();
            visit_numbers(costs, [&](double& value) { value = *number++; });
            costs.source = Balance::measured;
          },
          {.deadline = run.deadline, .threads_per_rank = run.threads_per_rank});
  return costs;
}

}  // namespace cuboid
