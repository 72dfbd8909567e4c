#include "cuboid/parallel/pipeline/simulate.h"

#include <algorithm>
#include <limits>

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

constexpr double kNever = std::numeric_limits<double>::infinity();

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
    if (costs_.at_once > 0 && costs_.at_once < schedule_.ranks()) {
      walk_shared();
    } else {
      pipeline::walk_rows(schedule_.ranks(), [this](int rank) { return step(rank); });
    }
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

  // An action, or overlapped pair, that a rank computes at present.
  struct Running {
    bool active = false;
    std::size_t past = 0;  // position after it
    double begin = 0;
    double left = 0;  // seconds at full speed
  };

  // All rows by time, at a speed that depends on how many ranks compute.
  void walk_shared() {
    std::vector<Running> running(cursor_.size());
    double now = 0;
    while (true) {
      double next = start_ready(running, now);
      const auto count = std::count_if(running.begin(), running.end(), [](const Running& r) { return r.active; });
      const double speed = count == 0 ? 1 : std::min(1.0, costs_.at_once / static_cast<double>(count));
      for (const Running& r : running) {
        if (r.active) next = std::min(next, now + r.left / speed);
      }
      if (next == kNever) return;
      for (std::size_t rank = 0; rank < running.size(); ++rank) {
        Running& r = running[rank];
        if (!r.active) continue;
        // What ends now ends exactly, whatever the rounding.
        if (now + r.left / speed <= next) {
          end(rank, r, next);
        } else {
          r.left -= (next - now) * speed;
        }
      }
      now = next;
    }
  }

  // Starts what can start; what takes no time ends at once. Returns when the next message arrives that a rank waits
  // for.
  double start_ready(std::vector<Running>& running, double now) {
    double next = kNever;
    for (bool moved = true; moved;) {
      moved = false;
      next = kNever;
      for (std::size_t rank = 0; rank < running.size(); ++rank) {
        Running& r = running[rank];
        const auto& row = schedule_.rows[rank];
        if (r.active || cursor_[rank] == row.size()) continue;
        r.past = std::min(row.size(), cursor_[rank] + (row[cursor_[rank]].overlapped ? 2 : 1));
        double ready = now;
        double duration = 0;
        bool known = true;
        for (std::size_t i = cursor_[rank]; i < r.past && known; ++i) {
          known = arrival(static_cast<int>(rank), row[i], ready) == kMoved;
          duration += costs_.of(row[i]);
        }
        if (!known) continue;
        if (ready > now) {
          next = std::min(next, ready);
          continue;
        }
        if (r.past - cursor_[rank] == 2) duration *= costs_.overlap;
        r = {true, r.past, now, duration};
        if (duration > 0) continue;
        end(rank, r, now);
        moved = true;
      }
    }
    return next;
  }

  void end(std::size_t rank, Running& r, double now) {
    for (std::size_t& cursor = cursor_[rank]; cursor < r.past; ++cursor)
      out_.spans[rank].push_back({schedule_.rows[rank][cursor], r.begin, now});
    out_.busy[rank] += now - r.begin;
    r.active = false;
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
