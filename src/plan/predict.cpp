#include "cuboid/plan/predict.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/core/units.h"
#include "cuboid/models/registry.h"
#include "cuboid/parallel/pipeline/auto_schedule.h"
#include "cuboid/parallel/pipeline/balance.h"
#include "cuboid/parallel/pipeline/generators.h"
#include "cuboid/parallel/pipeline/select.h"

#include "stages.h"

namespace cuboid {
namespace {

using plan::ActionCost;
using plan::BlockPrice;
using plan::ModelPrice;
using Operation = TracedCommunication::Operation;

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

TraceOptions traced_options(const RunConfig& run, const SoftwareStack& stack) {
  TraceOptions options = trace_options(run);
  // Recomputing attention's core is not something a trace has: it is priced apart.
  if (stack.selective_attention && run.recompute == Recompute::selective) options.recompute = Recompute::none;
  // Nor is a split context: a part of it is traced, and split_context adds what the parts exchange.
  options.seq_len = run.seq_len / options.cp;
  return options;
}

bool splits_backward(const Schedule& schedule) {
  const auto& row = schedule.rows.front();
  return std::any_of(row.begin(), row.end(), [](const Action& a) { return a.kind == ActionKind::weight_gradient; });
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

// Where a grid's groups lie on the cluster.
struct Placed {
  bool known = false;
  Grid grid = {};
  TracedGroups traced = {};
  plan::DataGroups data = {};
};

// What a named schedule has whatever its number of micro-batches.
struct ScheduleShape {
  std::string name;
  std::vector<int> rank_of_stage;
  bool split = false;  // I and W apart
  int virtual_stages = 1;

  int ranks() const { return static_cast<int>(rank_of_stage.size()) / virtual_stages; }

  // Micro-batches of one stage that a rank holds at its peak, at least: its warm-up and the one that follows. 1: of
  // schedules whose warm-up is not known here.
  double held(int rank, int micro_batches) const {
    const int ahead = ranks() - 1 - rank;
    if (name == "gpipe" || name == "looped-bfs") return micro_batches * virtual_stages;
    if (name == "1f1b" || name == "zb-h1") return std::min(micro_batches, ahead + 1);
    if (name != "interleaved-1f1b") return 1;
    const int group = std::min(micro_batches, ranks());
    return std::min(micro_batches * virtual_stages, 2 * ahead + (virtual_stages - 1) * group + 1);
  }
};

// One run on one cluster.
class Step {
 public:
  Step(const Cluster& cluster, const ModelConfig& model, const RunConfig& run, const ModelTrace& trace,
       const PredictOptions& options, const ModelPrice& price, const plan::DataGroups& data, double training_flops)
      : cluster_(cluster),
        stack_(cluster.stack),
        model_(model),
        run_(run),
        trace_(trace),
        options_(options),
        data_(data),
        price_(price),
        training_flops_(training_flops) {}

  /// Layers of each stage, and the stages' prices: what all runs of equal prices and numbers of stages share.
  struct Layout {
    std::vector<int> layers;
    std::vector<BlockPrice> stages;
  };
  Layout divide(int stages, bool split) {
    Layout layout;
    out_.stage_layers = layout.layers = balance_layers(block_times(split), stages);
    make_stages();
    layout.stages = stages_;
    return layout;
  }

  StepBound bound(const Layout& layout, const ScheduleShape& shape) {
    stages_ = layout.stages;
    rank_of_stage_ = shape.rank_of_stage;
    add_transfers_and_overheads();
    StepBound bound;
    // The ranks that are slowest or fullest in one schedule or another; the others can only be worse than the bound.
    const std::array<int, 4> ranks = {0, 1, shape.ranks() / 2, shape.ranks() - 1};
    for (const int rank : ranks) {
      if (rank < shape.ranks()) add_least_memory(rank, shape, bound);
    }
    if (bound.memory_bytes > options_.memory_limit) return bound;
    double end = 0;
    double gathers = 0;
    for (const int rank : ranks) {
      if (rank >= shape.ranks()) continue;
      end = std::max(end, least_end(rank, shape) + tail_reduction(rank) + optimizer_seconds(rank));
      gathers = std::max(gathers, gather(rank));
    }
    bound.step_seconds = step_seconds(end, gathers);
    return bound;
  }

  StepPrediction run() {
    lay_out();
    const Simulation simulation = simulate(schedule_, costs_);
    time(simulation);
    measure(simulation);
    judge();
    if (options_.spans) {
      out_.schedule = std::move(schedule_);
      out_.simulation = simulation;
    }
    return std::move(out_);
  }

 private:
  const BlockPrice& layer(int i) const { return price_.layers[at(trace_.kind_of_layer(i))]; }

  std::vector<double> block_times(bool split) const {
    const auto time = [&](const BlockPrice& b) {
      return b.forward.total() + (split ? b.input_gradient.total() + b.weight_gradient.total() : b.backward.total());
    };
    std::vector<double> times = {time(price_.embedding)};
    for (int i = 0; i < model_.layers; ++i) times.push_back(time(layer(i)));
    times.push_back(time(price_.head));
    return times;
  }

  // Stages and schedule.
  void lay_out() {
    const bool searched = run_.schedule == kAutoSchedule;
    bool split = false;
    if (!searched) {
      schedule_ = schedule_of(run_);
      split = splits_backward(schedule_);
    }
    const int stages = searched ? stages_of(run_) : schedule_.stages;
    out_.stage_layers = run_.stage_layers.empty() ? balance_layers(block_times(split), stages) : run_.stage_layers;
    make_stages();
    if (searched) {
      place_on_loop();
      search();
    } else {
      rank_of_stage_ = schedule_.rank_of_stage();
    }
    add_transfers_and_overheads();
    make_costs();
  }

  void make_stages() {
    int next = 0;
    for (const int count : out_.stage_layers) {
      BlockPrice stage;
      if (next == 0) stage += price_.embedding;
      for (int i = 0; i < count; ++i) stage += layer(next++);
      stages_.push_back(stage);
    }
    stages_.back() += price_.head;
  }

  void place_on_loop() {
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      rank_of_stage_.push_back(static_cast<int>(stage) % run_.grid.degree(Axis::pp));
    }
  }

  void search() {
    make_costs();
    AutoRequest request;
    request.ranks = run_.grid.degree(Axis::pp);
    request.micro_batches = run_.micro_batches();
    request.virtual_stages = std::max(1, run_.virtual_stages);
    request.costs = costs_;
    if (run_.max_activations > 0) request.max_activations = run_.max_activations;
    schedule_ = find_schedule(request).schedule;
    rank_of_stage_ = schedule_.rank_of_stage();
  }

  double boundary_bytes() const {
    const TracedBlock& block = trace_.layers.front();
    const bool parts = stack_.scatter_gather && !run_.sequence_parallel;
    return static_cast<double>(block.output_bytes) / (parts ? run_.grid.degree(Axis::tp) : 1);
  }

  // A stage waits for what comes from another rank, as far as that is not hidden.
  void add_transfers_and_overheads() {
    transfer_ = transfer_seconds(cluster_, run_.grid, boundary_bytes());
    const double waiting = (1 - stack_.pp_overlap) * transfer_;
    const int last = static_cast<int>(stages_.size()) - 1;
    for (int s = 0; s <= last; ++s) {
      BlockPrice& stage = stages_[at(s)];
      for (ActionCost* cost : {&stage.forward, &stage.backward, &stage.input_gradient}) {
        cost->compute += stack_.micro_batch_seconds / 2;
      }
      if (s > 0 && rank_of_stage_[at(s - 1)] != rank_of_stage_[at(s)]) stage.forward.pp += waiting;
      if (s < last && rank_of_stage_[at(s + 1)] != rank_of_stage_[at(s)]) {
        stage.backward.pp += waiting;
        stage.input_gradient.pp += waiting;
      }
    }
  }

  void make_costs() {
    costs_ = {};
    costs_.stages.clear();
    for (const BlockPrice& stage : stages_) {
      costs_.stages.push_back({.forward = stage.forward.total(),
                               .backward = stage.backward.total(),
                               .input_gradient = stage.input_gradient.total(),
                               .weight_gradient = stage.weight_gradient.total()});
    }
    costs_.transfer = stack_.pp_overlap * transfer_;
    // A pipeline rank that is walked stands for all its tensor and data ranks on the node.
    costs_.at_once = run_.grid.degree(Axis::pp) / sharing();
  }

  // Elements of the model on a pipeline rank; a tied output matrix beside its embedding is the same matrix.
  struct Elements {
    double dense = 0, expert = 0;
  };
  Elements elements(int rank) const {
    Elements sum;
    bool first = false;
    bool last = false;
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      if (rank_of_stage_[stage] != rank) continue;
      sum.dense += stages_[stage].parameters;
      sum.expert += stages_[stage].expert_parameters;
      first |= stage == 0;
      last |= stage + 1 == stages_.size();
    }
    if (model_.tied && first && last) sum.dense -= tied_elements();
    return sum;
  }
  double tied_elements() const {
    return static_cast<double>(model_.vocab * model_.hidden) / run_.grid.degree(Axis::tp);
  }

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
    const int first = rank_of_stage_.front();
    const int last = rank_of_stage_.back();
    if (!model_.tied || first == last || (rank != first && rank != last)) return 0;
    return 2 * transfer_seconds(cluster_, run_.grid, tied_elements() * stack_.gradient_bytes_sent);
  }

  // Of gathering the new parameters before the next step's first forward.
  double gather(int rank) const {
    if (run_.zero < 1 || run_.zero > 2) return 0;
    return sharing() * plan::exposed(cluster_,
                                     over_data(elements(rank), Operation::all_gather, stack_.parameter_bytes_sent),
                                     rank_seconds(rank, ActionKind::forward));
  }

  double rank_seconds(int rank, ActionKind kind) const {
    double sum = 0;
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      if (rank_of_stage_[stage] == rank) sum += cost_of(stages_[stage], kind).total();
    }
    return sum;
  }

  // Ranks to a core, where all of a node compute.
  double sharing() const {
    if (cluster_.device.shared_cores == 0) return 1;
    const int on_node = std::min(run_.grid.world(), cluster_.levels.front().size);
    return std::max(1.0, static_cast<double>(on_node) / cluster_.device.shared_cores);
  }

  double shards(const GroupPlacement& group, int from_zero) const { return run_.zero >= from_zero ? group.ranks : 1; }

  double sharded(const Elements& e, int from_zero) const {
    return e.dense / shards(data_.dense, from_zero) + e.expert / shards(data_.expert, from_zero);
  }

  double optimizer_seconds(int rank) const {
    return sharing() * sharded(elements(rank), 1) * stack_.optimizer_traffic /
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
    double before = 0;
    double after = 0;
    double work = 0;
    bool started = false;
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      const BlockPrice& price = stages_[stage];
      if (rank_of_stage_[stage] == rank) {
        started = true;
        work += price.forward.total() +
                (shape.split
                     ? std::min(price.backward.total(), price.input_gradient.total() + price.weight_gradient.total())
                     : price.backward.total());
      } else if (!started) {
        before += price.forward.total();
        after += price.backward.total();
      }
    }
    if (!stack_.step_barrier) return run_.micro_batches() * work;
    const double own = before + run_.micro_batches() * work;
    return rank_of_stage_.front() != rank && !shape.split ? std::max(own, own + after - slack_of(rank)) : own;
  }

  // What the first rank still has to do in reduction and step is counted with it, not here.
  double slack_of(int rank) const {
    const int first = rank_of_stage_.front();
    return std::max(0.0,
                    tail_reduction(rank) + optimizer_seconds(rank) - tail_reduction(first) - optimizer_seconds(first));
  }

  void add_least_memory(int rank, const ScheduleShape& shape, StepBound& bound) const {
    double kept = 0;
    double temporary = 0;
    bool any = false;
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      if (rank_of_stage_[stage] != rank) continue;
      const plan::ActivationBytes& bytes = stages_[stage].bytes;
      kept = any ? std::min(kept, bytes.kept) : bytes.kept;
      temporary = any ? std::min(temporary, bytes.temporary) : bytes.temporary;
      any = true;
    }
    const double held = fixed_memory(rank).total() + shape.held(rank, run_.micro_batches()) * kept;
    bound.kept_bytes = std::max(bound.kept_bytes, held);
    bound.memory_bytes = std::max(bound.memory_bytes, held + temporary);
  }

  void time(const Simulation& simulation) {
    const int ranks = schedule_.ranks();
    double end = 0;
    double gathers = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const double last = simulation.spans[at(rank)].empty() ? 0 : simulation.spans[at(rank)].back().end;
      const double span = simulation.busy[at(rank)] + simulation.idle_in_span[at(rank)];
      const double own = stack_.step_barrier ? last : span;
      end = std::max(end, own + tail_reduction(rank) + optimizer_seconds(rank));
      gathers = std::max(gathers, gather(rank));
    }
    out_.step_seconds = step_seconds(end, gathers);
    const auto busiest = std::max_element(simulation.busy.begin(), simulation.busy.end());
    attribute(static_cast<int>(busiest - simulation.busy.begin()), *busiest, gathers);
    rate();
  }

  void attribute(int rank, double busy, double gathers) {
    SecondsByCause& seconds = out_.seconds;
    for (const Action& action : schedule_.rows[at(rank)]) {
      if (!computes(action.kind)) continue;
      const ActionCost& cost = cost_of(stages_[at(action.stage)], action.kind);
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
    for (const BlockPrice& stage : stages_) executed += stage.flops;
    out_.hfu = executed * run_.micro_batches() / schedule_.ranks() / out_.step_seconds / peak;
  }

  void measure(const Simulation& simulation) {
    for (int rank = 0; rank < schedule_.ranks(); ++rank) {
      RankPrediction& prediction = out_.ranks.emplace_back();
      prediction.busy = simulation.busy[at(rank)];
      MemoryByCause& memory = prediction.memory;
      memory = fixed_memory(rank);
      memory.activations = peak_activations(simulation.spans[at(rank)], memory, prediction.timeline);
      if (memory.total() > out_.ranks[at(out_.peak_rank)].memory.total()) out_.peak_rank = rank;
    }
  }

  // All but activations.
  MemoryByCause fixed_memory(int rank) const {
    const Elements e = elements(rank);
    MemoryByCause memory;
    memory.parameters = sharded(e, 3) * stack_.parameter_bytes;
    memory.gradients = sharded(e, 2) * stack_.gradient_bytes;
    memory.optimizer = sharded(e, 1) * stack_.optimizer_bytes;
    memory.communication = stack_.reserved_bytes + gathered_bytes();
    return memory;
  }

  // ZeRO-3 holds two whole layers: one computes, the next is gathered.
  double gathered_bytes() const {
    if (run_.zero < 3) return 0;
    double most = 0;
    for (const BlockPrice& layer : price_.layers) most = std::max(most, layer.parameters + layer.expert_parameters);
    return 2 * most * stack_.parameter_bytes;
  }

  double peak_activations(const std::vector<Span>& spans, const MemoryByCause& others,
                          std::vector<MemoryPoint>& timeline) const {
    const double base = others.total();
    double held = 0;
    double peak = 0;
    for (const Span& span : spans) {
      if (!computes(span.action.kind)) continue;
      const plan::ActivationBytes& bytes = stages_[at(span.action.stage)].bytes;
      const ActionKind kind = span.action.kind;
      if (kind == ActionKind::forward) held += bytes.kept;
      peak = std::max(peak, held + (kind == ActionKind::weight_gradient ? 0 : bytes.temporary));
      if (kind == ActionKind::forward && options_.spans) timeline.push_back({span.begin, base + held});
      if (kind == ActionKind::backward) held -= bytes.kept;
      if (kind == ActionKind::input_gradient) held -= bytes.kept - bytes.kept_for_weights;
      if (kind == ActionKind::weight_gradient) held -= bytes.kept_for_weights;
      if (kind != ActionKind::forward && options_.spans) timeline.push_back({span.end, base + held});
    }
    return peak;
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
  const plan::DataGroups& data_;
  const ModelPrice& price_;
  double training_flops_;  // per token
  Schedule schedule_;
  std::vector<BlockPrice> stages_;
  std::vector<int> rank_of_stage_;
  PipelineCosts costs_;
  double transfer_ = 0;
  StepPrediction out_;
};

}  // namespace

// Prices, and what was divided into stages by them.
struct Predictor::Priced {
  ModelPrice price;
  std::map<std::pair<int, bool>, Step::Layout> layouts;
};

struct Predictor::Cached {
  TraceOptions options;
  ModelTrace trace;
  // By what prices depend on beside the trace: recomputation, ZeRO's messages of a micro-batch, and where groups lie.
  std::map<std::vector<int>, Priced> prices;
};

struct Predictor::Shapes {
  std::map<int, double> training_flops;  // per token, by sequence length
  double flops(const ModelConfig& model, int seq_len) {
    const auto [found, is_new] = training_flops.try_emplace(seq_len);
    if (is_new) found->second = flops_per_token(model, seq_len).training();
    return found->second;
  }

  // Where the groups of the grid lie that was asked for last: a search asks for one grid many times in a row.
  Placed placed;
  const Placed& place(const Cluster& cluster, const Grid& grid) {
    if (!placed.known || !(placed.grid == grid)) {
      placed = {true, grid, place_traced_groups(cluster, grid), plan::place_data_groups(cluster, grid)};
    }
    return placed;
  }

  std::map<std::tuple<std::string, int, int>, ScheduleShape> known;  // by name, ranks and virtual stages

  const ScheduleShape& of(const RunConfig& run) {
    const int ranks = run.grid.degree(Axis::pp);
    const int virtual_stages = run.virtual_stages > 0 ? run.virtual_stages : default_virtual_stages(run.schedule);
    const auto [found, is_new] = known.try_emplace({run.schedule, ranks, virtual_stages});
    if (is_new) {
      // Any number of micro-batches that all schedules are defined for.
      const Schedule schedule = make_schedule({run.schedule, ranks, 2 * ranks, virtual_stages});
      found->second = {run.schedule, schedule.rank_of_stage(), splits_backward(schedule), virtual_stages};
    }
    return found->second;
  }
};

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
  TraceOptions own = options;
  own.cp = 1;
  traces_.push_back(std::make_unique<Cached>(Cached{options, trace_model(model_, own), {}}));
  plan::split_context(traces_.back()->trace, options.cp);
  return *traces_.back();
}

Predictor::Priced& Predictor::priced(Cached& cached, const RunConfig& run) {
  std::vector<int> key = {static_cast<int>(run.recompute), run.zero >= 2 ? run.zero : 0};
  const auto place = [&](const GroupPlacement& group) {
    key.push_back(group.ranks);
    key.insert(key.end(), group.inside.begin(), group.inside.end());
  };
  const Placed& placed = shapes_->place(cluster_, run.grid);
  for (const GroupPlacement* group : {&placed.traced.tp, &placed.traced.cp, &placed.traced.ep}) place(*group);
  if (run.zero >= 2) {
    place(placed.data.dense);
    place(placed.data.expert);
  }
  const auto [found, is_new] = cached.prices.try_emplace(std::move(key));
  if (is_new) found->second.price = plan::price_model(cluster_, run, model_, cached.trace);
  return found->second;
}

StepBound Predictor::bound(const RunConfig& run, double memory_limit) {
  Cached& traced = cached(run);
  Priced& prices = priced(traced, run);
  const ScheduleShape& shape = shapes_->of(run);
  const PredictOptions options{.spans = false, .memory_limit = memory_limit};
  Step step(cluster_, model_, run, traced.trace, options, prices.price, shapes_->place(cluster_, run.grid).data,
            shapes_->flops(model_, run.seq_len));
  const auto stages = static_cast<int>(shape.rank_of_stage.size());
  const auto [layout, is_new] = prices.layouts.try_emplace({stages, shape.split});
  if (is_new) layout->second = step.divide(stages, shape.split);
  return step.bound(layout->second, shape);
}

StepPrediction Predictor::predict(const RunConfig& run, const PredictOptions& options) {
  Cached& traced = cached(run);
  const Priced& prices = priced(traced, run);
  return Step(cluster_, model_, run, traced.trace, options, prices.price, shapes_->place(cluster_, run.grid).data,
              shapes_->flops(model_, run.seq_len))
      .run();
}

void check_cluster(const Cluster& cluster, const RunConfig& run, Problems& problems) {
  problems.add_if(run.grid.world() > cluster.devices(),
                  fmt::format("the grid has {} ranks; the cluster {} has {} devices", run.grid.world(), cluster.name,
                              cluster.devices()));
}

}  // namespace cuboid
