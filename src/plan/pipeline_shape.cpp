#include "pipeline_shape.h"

#include <algorithm>

#include "cuboid/parallel/pipeline/balance.h"
#include "cuboid/parallel/pipeline/generators.h"

namespace cuboid::plan {
namespace {

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

// What a stage is made of.
struct Parts {
  bool embedding = false, head = false;
  std::vector<int> layers;  // their kinds
  Stages::Neighbours neighbours;
  friend bool operator==(const Parts&, const Parts&) = default;
};

BlockPrice sum(const ModelPrice& price, const Parts& parts) {
  BlockPrice stage;
  if (parts.embedding) stage += price.embedding;
  for (const int kind : parts.layers) stage += price.layers[at(kind)];
  if (parts.head) stage += price.head;
  return stage;
}

std::vector<int> ends_of(const StageMap& map, const std::vector<int>& kind) {
  const auto ranks = static_cast<int>(map.stages_of_rank.size());
  const auto alike = [&](int a, int b) {
    return std::equal(map.stages_of_rank[at(a)].begin(), map.stages_of_rank[at(a)].end(),
                      map.stages_of_rank[at(b)].begin(), map.stages_of_rank[at(b)].end(),
                      [&](int x, int y) { return kind[at(x)] == kind[at(y)]; });
  };
  std::vector<int> ends;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == 0 || rank + 1 == ranks || !alike(rank - 1, rank) || !alike(rank, rank + 1)) ends.push_back(rank);
  }
  return ends;
}

void count(Held& held, ActionKind kind) {
  if (kind == ActionKind::forward) ++held.whole;
  if (kind == ActionKind::backward || kind == ActionKind::input_gradient) --held.whole;
  if (kind == ActionKind::input_gradient) ++held.for_weights;
  if (kind == ActionKind::weight_gradient) --held.for_weights;
}

MostHeld most_held(const std::vector<Action>& row) {
  Held now;
  MostHeld most;
  for (const Action& action : row) {
    count(now, action.kind);
    if (std::pair(now.whole, now.for_weights) > std::pair(most.of_whole.whole, most.of_whole.for_weights)) {
      most.of_whole = now;
    }
    if (std::pair(now.for_weights, now.whole) > std::pair(most.of_weights.for_weights, most.of_weights.whole)) {
      most.of_weights = now;
    }
  }
  return most;
}

}  // namespace

bool splits_backward(const Schedule& schedule) {
  const auto& row = schedule.rows.front();
  return std::any_of(row.begin(), row.end(), [](const Action& a) { return a.kind == ActionKind::weight_gradient; });
}

StageMap::StageMap(std::vector<int> ranks) : rank_of_stage(std::move(ranks)) {
  stages_of_rank.resize(1 + at(*std::max_element(rank_of_stage.begin(), rank_of_stage.end())));
  for (std::size_t s = 0; s < rank_of_stage.size(); ++s) {
    stages_of_rank[at(rank_of_stage[s])].push_back(static_cast<int>(s));
  }
}

std::vector<bool> StageMap::remote() const {
  std::vector<bool> remote(rank_of_stage.size());
  for (std::size_t s = 1; s < remote.size(); ++s) remote[s] = rank_of_stage[s - 1] != rank_of_stage[s];
  return remote;
}

std::vector<int> balanced_layers(const ModelPrice& price, const ModelTrace& trace, int stages, bool split_backward) {
  const auto time = [&](const BlockPrice& b) {
    const double apart = b.input_gradient.total() + b.weight_gradient.total();
    return b.forward.total() + (split_backward ? apart : b.backward.total());
  };
  std::vector<double> of_kind;
  int layers = 0;
  for (std::size_t kind = 0; kind < price.layers.size(); ++kind) {
    of_kind.push_back(time(price.layers[kind]));
    layers += trace.layers[kind].repeat;
  }
  std::vector<double> times = {time(price.embedding)};
  for (int i = 0; i < layers; ++i) times.push_back(of_kind[at(trace.kind_of_layer(i))]);
  times.push_back(time(price.head));
  return balance_layers(times, stages);
}

Stages::Stages(const ModelPrice& price, const ModelTrace& trace, std::vector<int> layers_of_stages, const StageMap& map)
    : layers(std::move(layers_of_stages)) {
  const std::vector<bool> remote = map.remote();
  std::vector<Parts> different;
  Parts parts;
  int next = 0;
  for (std::size_t s = 0; s < layers.size(); ++s) {
    parts.embedding = s == 0;
    parts.head = s + 1 == layers.size();
    parts.layers.clear();
    for (int i = 0; i < layers[s]; ++i) parts.layers.push_back(trace.kind_of_layer(next++));
    parts.neighbours = {remote[s], s + 1 < layers.size() && remote[s + 1]};
    const auto found = std::find(different.begin(), different.end(), parts);
    kind.push_back(static_cast<int>(found - different.begin()));
    if (found != different.end()) continue;
    prices.push_back(sum(price, parts));
    neighbours.push_back(parts.neighbours);
    different.push_back(parts);
  }
  ends = ends_of(map, kind);
}

ScheduleShape::ScheduleShape(const std::string& schedule, int ranks, int stages_of_rank)
    : name(schedule), virtual_stages(stages_of_rank) {
  // Twice the ranks are enough for the longest warm-up, and for all schedules to be defined.
  for (int micro_batches = 2 * ranks; micro_batches >= fewest_micro_batches(schedule, ranks); micro_batches /= 2) {
    const Schedule made = make_schedule({schedule, ranks, micro_batches, stages_of_rank});
    if (held_in.empty()) {
      map = StageMap(made.rank_of_stage());
      split = splits_backward(made);
    }
    auto& held = held_in.emplace_back(micro_batches, std::vector<MostHeld>()).second;
    for (const auto& row : made.rows) held.push_back(most_held(row));
  }
}

MostHeld ScheduleShape::held(int rank, int micro_batches) const {
  if (name == "gpipe" || name == "looped-bfs") return {{micro_batches * virtual_stages, 0}, {}};
  for (const auto& [fewer, most] : held_in) {
    if (fewer <= micro_batches) return most[at(rank)];
  }
  return {{1, 0}, {}};
}

}  // namespace cuboid::plan
