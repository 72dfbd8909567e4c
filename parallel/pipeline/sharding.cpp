#include "cuboid/parallel/pipeline/sharding.h"

#include <algorithm>
#include <set>

namespace cuboid {
namespace {

using Row = std::vector<Action>;

// All that computes: a weight gradient may recompute activations from the values.
bool uses_values(const Action& a) {
  return computes(a.kind);
}

bool adds_weight_gradient(const Action& a) {
  return a.kind == ActionKind::backward || a.kind == ActionKind::weight_gradient;
}

Row reduce_every_micro_batch(const Row& row) {
  Row made;
  for (std::size_t i = 0; i < row.size(); ++i) {
    made.push_back(row[i]);
    if (!adds_weight_gradient(row[i])) continue;
    const int stage = row[i].stage;
    // A neighbour that waits for the gradient gets it first.
    while (i + 1 < row.size() && row[i + 1].kind == ActionKind::send_backward) made.push_back(row[++i]);
    const bool more = std::any_of(row.begin() + static_cast<std::ptrdiff_t>(i) + 1, row.end(),
                                  [&](const Action& a) { return adds_weight_gradient(a) && a.stage == stage; });
    if (more) made.push_back({ActionKind::reduce_gradient, stage, -1});
  }
  return made;
}

// The stage that computes with its values next at or after position i, other than `except`; -1: none.
int next_stage(const Row& row, std::size_t i, int except) {
  for (; i < row.size(); ++i) {
    if (uses_values(row[i]) && row[i].stage != except) return row[i].stage;
  }
  return -1;
}

Row gather_and_free(const Row& row) {
  Row made;
  std::set<int> whole;
  const auto gather = [&](int stage) {
    if (stage >= 0 && whole.insert(stage).second) made.push_back({ActionKind::unshard, stage, -1});
  };
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (!uses_values(row[i])) {
      made.push_back(row[i]);
      continue;
    }
    gather(row[i].stage);
    gather(next_stage(row, i + 1, row[i].stage));
    made.push_back(row[i]);
    const int next = next_stage(row, i + 1, -1);
    const int following = next_stage(row, i + 1, next);
    for (auto stage = whole.begin(); stage != whole.end();) {
      if (*stage == next || *stage == following) {
        ++stage;
        continue;
      }
      made.push_back({ActionKind::reshard, *stage, -1});
      stage = whole.erase(stage);
    }
  }
  return made;
}

}  // namespace

Schedule add_sharding(const Schedule& schedule, int zero) {
  Schedule made = schedule;
  for (Row& row : made.rows) {
    if (zero >= 2) row = reduce_every_micro_batch(row);
    if (zero >= 3) row = gather_and_free(row);
  }
  return made;
}

}  // namespace cuboid
