#include "cuboid/parallel/pipeline/simulate.h"

#include <algorithm>

#include "cuboid/core/error.h"
#include "cuboid/parallel/pipeline/verify.h"

#include "action_index.h"
#include "walk.h"

namespace cuboid {
namespace {

using pipeline::ActionIndex;
using pipeline::kEnded;
using pipeline::kMoved;
using pipeline::Place;

class Simulator {
 public:
  Simulator(const Schedule& schedule, const PipelineCosts& costs)
      : schedule_(schedule), costs_(costs), index_(schedule), cursor_(schedule.rows.size()) {
    out_.spans.resize(schedule.rows.size());
    out_.busy.resize(schedule.rows.size());
    for (std::size_t rank = 0; rank < schedule.rows.size(); ++rank) {
      out_.spans[rank].reserve(schedule.rows[rank].size());
      for (const Action& action : schedule.rows[rank]) with_transfers_ |= transfers(action.kind);
    }
  }

  Simulation run() {
    pipeline::walk_rows(schedule_.ranks(), [this](int rank) { return step(rank); });
    for (std::size_t rank = 0; rank < cursor_.size(); ++rank) {
      if (cursor_[rank] < schedule_.rows[rank].size()) stuck();
    }
    summarize();
    return std::move(out_);
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  [[noreturn]] void stuck() const {
    VerifyOptions options;
    options.sends = SendMode::buffered;
    require_valid(schedule_, options);
    CUBOID_CHECK(false, "a valid schedule runs to its end");
  }

  // An action, or an overlapped pair, of one row.
  int step(int rank) {
    const auto& row = schedule_.rows[at(rank)];
    std::size_t& cursor = cursor_[at(rank)];
    if (cursor == row.size()) return kEnded;
    const std::size_t past = std::min(row.size(), cursor + (row[cursor].overlapped ? 2 : 1));
    auto& spans = out_.spans[at(rank)];
    double begin = spans.empty() ? 0 : spans.back().end;
    double duration = 0;
    for (std::size_t i = cursor; i < past; ++i) {
      const int outcome = arrival(rank, row[i], begin);
      if (outcome != kMoved) return outcome;
      duration += costs_.of(row[i]);
    }
    if (past - cursor == 2) duration *= costs_.overlap;
    for (; cursor < past; ++cursor) spans.push_back({row[cursor], begin, begin + duration});
    out_.busy[at(rank)] += duration;
    return kMoved;
  }

  // Moves begin to the time when all that the action needs is there; or returns the rank that has not made it yet.
  int arrival(int rank, const Action& action, double& begin) const {
    if (!computes(action.kind)) return kMoved;
    for (Action needed : index_.needs(action)) {
      const bool remote = index_.at(needed).rank != rank;
      if (remote && with_transfers_) {  // it leaves with its SEND
        needed = {needed.kind == ActionKind::forward ? ActionKind::send_forward : ActionKind::send_backward,
                  needed.stage, needed.micro_batch};
      }
      const Place place = index_.at(needed);
      if (!place.exists()) stuck();
      if (at(place.position) >= cursor_[at(place.rank)]) return place.rank;
      const double made = out_.spans[at(place.rank)][at(place.position)].end;
      begin = std::max(begin, remote ? made + costs_.transfer : made);
    }
    return kMoved;
  }

  void summarize() {
    for (const auto& spans : out_.spans) {
      if (!spans.empty()) out_.makespan = std::max(out_.makespan, spans.back().end);
    }
    double idle = 0;
    double longest = 0;
    for (std::size_t rank = 0; rank < out_.spans.size(); ++rank) {
      out_.idle.push_back(out_.makespan - out_.busy[rank]);
      idle += out_.idle.back();
      const double span = own_span(out_.spans[rank]);
      longest = std::max(longest, span);
      out_.idle_in_span.push_back(span - out_.busy[rank]);
      out_.peak_activations.push_back(peak(schedule_.rows[rank]));
    }
    out_.barrier = out_.makespan - longest;
    if (out_.makespan > 0) out_.bubble_fraction = idle / (static_cast<double>(out_.spans.size()) * out_.makespan);
  }

  static double own_span(const std::vector<Span>& spans) {
    const auto computing = [](const Span& span) { return computes(span.action.kind); };
    const auto first = std::find_if(spans.begin(), spans.end(), computing);
    const auto last = std::find_if(spans.rbegin(), spans.rend(), computing);
    return first == spans.end() ? 0 : last->end - first->begin;
  }

  double peak(const std::vector<Action>& row) const {
    double held = 0;
    double most = 0;
    for (const Action& action : row) {
      if (action.kind == ActionKind::forward) most = std::max(most, held += 1);
      if (action.kind == ActionKind::backward) held -= 1;
      if (action.kind == ActionKind::input_gradient) held -= costs_.freed_by_input_gradient;
      if (action.kind == ActionKind::weight_gradient) held -= 1 - costs_.freed_by_input_gradient;
    }
    return most;
  }

  const Schedule& schedule_;
  const PipelineCosts& costs_;
  ActionIndex index_;
  std::vector<std::size_t> cursor_;
  bool with_transfers_ = false;
  Simulation out_;
};

}  // namespace

double PipelineCosts::of(const Action& action) const {
  switch (action.kind) {
    case ActionKind::forward:
      return of(action.stage).forward;
    case ActionKind::backward:
      return of(action.stage).backward;
    case ActionKind::input_gradient:
      return of(action.stage).input_gradient;
    case ActionKind::weight_gradient:
      return of(action.stage).weight_gradient;
    default:
      return 0;
  }
}

Simulation simulate(const Schedule& schedule, const PipelineCosts& costs) {
  CUBOID_CHECK(costs.stages.size() == 1 || static_cast<int>(costs.stages.size()) == schedule.stages,
               "costs of one stage, or of every stage");
  return Simulator(schedule, costs).run();
}

}  // namespace cuboid
