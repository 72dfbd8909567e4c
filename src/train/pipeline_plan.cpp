#include "cuboid/train/pipeline_plan.h"

#include <algorithm>

#include "cuboid/models/registry.h"
#include "cuboid/parallel/pipeline/auto_schedule.h"
#include "cuboid/parallel/pipeline/balance.h"
#include "cuboid/parallel/pipeline/passes.h"
#include "cuboid/parallel/pipeline/select.h"
#include "cuboid/parallel/pipeline/sharding.h"

#include "model_stage.h"

namespace cuboid {
namespace {

// The forward actions of a schedule with their transfers: what an evaluation runs. Every tensor comes from an earlier
// stage, sends do not wait, and a row's order is that of training, so no rank can wait in a circle.
Schedule forward_only(const Schedule& schedule) {
  Schedule made = schedule;
  const std::vector<int> ranks = schedule.rank_of_stage();
  const auto neighbour = [&](int from, int to) {
    return to < 0 || to >= schedule.stages ? ranks[static_cast<std::size_t>(from)]
                                           : ranks[static_cast<std::size_t>(to)];
  };
  for (std::size_t rank = 0; rank < made.rows.size(); ++rank) {
    made.rows[rank].clear();
    for (const Action& a : schedule.rows[rank]) {
      if (a.kind != ActionKind::forward) continue;
      const int here = static_cast<int>(rank);
      if (neighbour(a.stage, a.stage - 1) != here) {
        made.rows[rank].push_back({ActionKind::recv_forward, a.stage, a.micro_batch});
      }
      made.rows[rank].push_back(a);
      if (neighbour(a.stage, a.stage + 1) != here) {
        made.rows[rank].push_back({ActionKind::send_forward, a.stage, a.micro_batch});
      }
    }
  }
  return made;
}

StageCosts scaled(const StageCosts& c, double factor) {
  return {.forward = factor * c.forward,
          .backward = factor * c.backward,
          .input_gradient = factor * c.input_gradient,
          .weight_gradient = factor * c.weight_gradient};
}

StageCosts sum(const StageCosts& a, const StageCosts& b) {
  return {.forward = a.forward + b.forward,
          .backward = a.backward + b.backward,
          .input_gradient = a.input_gradient + b.input_gradient,
          .weight_gradient = a.weight_gradient + b.weight_gradient};
}

PipelineCosts stage_costs(const std::vector<int>& stage_layers, const BlockCosts& blocks) {
  PipelineCosts costs;
  costs.stages.clear();
  costs.transfer = blocks.transfer;
  for (const StageSpan& span : stage_spans(stage_layers)) {
    StageCosts stage = scaled(blocks.layer, span.layers);
    if (span.first) stage = sum(blocks.embedding, stage);
    if (span.last) stage = sum(stage, blocks.head);
    costs.stages.push_back(stage);
  }
  return costs;
}

// Time of a micro-batch with B whole, or with I and W apart.
double whole_time(const StageCosts& c) {
  return c.forward + c.backward;
}
double split_time(const StageCosts& c) {
  return c.forward + c.input_gradient + c.weight_gradient;
}

std::vector<int> balanced(const BlockCosts& blocks, const ModelConfig& model, int stages,
                          double (*time)(const StageCosts&)) {
  std::vector<double> times(static_cast<std::size_t>(model.layers) + 2, time(blocks.layer));
  times.front() = time(blocks.embedding);
  times.back() = time(blocks.head);
  return balance_layers(times, stages);
}

bool splits_backward(const Schedule& schedule) {
  return std::any_of(schedule.rows.begin(), schedule.rows.end(), [](const auto& row) {
    return std::any_of(row.begin(), row.end(), [](const Action& a) { return a.kind == ActionKind::weight_gradient; });
  });
}

// What a micro-batch costs each stage, with B whole or in parts as the schedule has it.
std::vector<double> stage_work(const Schedule& schedule, const PipelineCosts& costs) {
  std::vector<double> work(static_cast<std::size_t>(schedule.stages));
  for (const auto& row : schedule.rows) {
    for (const Action& action : row) {
      if (computes(action.kind)) work[static_cast<std::size_t>(action.stage)] += costs.of(action);
    }
  }
  for (double& stage : work) stage /= schedule.micro_batches;
  return work;
}

// Searches with the layers given; sets the layout's split, schedule and choice if that is the best so far.
void try_auto(const RunConfig& run, const BlockCosts& blocks, const std::vector<int>& stage_layers,
              PipelineLayout& layout) {
  AutoRequest request;
  request.ranks = run.grid.degree(Axis::pp);
  request.micro_batches = run.micro_batches();
  request.virtual_stages = std::max(1, run.virtual_stages);
  request.costs = stage_costs(stage_layers, blocks);
  if (run.max_activations > 0) request.max_activations = run.max_activations;
  AutoSchedule found = find_schedule(request);
  if (layout.chosen && layout.chosen->makespan <= found.makespan) return;
  layout.stage_layers = stage_layers;
  layout.schedule = std::move(found.schedule);
  layout.chosen =
      AutoChoice{found.origin, found.makespan, found.lower_bound, found.best_named, found.best_named_makespan};
}

void choose(const RunConfig& run, const ModelConfig& model, const BlockCosts& blocks, PipelineLayout& layout) {
  const int stages = stages_of(run);
  if (run.schedule != kAutoSchedule) {
    layout.schedule = schedule_of(run);
    const auto time = splits_backward(layout.schedule) ? split_time : whole_time;
    layout.stage_layers = run.stage_layers.empty() ? balanced(blocks, model, stages, time) : run.stage_layers;
    return;
  }
  if (!run.stage_layers.empty()) return try_auto(run, blocks, run.stage_layers, layout);
  // Whether the schedule will run B whole is not known yet, and the head costs more apart: both splits are tried.
  const std::vector<int> whole = balanced(blocks, model, stages, whole_time);
  const std::vector<int> split = balanced(blocks, model, stages, split_time);
  try_auto(run, blocks, split, layout);
  if (whole != split) try_auto(run, blocks, whole, layout);
}

}  // namespace

BlockCosts modelled_block_costs(const RunConfig& run, const ModelConfig& model) {
  const std::vector<double> forward = block_costs(model, run.seq_len);  // a token
  // The head's cost is its output matrix and loss, and the final norm, which costs what the embedding's gather does.
  const double norm = forward.front();
  const double output = forward.back() - norm;
  const double layer = forward[1];
  const double again = run.recompute == Recompute::full ? layer : 0;
  const double tokens =
      static_cast<double>(run.seq_len) * run.micro_batch / run.grid.degree(Axis::tp) / run.grid.degree(Axis::cp);
  BlockCosts costs;
  costs.embedding = scaled({.forward = norm, .backward = norm, .input_gradient = 0, .weight_gradient = norm}, tokens);
  costs.layer = scaled(
      {.forward = layer, .backward = 2 * layer + again, .input_gradient = layer + again, .weight_gradient = layer},
      tokens);
  costs.head = scaled({.forward = norm,
                       .backward = 3 * output + 2 * norm,
                       .input_gradient = 2 * output + norm,
                       .weight_gradient = 2 * output + norm},
                      tokens);
  return costs;
}

PipelineLayout plan_pipeline(const RunConfig& run, const ModelConfig& model, const BlockCosts& blocks) {
  PipelineLayout layout;
  choose(run, model, blocks, layout);
  layout.costs = stage_costs(layout.stage_layers, blocks);
  layout.unit = blocks.unit();
  const Schedule& schedule = layout.schedule;
  const Simulation predicted = simulate(schedule, layout.costs);
  layout.bubble = predicted.bubble_fraction;
  layout.stage_work = stage_work(schedule, layout.costs);
  layout.barrier = predicted.makespan > 0 ? predicted.barrier / predicted.makespan : 0;
  layout.training = add_step(add_sharding(
      add_reduction(has_transfers(schedule) ? schedule : add_transfers(schedule, SendMode::buffered)), run.zero));
  layout.evaluation = add_sharding(forward_only(schedule), run.zero);
  return layout;
}

PipelineLayout plan_pipeline(const RunConfig& run, const ModelConfig& model) {
  return plan_pipeline(
      run, model,
      run.balance == Balance::measured ? measured_block_costs(run, model) : modelled_block_costs(run, model));
}

}  // namespace cuboid
