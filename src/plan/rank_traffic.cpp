#include <algorithm>
#include <map>

#include "cuboid/plan/report.h"

#include "axis_messages.h"

namespace cuboid {
namespace {

using Operation = TracedCommunication::Operation;

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

/// Bytes a step that one rank of a group sends, by axis and how: round the ring, or to each of the others.
struct Sent {
  std::map<Axis, double> ring;
  std::map<Axis, double> each;

  void add(Axis axis, Operation operation, double bytes, int ranks) {
    if (ranks < 2) return;
    const double part = bytes / ranks;
    if (operation == Operation::all_to_all) {
      each[axis] += part;
    } else {
      ring[axis] += (operation == Operation::all_reduce ? 2.0 : 1.0) * (ranks - 1) * part;
    }
  }
  void add(const TracedPass& pass, double times) {
    for (const TracedEvent& event : pass.events) {
      if (const auto* message = std::get_if<TracedCommunication>(&event)) {
        add(message->axis, message->operation, times * message->bytes, message->ranks);
      }
    }
  }
};

class TrafficMap {
 public:
  TrafficMap(const Cluster& cluster, const ModelTrace& trace, const RunConfig& run, const StepPrediction& prediction,
             int most_cells)
      : stack_(cluster.stack), trace_(trace), run_(run), prediction_(prediction) {
    const int world = run.grid.world();
    out_.ranks_per_cell = (world + most_cells - 1) / most_cells;
    const int cells = (world + out_.ranks_per_cell - 1) / out_.ranks_per_cell;
    out_.bytes.assign(at(cells), std::vector<double>(at(cells)));
  }

  RankTraffic run() {
    const int ranks = run_.grid.degree(Axis::pp);
    const std::vector<int> rank_of_stage = prediction_.schedule.rank_of_stage();
    std::vector<Sent> sent(at(ranks));
    int layer = 0;
    const int last = static_cast<int>(prediction_.stage_layers.size()) - 1;
    for (int stage = 0; stage <= last; ++stage) {
      Sent& mine = sent[at(rank_of_stage[at(stage)])];
      if (stage == 0) add(mine, trace_.embedding);
      for (int i = 0; i < prediction_.stage_layers[at(stage)]; ++i) {
        add(mine, trace_.layers[at(trace_.kind_of_layer(layer++))]);
      }
      if (stage == last) add(mine, trace_.head);
    }
    for (int rank = 0; rank < run_.grid.world(); ++rank) spread(rank, sent[at(run_.grid.coordinate(rank)[Axis::pp])]);
    boundaries(rank_of_stage);
    return std::move(out_);
  }

 private:
  void add(Sent& sent, const TracedBlock& block) const {
    const double micro_batches = run_.micro_batches();
    sent.add(block.forward, micro_batches);
    sent.add(block.backward, micro_batches);
    const auto experts = static_cast<double>(block.parameters.local_expert);
    add_copies(sent, plan::kDenseCopies, static_cast<double>(block.parameters.local) - experts);
    add_copies(sent, plan::kExpertCopies, experts);
  }

  // Of parameters that the ranks of these axes hold alike.
  void add_copies(Sent& sent, std::initializer_list<Axis> axes, double elements) const {
    const auto add = [&](Operation operation, double bytes) {
      for (const auto& message : plan::messages_over(run_.grid, axes, operation, bytes)) {
        sent.add(message.axis, message.operation, message.bytes, run_.grid.degree(message.axis));
      }
    };
    const double micro_batches = run_.micro_batches();
    const double gradients = elements * stack_.gradient_bytes_sent;
    const double values = elements * stack_.parameter_bytes_sent;
    if (run_.zero == 0) return add(Operation::all_reduce, gradients);
    add(Operation::reduce_scatter, (run_.zero > 1 ? micro_batches : 1) * gradients);
    add(Operation::all_gather, (run_.zero > 2 ? 2 * micro_batches : 1) * values);
  }

  void spread(int rank, const Sent& sent) {
    for (const auto& [axis, bytes] : sent.ring) {
      const std::vector<int> group = run_.grid.group(axis, rank);
      const auto own = std::find(group.begin(), group.end(), rank);
      put(rank, own + 1 == group.end() ? group.front() : *(own + 1), bytes);
    }
    for (const auto& [axis, bytes] : sent.each) {
      for (const int other : run_.grid.group(axis, rank)) {
        if (other != rank) put(rank, other, bytes);
      }
    }
  }

  void boundaries(const std::vector<int>& rank_of_stage) {
    const double bytes = static_cast<double>(trace_.layers.front().output_bytes) * run_.micro_batches();
    for (int rank = 0; rank < run_.grid.world(); ++rank) {
      Coordinate where = run_.grid.coordinate(rank);
      const int own = where[Axis::pp];
      for (std::size_t stage = 0; stage + 1 < rank_of_stage.size(); ++stage) {
        for (const auto& [from, to] : {std::pair(stage, stage + 1), std::pair(stage + 1, stage)}) {
          if (rank_of_stage[from] != own || rank_of_stage[to] == own) continue;
          where[Axis::pp] = rank_of_stage[to];
          put(rank, run_.grid.rank(where), bytes);
        }
      }
    }
  }

  void put(int from, int to, double bytes) {
    out_.bytes[at(from / out_.ranks_per_cell)][at(to / out_.ranks_per_cell)] += bytes;
  }

  const SoftwareStack& stack_;
  const ModelTrace& trace_;
  const RunConfig& run_;
  const StepPrediction& prediction_;
  RankTraffic out_;
};

}  // namespace

RankTraffic rank_traffic(Predictor& predictor, const RunConfig& run, const StepPrediction& prediction, int most_cells) {
  return TrafficMap(predictor.cluster(), predictor.trace(run), run, prediction, most_cells).run();
}

}  // namespace cuboid
