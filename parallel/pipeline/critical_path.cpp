#include "cuboid/parallel/pipeline/critical_path.h"

#include "action_index.h"

namespace cuboid {
namespace {

using pipeline::ActionIndex;
using pipeline::Place;

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

std::size_t column(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return 0;
    case ActionKind::backward:
      return 1;
    case ActionKind::input_gradient:
      return 2;
    default:
      return 3;
  }
}

class Path {
 public:
  Path(const Schedule& schedule, const PipelineCosts& costs, const Simulation& simulation)
      : schedule_(schedule), costs_(costs), simulation_(simulation), index_(schedule) {}

  CriticalPath to_end_of(int rank) {
    out_.rank = rank;
    out_.actions.resize(at(schedule_.stages));
    Place place{rank, static_cast<int>(schedule_.rows[at(rank)].size()) - 1};
    while (place.position >= 0) place = before(place);
    return std::move(out_);
  }

 private:
  double end_of(const Place& place) const { return simulation_.spans[at(place.rank)][at(place.position)].end; }

  // Counts the action, or the overlapped pair, and returns the one whose end it waited for; position -1: none.
  Place before(const Place& place) {
    const auto& row = schedule_.rows[at(place.rank)];
    int first = place.position;
    int last = place.position;
    if (first > 0 && row[at(first - 1)].overlapped) {
      --first;
    } else if (row[at(first)].overlapped && at(first + 1) < row.size()) {
      ++last;
    }
    for (int i = first; i <= last; ++i) ++out_.actions[at(row[at(i)].stage)][column(row[at(i)].kind)];
    const double begin = simulation_.spans[at(place.rank)][at(first)].begin;
    const Place previous{place.rank, first - 1};
    if (first > 0 && end_of(previous) == begin) return previous;
    for (int i = first; i <= last; ++i) {
      for (const Action& needed : index_.needs(row[at(i)])) {
        const Place made = index_.at(needed);
        if (made.rank == place.rank || end_of(made) + costs_.transfer != begin) continue;
        ++out_.transfers;
        return made;
      }
    }
    return {};
  }

  const Schedule& schedule_;
  const PipelineCosts& costs_;
  const Simulation& simulation_;
  ActionIndex index_;
  CriticalPath out_;
};

}  // namespace

CriticalPath critical_path(const Schedule& schedule, const PipelineCosts& costs, const Simulation& simulation,
                           int rank) {
  return Path(schedule, costs, simulation).to_end_of(rank);
}

}  // namespace cuboid
