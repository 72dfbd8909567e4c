#include "stages.h"

#include <algorithm>
#include <cmath>

#include "axis_messages.h"

namespace cuboid::plan {
namespace {

using Operation = TracedCommunication::Operation;

// Bytes a score that attention without flash keeps for backward: softmax and its dropped-out copy (2 each) and the
// mask (1). Korthikanti et al. 2022, section 4.1.
constexpr double kScoreBytes = 5;

double score_bytes(const TracedPass& pass) {
  double bytes = 0;
  for (const TracedEvent& event : pass.events) {
    const auto* kernel = std::get_if<TracedKernel>(&event);
    if (kernel == nullptr || kernel->kind != TracedKernel::Kind::attention || kernel->gradient) continue;
    bytes += kScoreBytes * static_cast<double>(kernel->batch * kernel->heads) * static_cast<double>(kernel->queries) *
             static_cast<double>(kernel->seq_len);
  }
  return bytes;
}

ActionCost action(const PassCost& pass) {
  return {.compute = pass.compute, .tp = pass.communication};
}

class Pricer {
 public:
  Pricer(const Cluster& cluster, const RunConfig& run)
      : cluster_(cluster),
        run_(run),
        traced_(place_traced_groups(cluster, run.grid)),
        data_(place_copies(cluster, run.grid)) {}

  BlockPrice price(const TracedBlock& block) const {
    const PassCost forward = pass_cost(cluster_, traced_, block.forward);
    BlockPrice price;
    price.forward = action(forward);
    price.backward = action(pass_cost(cluster_, traced_, block.backward));
    price.input_gradient = action(pass_cost(cluster_, traced_, block.input_gradient));
    price.weight_gradient = action(pass_cost(cluster_, traced_, block.weight_gradient));
    if (attention_again()) {
      price.backward.compute += forward.attention_forward;
      price.input_gradient.compute += forward.attention_forward;
    }
    price.bytes = activations(block);
    price.expert_parameters = static_cast<double>(block.parameters.local_expert);
    price.parameters = static_cast<double>(block.parameters.local) - price.expert_parameters;
    price.flops = flops(block.forward) + flops(block.backward);
    add_sharding(price);
    return price;
  }

 private:
  bool attention_again() const { return cluster_.stack.selective_attention && run_.recompute == Recompute::selective; }

  ActivationBytes activations(const TracedBlock& block) const {
    const double factor = cluster_.stack.activation_factor;
    const auto kept = static_cast<double>(block.kept.total());
    ActivationBytes bytes;
    bytes.kept = factor * kept;
    bytes.kept_for_weights = factor * static_cast<double>(block.kept_after_input_gradient.total());
    bytes.temporary = factor * std::max(0.0, static_cast<double>(block.backward.peak_total) - kept);
    if (cluster_.stack.flash_attention) return bytes;
    const double scores = score_bytes(block.forward);
    const bool again = attention_again() || run_.recompute == Recompute::full;
    (again ? bytes.temporary : bytes.kept) += scores;
    return bytes;
  }

  // Gathers before forward and backward, reductions after backward, beside the computing of the block before or after.
  void add_sharding(BlockPrice& price) const {
    const double gather = run_.zero >= 3 ? everywhere(price, Operation::all_gather, parameter_bytes()) : 0;
    const double reduce =
        run_.zero >= 2 ? everywhere(price, Operation::reduce_scatter, cluster_.stack.gradient_bytes_sent) : 0;
    const auto add = [&](ActionCost& cost, double communication) {
      cost.dp += exposed(cluster_, communication, cost.compute + cost.tp);
    };
    add(price.forward, gather);
    add(price.backward, gather + reduce);
    add(price.input_gradient, gather);
    add(price.weight_gradient, reduce);
  }
  double parameter_bytes() const { return cluster_.stack.parameter_bytes_sent; }

  double everywhere(const BlockPrice& price, Operation operation, double bytes) const {
    return data_seconds(cluster_, data_.dense, operation, price.parameters * bytes) +
           data_seconds(cluster_, data_.expert, operation, price.expert_parameters * bytes);
  }

  const Cluster& cluster_;
  const RunConfig& run_;
  TracedGroups traced_;
  CopyPlacements data_;
};

// The pass as it is where all logits are made at once: kernels that do the same to chunks of the tokens become one.
TracedPass without_chunks(const TracedPass& pass) {
  TracedPass whole = pass;
  whole.events.clear();
  const auto same_work = [](const TracedKernel& a, const TracedKernel& b) {
    if (a.kind != b.kind || a.name != b.name || a.phase != b.phase || a.n != b.n) return false;
    return a.phase == TracedPhase::weight_gradient ? a.m == b.m : a.k == b.k;
  };
  for (const TracedEvent& event : pass.events) {
    const auto* kernel = std::get_if<TracedKernel>(&event);
    const auto same = [&](TracedEvent& other) {
      if (const auto* theirs = std::get_if<TracedKernel>(&other))
        return kernel != nullptr && same_work(*theirs, *kernel);
      if (kernel != nullptr) return false;
      const auto& ours = std::get<TracedCommunication>(event);
      const auto& message = std::get<TracedCommunication>(other);
      return message.axis == ours.axis && message.operation == ours.operation && message.phase == ours.phase;
    };
    const auto found = std::find_if(whole.events.begin(), whole.events.end(), same);
    if (found == whole.events.end()) {
      whole.events.push_back(event);
    } else if (kernel == nullptr) {
      std::get<TracedCommunication>(*found).bytes += std::get<TracedCommunication>(event).bytes;
    } else {
      auto& sum = std::get<TracedKernel>(*found);
      (kernel->phase == TracedPhase::weight_gradient ? sum.k : sum.m) +=
          kernel->phase == TracedPhase::weight_gradient ? kernel->k : kernel->m;
      sum.flops += kernel->flops;
      sum.bytes_read += kernel->bytes_read;
      sum.bytes_written += kernel->bytes_written;
    }
  }
  return whole;
}

}  // namespace

ActionCost& ActionCost::operator+=(const ActionCost& other) {
  compute += other.compute;
  tp += other.tp;
  dp += other.dp;
  pp += other.pp;
  return *this;
}

BlockPrice& BlockPrice::operator+=(const BlockPrice& other) {
  forward += other.forward;
  backward += other.backward;
  input_gradient += other.input_gradient;
  weight_gradient += other.weight_gradient;
  bytes.kept += other.bytes.kept;
  bytes.kept_for_weights += other.bytes.kept_for_weights;
  bytes.temporary = std::max(bytes.temporary, other.bytes.temporary);
  parameters += other.parameters;
  expert_parameters += other.expert_parameters;
  flops += other.flops;
  return *this;
}

CopyPlacements place_copies(const Cluster& cluster, const Grid& grid) {
  return {place_group(cluster, grid, kDenseCopies), place_group(cluster, grid, kExpertCopies)};
}

double data_seconds(const Cluster& cluster, const GroupPlacement& group, Operation operation, double bytes) {
  const double bucket = cluster.stack.bucket_bytes;
  const double messages = bucket > 0 ? std::max(1.0, std::ceil(bytes / bucket)) : 1;
  return messages * collective_seconds(cluster, group, operation, bytes / messages);
}

double exposed(const Cluster& cluster, double communication, double compute) {
  const double hidden = std::min(communication, cluster.stack.dp_overlap * compute);
  return communication - hidden + cluster.stack.contention * hidden;
}

void merge_chunks(TracedBlock& head) {
  for (TracedPass* pass : {&head.forward, &head.backward, &head.input_gradient, &head.weight_gradient}) {
    *pass = without_chunks(*pass);
  }
}

ModelPrice price_model(const Cluster& cluster, const RunConfig& run, const ModelConfig& model,
                       const ModelTrace& trace) {
  const Pricer pricer(cluster, run);
  ModelPrice price;
  price.embedding = pricer.price(trace.embedding);
  for (const TracedBlock& layer : trace.layers) price.layers.push_back(pricer.price(layer));
  price.head = pricer.price(trace.head);
  if (cluster.stack.logits_bytes > 0) {
    const double logits = static_cast<double>(run.micro_batch) * run.seq_len / run.grid.degree(Axis::cp) *
                          static_cast<double>(model.vocab) / run.grid.degree(Axis::tp);
    price.head.bytes.temporary = cluster.stack.logits_bytes * logits;
  }
  return price;
}

}  // namespace cuboid::plan
