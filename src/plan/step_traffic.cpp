#include "cuboid/plan/step_traffic.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "cuboid/plan/trace.h"
#include "cuboid/train/pipeline_plan.h"

#include "axis_messages.h"

namespace cuboid {
namespace {

using Counts = std::map<std::tuple<Axis, CommOperation, double>, double>;

CommOperation operation_of(TracedCommunication::Operation operation) {
  switch (operation) {
    case TracedCommunication::Operation::all_reduce:
      return CommOperation::all_reduce;
    case TracedCommunication::Operation::reduce_scatter:
      return CommOperation::reduce_scatter;
    case TracedCommunication::Operation::all_gather:
      return CommOperation::all_gather;
    case TracedCommunication::Operation::all_to_all:
      return CommOperation::all_to_all;
    case TracedCommunication::Operation::broadcast:
      return CommOperation::broadcast;
  }
  return CommOperation::all_reduce;
}

void add(const TracedBlock& block, double times, Counts& counts) {
  for (const TracedPass* pass : {&block.forward, &block.backward}) {
    for (const TracedEvent& event : pass->events) {
      const auto* c = std::get_if<TracedCommunication>(&event);
      if (c == nullptr || c->ranks < 2 || !(c->bytes > 0)) continue;
      counts[{c->axis, operation_of(c->operation), c->bytes}] += times;
    }
  }
}

double bytes_in(const Counts& counts) {
  double sum = 0;
  for (const auto& [what, times] : counts) sum += times * std::get<2>(what);
  return sum;
}

// Gradients and parameters of a rank's share over the axes whose ranks hold copies, in buckets.
void add_copies(const RunConfig& run, std::initializer_list<Axis> axes, double parameters, Counts& counts) {
  if (parameters == 0) return;
  const double elements_a_bucket = static_cast<double>(run.bucket_bytes) / 4;
  const double buckets = std::max(1.0, std::ceil(parameters / elements_a_bucket));
  const double gradient = parameters / buckets * static_cast<double>(size_of(run.reduce_dtype));
  const double weights = parameters / buckets * static_cast<double>(size_of(run.dtype));
  const double micro_batches = run.micro_batches();
  const auto put = [&](Collective operation, double bytes, double times) {
    for (const auto& message : plan::messages_over(run.grid, axes, operation, bytes)) {
      counts[{message.axis, operation_of(message.operation), message.bytes}] += buckets * times;
    }
  };
  if (run.zero == 0) return put(Collective::all_reduce, gradient, 1);
  put(Collective::reduce_scatter, gradient, run.zero >= 2 ? micro_batches : 1);
  // ZeRO 3 gathers parameters for every use, forward and backward.
  put(Collective::all_gather, weights, run.zero == 3 ? 2 * micro_batches : 1);
}

}  // namespace

Traffic step_traffic(const RunConfig& run, const ModelConfig& model) {
  const ModelTrace trace = trace_model(model, trace_options(run));
  const PipelineLayout layout = plan_pipeline(run, model);
  const double micro_batches = run.micro_batches();
  const auto stages = static_cast<int>(layout.stage_layers.size());
  std::vector<Counts> of_rank(static_cast<std::size_t>(layout.schedule.ranks()));
  std::vector<double> dense(of_rank.size());
  std::vector<double> experts(of_rank.size());
  const auto rank_of_stage = layout.schedule.rank_of_stage();
  double boundary = 0;
  int layer = 0;
  for (int s = 0; s < stages; ++s) {
    const auto rank = static_cast<std::size_t>(rank_of_stage[static_cast<std::size_t>(s)]);
    const auto take = [&](const TracedBlock& block) {
      add(block, micro_batches, of_rank[rank]);
      experts[rank] += static_cast<double>(block.parameters.local_expert);
      dense[rank] += static_cast<double>(block.parameters.local - block.parameters.local_expert);
      if (block.output_bytes > 0) boundary = static_cast<double>(block.output_bytes);
    };
    if (s == 0) take(trace.embedding);
    for (int i = 0; i < layout.stage_layers[static_cast<std::size_t>(s)]; ++i) {
      take(trace.layers[static_cast<std::size_t>(trace.kind_of_layer(layer++))]);
    }
    if (s + 1 == stages) take(trace.head);
  }
  for (std::size_t r = 0; r < of_rank.size(); ++r) {
    add_copies(run, plan::kDenseCopies, dense[r], of_rank[r]);
    add_copies(run, plan::kExpertCopies, experts[r], of_rank[r]);
  }
  Counts& most = *std::max_element(of_rank.begin(), of_rank.end(),
                                   [](const Counts& a, const Counts& b) { return bytes_in(a) < bytes_in(b); });
  const int pipeline = run.grid.degree(Axis::pp);
  if (pipeline > 1) {
    const double chunks = static_cast<double>(stages) / pipeline;
    most[{Axis::pp, CommOperation::send, boundary}] += 2 * micro_batches * chunks;
  }
  Traffic traffic;
  for (const auto& [what, times] : most) {
    traffic.push_back({std::get<0>(what), std::get<1>(what), std::get<2>(what), times});
  }
  return traffic;
}

}  // namespace cuboid
