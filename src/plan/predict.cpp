#include "cuboid/plan/predict.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/core/units.h"
#include "cuboid/parallel/pipeline/auto_schedule.h"
#include "cuboid/parallel/pipeline/critical_path.h"
#include "cuboid/parallel/pipeline/select.h"

#include "pipeline_shape.h"
#include "rank_memory.h"
#include "shared_shapes.h"
#include "stages.h"

namespace cuboid {
namespace {

using plan::ActionCost;
using plan::BlockPrice;
using plan::Elements;
using plan::ModelPrice;
using plan::Placed;
using plan::ScheduleShape;
using plan::StageMap;
using plan::Stages;
using Operation = TracedCommunication::Operation;

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

TraceOptions traced_options(const RunConfig& run, const SoftwareStack& stack) {
  TraceOptions options = trace_options(run);
  // Recomputing attention's core is not something a trace has: it is priced apart.
  if (stack.selective_attention && run.recompute == Recompute::selective) options.recompute = Recompute::none;
  return options;
}

const ActionCost& cost_of(const BlockPrice& stage, ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return stage.forward;
    case ActionKind::backward:
      return stage.backward;
    case ActionKind::input_gradient:
      return stage.input_gradient;
    default:
      return stage.weight_gradient;
  }
}

// Critical paths kept of a schedule: under different costs different ones decide.
constexpr std::size_t kMostPaths = 6;

// One run on one cluster.
class Step {
 public:
  Step(const Cluster& cluster, const ModelConfig& model, const RunConfig& run, const ModelTrace& trace,
       const PredictOptions& options, const ModelPrice& price, const Placed& placed, double training_flops)
      : cluster_(cluster),
        stack_(cluster.stack),
        model_(model),
        run_(run),
        trace_(trace),
        options_(options),
        placed_(placed),
        data_(placed.data),
        price_(price),
        memory_(stack_, run_, model_, price_, data_),
        training_flops_(training_flops) {}

  /// @param paths  critical paths of this schedule under other costs
  StepBound bound(const Stages& stages, const ScheduleShape& shape, const std::vector<CriticalPath>& paths) {
    stages_ = stages;
    map_ = &shape.map;
    add_transfers_and_overheads();
    StepBound bound;
    // Of ranks that do the same the first holds most, and the last starts last.
    for (const int rank : stages_.ends) {
      memory_.add_least(stages_, stages_of(rank), shape.held(rank, run_.micro_batches()), bound);
    }
    if (bound.memory_bytes > options_.memory_limit) return bound;
    double end = 0;
    double gathers = 0;
    for (const int rank : stages_.ends) {
      end = std::max(end, least_end(rank, shape) + tail_reduction(rank) + optimizer_seconds(rank));
      gathers = std::max(gathers, gather(rank));
    }
    for (const CriticalPath& path : paths) {
      end = std::max(end, seconds_of(path) + tail_reduction(path.rank) + optimizer_seconds(path.rank));
    }
    bound.step_seconds = step_seconds(end, gathers);
    return bound;
  }

  /// @param schedule  the run's, if it is known already
  /// @param paths     takes the schedule's critical path under these costs, if it is a new one; may be null
  StepPrediction run(const Schedule* schedule, std::vector<CriticalPath>* paths) {
    lay_out(schedule);
    const Simulation simulation = simulate(schedule_, costs_);
    const int slowest = time(simulation);
    if (paths != nullptr && paths->size() < kMostPaths && stack_.step_barrier && sharing() == 1) {
      CriticalPath path = critical_path(schedule_, costs_, simulation, slowest);
      if (std::find(paths->begin(), paths->end(), path) == paths->end()) paths->push_back(std::move(path));
    }
    measure(simulation);
    judge();
    if (options_.spans) {
      out_.schedule = std::move(schedule_);
      out_.simulation = simulation;
    }
    return std::move(out_);
  }

 private:
  // Stages and schedule.
  void lay_out(const Schedule* known) {
    const bool searched = run_.schedule == kAutoSchedule;
    bool split = false;
    if (!searched) {
      schedule_ = known != nullptr ? *known : schedule_of(run_);
      split = plan::splits_backward(schedule_);
    }
    const int stages = searched ? cuboid::stages_of(run_) : schedule_.stages;
    const std::vector<int> layers =
        run_.stage_layers.empty() ? plan::balanced_layers(price_, trace_, stages, split) : run_.stage_layers;
    if (searched) search(layers);
    own_map_ = StageMap(schedule_.rank_of_stage());
    map_ = &own_map_;
    stages_ = Stages(price_, trace_, layers, own_map_);
    out_.stage_layers = layers;
    add_transfers_and_overheads();
    make_costs();
  }

  void search(const std::vector<int>& layers) {
    std::vector<int> apart(layers.size());
    std::iota(apart.begin(), apart.end(), 0);
    stages_ = Stages(price_, trace_, layers, StageMap(std::move(apart)));
    make_costs();
    AutoRequest request;
    request.ranks = run_.grid.degree(Axis::pp);
    request.micro_batches = run_.micro_batches();
    request.virtual_stages = std::max(1, run_.virtual_stages);
    request.costs = costs_;
    if (run_.max_activations > 0) request.max_activations = run_.max_activations;
    schedule_ = find_schedule(request).schedule;
  }

  double boundary_bytes() const {
    const TracedBlock& block = trace_.layers.front();
    const bool parts = stack_.scatter_gather && !run_.sequence_parallel;
    return static_cast<double>(block.output_bytes) / (parts ? run_.grid.degree(Axis::tp) : 1);
  }

  // A stage waits for what comes from another rank, as far as that is not hidden.
  void add_transfers_and_overheads() {
    transfer_ = transfer_seconds(cluster_, placed_.stages, boundary_bytes());
    const double waiting = (1 - stack_.pp_overlap) * transfer_;
    for (std::size_t kind = 0; kind < stages_.prices.size(); ++kind) {
      BlockPrice& stage = stages_.prices[kind];
      for (ActionCost* cost : {&stage.forward, &stage.backward, &stage.input_gradient}) {
        cost->compute += stack_.micro_batch_seconds / 2;
      }
      if (stages_.neighbours[kind].before) stage.forward.pp += waiting;
      if (stages_.neighbours[kind].after) {
        stage.backward.pp += waiting;
        stage.input_gradient.pp += waiting;
      }
    }
  }

  void make_costs() {
    costs_.stages.clear();
    for (int s = 0; s < stages_.count(); ++s) {
      const BlockPrice& stage = stages_[s];
      costs_.stages.push_back({.forward = stage.forward.total(),
                               .backward = stage.backward.total(),
                               .input_gradient = stage.input_gradient.total(),
                               .weight_gradient = stage.weight_gradient.total()});
    }
    costs_.transfer = stack_.pp_overlap * transfer_;
    // A pipeline rank that is walked stands for all its tensor and data ranks on the node.
    costs_.at_once = run_.grid.degree(Axis::pp) / sharing();
  }

  Elements elements(int rank) const { return memory_.elements(stages_, stages_of(rank)); }

  double over_data(const Elements& e, Operation operation, double bytes) const {
    return plan::data_seconds(cluster_, data_.dense, operation, e.dense * bytes) +
           plan::data_seconds(cluster_, data_.expert, operation, e.expert * bytes);
  }

  // Seconds of a rank's reductions at the end of the step that its last backward does not hide.
  double tail_reduction(int rank) const {
    double seconds = 0;
    if (run_.zero <= 1) {
      const Operation operation = run_.zero == 0 ? Operation::all_reduce : Operation::reduce_scatter;
      seconds = plan::exposed(cluster_, over_data(elements(rank), operation, stack_.gradient_bytes_sent),
                              rank_seconds(rank, ActionKind::backward));
    }
    return sharing() * (seconds + tied_reduction(rank));
  }

  // The two uses of a tied embedding add their gradients across the pipeline.
  double tied_reduction(int rank) const {
    const int first = map_->rank_of_stage.front();
    const int last = map_->rank_of_stage.back();
    if (!model_.tied || first == last || (rank != first && rank != last)) return 0;
    return 2 * transfer_seconds(cluster_, placed_.stages, memory_.tied_elements() * stack_.gradient_bytes_sent);
  }

  // Of gathering the new parameters before the next step's first forward.
  double gather(int rank) const {
    if (run_.zero < 1 || run_.zero > 2) return 0;
    return sharing() * plan::exposed(cluster_,
                                     over_data(elements(rank), Operation::all_gather, stack_.parameter_bytes_sent),
                                     rank_seconds(rank, ActionKind::forward));
  }

  const std::vector<int>& stages_of(int rank) const { return map_->stages_of_rank[at(rank)]; }

  double rank_seconds(int rank, ActionKind kind) const {
    double sum = 0;
    for (const int stage : stages_of(rank)) sum += cost_of(stages_[stage], kind).total();
    return sum;
  }

  // Ranks to a core, where all of a node compute.
  double sharing() const {
    if (cluster_.device.shared_cores == 0) return 1;
    const int on_node = std::min(run_.grid.world(), cluster_.levels.front().size);
    return std::max(1.0, static_cast<double>(on_node) / cluster_.device.shared_cores);
  }

  double optimizer_seconds(int rank) const {
    return sharing() * memory_.sharded(elements(rank), 1) * stack_.optimizer_traffic /
           (cluster_.device.memory_bandwidth * stack_.memory_efficiency);
  }

  double step_seconds(double end, double gathers) const {
    const double nodes = std::max(1.0, static_cast<double>(run_.grid.world()) / cluster_.levels.front().size);
    return (end + gathers + stack_.step_seconds) * (1 + stack_.jitter * std::log2(nodes));
  }

  // Without a barrier at the end only a rank's own work is sure.
  // A rank starts when a micro-batch has come to its first stage, and then has all its work to do. Where B is whole and
  // stages go round the ranks, its last B goes on to the first stage, through as many stages as it came.
  double least_end(int rank, const ScheduleShape& shape) const {
    double work = 0;
    for (const int stage : stages_of(rank)) {
      const BlockPrice& price = stages_[stage];
      const double apart = price.input_gradient.total() + price.weight_gradient.total();
      work += price.forward.total() + (shape.split ? std::min(price.backward.total(), apart) : price.backward.total());
    }
    if (!stack_.step_barrier) return run_.micro_batches() * work;
    double before = 0;
    double after = 0;
    for (int stage = 0; stage < stages_of(rank).front(); ++stage) {
      before += stages_[stage].forward.total();
      after += stages_[stage].backward.total();
    }
    const double own = before + run_.micro_batches() * work;
    return map_->rank_of_stage.front() != rank && !shape.split ? std::max(own, own + after - slack_of(rank)) : own;
  }

  // What the first rank still has to do in reduction and step is counted with it, not here.
  double slack_of(int rank) const {
    const int first = map_->rank_of_stage.front();
    return std::max(0.0,
                    tail_reduction(rank) + optimizer_seconds(rank) - tail_reduction(first) - optimizer_seconds(first));
  }

  double seconds_of(const CriticalPath& path) const {
    constexpr ActionKind kKinds[] = {ActionKind::forward, ActionKind::backward, ActionKind::input_gradient,
                                     ActionKind::weight_gradient};
    double sum = path.transfers * stack_.pp_overlap * transfer_;
    for (int stage = 0; stage < stages_.count(); ++stage) {
      for (std::size_t kind = 0; kind < std::size(kKinds); ++kind) {
        const int count = path.actions[at(stage)][kind];
        if (count > 0) sum += count * cost_of(stages_[stage], kKinds[kind]).total();
      }
    }
    return sum * (1 - 1e-12);  // the walk adds in another order
  }

  // Returns the rank that ends last.
  int time(const Simulation& simulation) {
    int slowest = 0;
    const int ranks = schedule_.ranks();
    double end = 0;
    double gathers = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const double last = simulation.spans[at(rank)].empty() ? 0 : simulation.spans[at(rank)].back().end;
      const double span = simulation.busy[at(rank)] + simulation.idle_in_span[at(rank)];
      const double own = stack_.step_barrier ? last : span;
      const double now = own + tail_reduction(rank) + optimizer_seconds(rank);
      if (now > end) slowest = rank;
      end = std::max(end, now);
      gathers = std::max(gathers, gather(rank));
    }
    out_.step_seconds = step_seconds(end, gathers);
    const auto busiest = std::max_element(simulation.busy.begin(), simulation.busy.end());
    attribute(static_cast<int>(busiest - simulation.busy.begin()), *busiest, gathers);
    rate();
    return slowest;
  }

  void attribute(int rank, double busy, double gathers) {
    SecondsByCause& seconds = out_.seconds;
    for (const Action& action : schedule_.rows[at(rank)]) {
      if (!computes(action.kind)) continue;
      const ActionCost& cost = cost_of(stages_[action.stage], action.kind);
      seconds.compute += cost.compute;
      seconds.tp_comm += cost.tp;
      seconds.dp_comm += cost.dp;
      seconds.pp_comm += cost.pp;
    }
    if (const double alone = seconds.total(); alone > 0) {  // on shared cores all takes longer
      for (double* part : {&seconds.compute, &seconds.tp_comm, &seconds.dp_comm, &seconds.pp_comm}) {
        *part *= busy / alone;
      }
    }
    seconds.dp_comm += tail_reduction(rank) + gathers;
    seconds.optimizer = optimizer_seconds(rank) + stack_.step_seconds;
    seconds.bubble = std::max(0.0, out_.step_seconds - seconds.total());
    out_.bubble_fraction = seconds.bubble / out_.step_seconds;
  }

  void rate() {
    const double tokens = static_cast<double>(run_.global_batch) * run_.seq_len;
    const double devices = run_.grid.world();
    const double peak = cluster_.device.flops(run_.dtype);
    out_.tokens_per_second_per_gpu = tokens / out_.step_seconds / devices;
    out_.model_flops_per_gpu = training_flops_ * out_.tokens_per_second_per_gpu;
    out_.mfu = out_.model_flops_per_gpu / peak;
    double executed = 0;
    for (int stage = 0; stage < stages_.count(); ++stage) executed += stages_[stage].flops;
    out_.hfu = executed * run_.micro_batches() / schedule_.ranks() / out_.step_seconds / peak;
  }

  void measure(const Simulation& simulation) {
    for (int rank = 0; rank < schedule_.ranks(); ++rank) {
      RankPrediction& prediction = out_.ranks.emplace_back();
      prediction.busy = simulation.busy[at(rank)];
      MemoryByCause& memory = prediction.memory;
      memory = memory_.fixed(elements(rank));
      memory.activations = memory_.peak_activations(stages_, simulation.spans[at(rank)], memory.total(),
                                                    options_.spans ? &prediction.timeline : nullptr);
      if (memory.total() > out_.ranks[at(out_.peak_rank)].memory.total()) out_.peak_rank = rank;
    }
  }

  void judge() {
    const double limit =
        options_.memory_limit > 0 ? options_.memory_limit : static_cast<double>(cluster_.device.memory_bytes);
    const double needed = out_.memory().total();
    if (needed <= limit) return;
    out_.feasible = false;
    out_.reasons.push_back(fmt::format("pipeline rank {} needs {}; {} has {}", out_.peak_rank,
                                       human_bytes(static_cast<std::uint64_t>(needed)), cluster_.device.name,
                                       human_bytes(static_cast<std::uint64_t>(limit))));
  }

  const Cluster& cluster_;
  const SoftwareStack& stack_;
  const ModelConfig& model_;
  const RunConfig& run_;
  const ModelTrace& trace_;
  const PredictOptions& options_;
  const Placed& placed_;
  const plan::CopyPlacements& data_;
  const ModelPrice& price_;
  plan::RankMemory memory_;
  double training_flops_;  // per token
  Schedule schedule_;
  Stages stages_;
  const StageMap* map_ = nullptr;
  StageMap own_map_;
  PipelineCosts costs_{.stages = {}};
  double transfer_ = 0;
  StepPrediction out_;
};

}  // namespace

// Prices, and what was divided into stages by them.
struct Predictor::Priced {
  ModelPrice price;
  std::map<std::pair<int, bool>, std::vector<int>> layers;   // by number of stages and whether B is split
  std::map<std::tuple<int, bool, int, int>, Stages> stages;  // the same, and the shape's boundaries and ranks
};

struct Predictor::Cached {
  TraceOptions options;
  ModelTrace trace;
  // By what prices depend on beside the trace: recomputation, ZeRO's messages of a micro-batch, and where groups lie.
  std::map<std::array<int, 4>, Priced> prices;
};

struct Predictor::Shapes : plan::SharedShapes {};

Predictor::Predictor(ModelConfig model, Cluster cluster)
    : model_(std::move(model)), cluster_(std::move(cluster)), shapes_(std::make_unique<Shapes>()) {}
Predictor::~Predictor() = default;

const ModelTrace& Predictor::trace(const RunConfig& run) {
  return cached(run).trace;
}

Predictor::Cached& Predictor::cached(const RunConfig& run) {
  const TraceOptions options = traced_options(run, cluster_.stack);
  for (const auto& cached : traces_) {
    if (cached->options == options) return *cached;
  }
  traces_.push_back(std::make_unique<Cached>(Cached{options, trace_model(model_, options), {}}));
  if (cluster_.stack.logits_bytes > 0) plan::merge_chunks(traces_.back()->trace.head);
  return *traces_.back();
}

Predictor::Priced& Predictor::priced(Cached& cached, const RunConfig& run) {
  const Placed& placed = shapes_->place(cluster_, run.grid);
  const bool sharded = run.zero >= 2;
  const auto [found, is_new] = cached.prices.try_emplace({static_cast<int>(run.recompute), sharded ? run.zero : 0,
                                                          placed.traced_number, sharded ? placed.data_number : 0});
  if (is_new) found->second.price = plan::price_model(cluster_, run, model_, cached.trace);
  return found->second;
}

StepBound Predictor::bound(const RunConfig& run, double memory_limit) {
  Cached& traced = cached(run);
  Priced& prices = priced(traced, run);
  const ScheduleShape& shape = shapes_->shape(run);
  const auto count = static_cast<int>(shape.map.rank_of_stage.size());
  const auto [stages, is_new] = prices.stages.try_emplace({count, shape.split, shape.boundaries, shape.ranks()});
  if (is_new) {
    const auto [layers, is_first] = prices.layers.try_emplace({count, shape.split});
    if (is_first) layers->second = plan::balanced_layers(prices.price, traced.trace, count, shape.split);
    stages->second = Stages(prices.price, traced.trace, layers->second, shape.map);
  }
  const PredictOptions options{.spans = false, .memory_limit = memory_limit};
  return Step(cluster_, model_, run, traced.trace, options, prices.price, shapes_->place(cluster_, run.grid),
              shapes_->flops(model_, run.seq_len))
      .bound(stages->second, shape, shapes_->paths_so_far(run));
}

StepPrediction Predictor::predict(const RunConfig& run, const PredictOptions& options) {
  Cached& traced = cached(run);
  const Priced& prices = priced(traced, run);
  const Schedule* schedule = shapes_->schedule(run);
  return Step(cluster_, model_, run, traced.trace, options, prices.price, shapes_->place(cluster_, run.grid),
              shapes_->flops(model_, run.seq_len))
      .run(schedule, schedule != nullptr ? &shapes_->paths(run) : nullptr);
}

void check_cluster(const Cluster& cluster, const RunConfig& run, Problems& problems) {
  problems.add_if(run.grid.world() > cluster.devices(),
                  fmt::format("the grid has {} ranks; the cluster {} has {} devices", run.grid.world(), cluster.name,
                              cluster.devices()));
}

}  // namespace cuboid
