#include "cuboid/parallel/pipeline/verify.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "cuboid/core/error.h"

#include "action_index.h"
#include "deadlock.h"

namespace cuboid {
namespace {

using pipeline::ActionIndex;
using pipeline::Place;

// More faults than this say nothing new.
constexpr std::size_t kMaxFindings = 100;

constexpr std::int64_t kMaxSparse = 4096;

constexpr const char* kDialect =
    "B is the whole backward and already contains W; in files of 2024 B meant the input gradient only (now I) and BW "
    "both";

bool is_send(ActionKind kind) {
  return kind == ActionKind::send_forward || kind == ActionKind::send_backward;
}

class Verifier {
 public:
  Verifier(const Schedule& schedule, const VerifyOptions& options)
      : schedule_(schedule), options_(options), index_(schedule), owner_(schedule.rank_of_stage()) {
    for (const auto& row : schedule.rows) {
      with_transfers_ |= std::any_of(row.begin(), row.end(), [](const Action& a) { return transfers(a.kind); });
    }
  }

  std::vector<Finding> run() {
    for (int rank = 0; rank < schedule_.ranks(); ++rank) check_places(rank);
    check_owners();
    if (findings_.empty()) check_complete();
    if (findings_.empty() && with_transfers_) check_transfers_complete();
    if (findings_.empty()) {
      for (int rank = 0; rank < schedule_.ranks(); ++rank) {
        check_order(rank);
        check_row_operations(rank);
      }
    }
    if (findings_.empty()) check_deadlock();
    if (findings_.empty() && options_.max_activations) check_activations(*options_.max_activations);
    note_weight_gradient_order();
    if (left_out_ > 0) findings_.push_back({false, -1, fmt::format("and {} more", left_out_)});
    return std::move(findings_);
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  const std::vector<Action>& row(int rank) const { return schedule_.rows[at(rank)]; }

  void add(int rank, const std::string& text, bool note = false) {
    if (findings_.size() >= kMaxFindings) {
      ++left_out_;
    } else {
      findings_.push_back({note, rank, rank < 0 ? text : fmt::format("rank {}: {}", rank, text)});
    }
  }

  // Each action is one of the schedule's, on its stage's rank, and stands once.
  void check_places(int rank) {
    std::set<int> reduced;
    for (int position = 0; position < static_cast<int>(row(rank).size()); ++position) {
      const Action& action = row(rank)[at(position)];
      if (action.overlapped) check_overlap(rank, position);
      if (action.kind == ActionKind::step || !check_home(rank, action)) continue;
      if (action.kind == ActionKind::reduce_gradient && !reduced.insert(action.stage).second) {
        add(rank, to_string(action) + " stands twice");
      }
      if (!computes(action.kind) && !transfers(action.kind)) continue;
      if (!index_.contains(action)) {
        add(rank, fmt::format("{}: there is no micro-batch {}, the micro-batches are 0 to {}", to_string(action),
                              action.micro_batch, schedule_.micro_batches - 1));
        continue;
      }
      const Place first = index_.at(action);
      if (first.rank == rank && first.position != position) {
        add(rank, fmt::format("{} stands twice, as actions {} and {} of the row", to_string(action), first.position,
                              position));
      }
    }
  }

  // The stage exists and, for what does not compute, is on this rank (check_owners looks at what computes).
  bool check_home(int rank, const Action& action) {
    if (action.stage < 0 || action.stage >= schedule_.stages) {
      add(rank, fmt::format("{}: there is no stage {}, the stages are 0 to {}", to_string(action), action.stage,
                            schedule_.stages - 1));
      return false;
    }
    const int home = owner_[at(action.stage)];
    if (!computes(action.kind) && home >= 0 && home != rank) {
      add(rank, fmt::format("{}: stage {} is on rank {}", to_string(action), action.stage, home));
    }
    return true;
  }

  void check_overlap(int rank, int position) {
    const Action& action = row(rank)[at(position)];
    const bool last = position + 1 == static_cast<int>(row(rank).size());
    if (last || action.kind != ActionKind::forward || !makes_input_gradient(row(rank)[at(position + 1)].kind)) {
      add(rank, to_string(action) + ": only an F overlaps, with the B or I that follows it");
    }
  }

  void check_owners() {
    std::vector<std::vector<int>> homes(at(schedule_.stages));
    for (int rank = 0; rank < schedule_.ranks(); ++rank) {
      bool any = false;
      for (const Action& action : row(rank)) {
        if (!computes(action.kind)) continue;
        any = true;
        if (action.stage < 0 || action.stage >= schedule_.stages) continue;
        std::vector<int>& home = homes[at(action.stage)];
        if (home.empty() || home.back() != rank) home.push_back(rank);
      }
      if (!any) add(rank, "computes nothing");
    }
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      const auto& ranks = homes[at(stage)];
      if (ranks.empty()) add(-1, fmt::format("stage {} is on no rank", stage));
      if (ranks.size() > 1) {
        add(-1, fmt::format("stage {} is on ranks {}: a stage is on one rank", stage, fmt::join(ranks, " and ")));
      }
    }
  }

  // One F and one B, or one F, one I and one W.
  void check_complete() {
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      for (int k = 0; k < schedule_.micro_batches; ++k) check_micro_batch(stage, k);
    }
  }

  void check_micro_batch(int stage, int k) {
    const int rank = owner_[at(stage)];
    const auto has = [&](ActionKind kind) { return index_.at(kind, stage, k).exists(); };
    const bool b = has(ActionKind::backward);
    const bool i = has(ActionKind::input_gradient);
    const bool w = has(ActionKind::weight_gradient);
    if (!has(ActionKind::forward)) add(rank, fmt::format("{}F{} is missing", stage, k));
    if (b && w) {
      add(rank, fmt::format("{0}W{1} stands beside the full backward {0}B{1}: {2}", stage, k, kDialect));
    }
    if (b && i) add(rank, fmt::format("{0}I{1} stands beside the full backward {0}B{1}", stage, k));
    if (b) return;
    if (!i && !w) {
      add(rank, fmt::format("{0}B{1} is missing (nor is there {0}I{1} with {0}W{1})", stage, k));
    } else if (!i) {
      add(rank, fmt::format("{0}W{1} stands without {0}I{1}, which is missing", stage, k));
    } else if (!w) {
      add(rank, fmt::format("{0}I{1} stands without {0}W{1}, which is missing", stage, k));
    }
  }

  // One SEND and one RECV for each hand-over between two ranks, none inside a rank.
  void check_transfers_complete() {
    for (int stage = 0; stage + 1 < schedule_.stages; ++stage) {
      const bool needed = owner_[at(stage)] != owner_[at(stage + 1)];
      for (int k = 0; k < schedule_.micro_batches; ++k) {
        for (const Action& transfer :
             {Action{ActionKind::send_forward, stage, k}, Action{ActionKind::recv_forward, stage + 1, k},
              Action{ActionKind::send_backward, stage + 1, k}, Action{ActionKind::recv_backward, stage, k}}) {
          const bool there = index_.at(transfer).exists();
          const int rank = owner_[at(transfer.stage)];
          if (needed && !there) add(rank, to_string(transfer) + " is missing");
          if (!needed && there) {
            add(rank, fmt::format("{}: stages {} and {} are on one rank, nothing is transferred", to_string(transfer),
                                  stage, stage + 1));
          }
        }
      }
    }
    for (int k = 0; k < schedule_.micro_batches; ++k) {  // the two ends of the pipeline have no neighbour
      for (const Action& transfer : {Action{ActionKind::recv_forward, 0, k}, Action{ActionKind::send_backward, 0, k},
                                     Action{ActionKind::send_forward, schedule_.stages - 1, k},
                                     Action{ActionKind::recv_backward, schedule_.stages - 1, k}}) {
        if (index_.at(transfer).exists()) {
          add(owner_[at(transfer.stage)], to_string(transfer) + ": the stage has no neighbour on that side");
        }
      }
    }
  }

  // Every action after what it needs from its own row. An overlapped B starts with the F before it.
  void check_order(int rank) {
    for (int position = 0; position < static_cast<int>(row(rank).size()); ++position) {
      const Action& action = row(rank)[at(position)];
      const bool pair = position > 0 && row(rank)[at(position - 1)].overlapped;
      const int start = pair ? position - 1 : position;
      if (computes(action.kind)) {
        for (const Action& needed : index_.needs(action)) require_before(rank, start, action, needed);
      } else if (is_send(action.kind)) {
        require_before(rank, start, action, index_.computing_end(action));
      }
    }
  }

  void require_before(int rank, int start, const Action& action, const Action& needed) {
    Action input = needed;
    if (index_.at(needed).rank != rank) {
      if (!with_transfers_) return;  // from another rank: the walk checks it
      input = {needed.kind == ActionKind::forward ? ActionKind::recv_forward : ActionKind::recv_backward, action.stage,
               action.micro_batch};
    }
    const int position = index_.at(input).position;
    if (position < start) return;
    add(rank, fmt::format("{} stands before its input {} (actions {} and {} of the row)", to_string(action),
                          to_string(input), index_.at(action).position, position));
  }

  // REDUCE_GRAD, STEP, UNSHARD and RESHARD.
  void check_row_operations(int rank) {
    const auto& actions = row(rank);
    // By stage: whether the schedule gathers and frees its parameters; whether they are there; whether it is reduced.
    std::vector<bool> sharded(at(schedule_.stages));
    std::vector<bool> gathered(sharded);
    std::vector<bool> reduced(sharded);
    for (const Action& action : actions) {
      if (shards(action.kind)) sharded[at(action.stage)] = true;
    }
    bool stepped = false;
    for (const Action& action : actions) {
      if (stepped) add(rank, to_string(action) + " stands after STEP");
      if (action.kind == ActionKind::step) {
        stepped = true;
        continue;
      }
      const std::size_t stage = at(action.stage);
      if (action.kind == ActionKind::reduce_gradient) reduced[stage] = true;
      if (makes_weight_gradient(action.kind) && reduced[stage]) {
        add(rank, fmt::format("{} stands after {}REDUCE_GRAD", to_string(action), action.stage));
      }
      if (shards(action.kind)) {
        const bool gathers = action.kind == ActionKind::unshard;
        if (gathered[stage] == gathers) {
          add(rank, to_string(action) + (gathers ? ": the stage is gathered already" : ": the stage is not gathered"));
        }
        gathered[stage] = gathers;
      }
      if (computes(action.kind) && sharded[stage] && !gathered[stage]) {
        add(rank, fmt::format("{} stands where stage {} is not gathered (UNSHARD)", to_string(action), action.stage));
      }
    }
  }

  static bool shards(ActionKind kind) { return kind == ActionKind::unshard || kind == ActionKind::reshard; }

  void check_deadlock() {
    const auto cycle = pipeline::find_deadlock(schedule_, index_, options_.sends);
    if (cycle.empty()) return;
    std::string waits;
    std::string why;
    for (const auto& block : cycle) {
      waits += fmt::format("{}rank {} {}at {}", waits.empty() ? "" : ", ", block.rank, waits.empty() ? "waits " : "",
                           to_string(block.action));
      why += fmt::format("{}{} needs {} of rank {}", why.empty() ? "" : "; ", to_string(block.action),
                         to_string(block.needed), block.needed_rank);
    }
    findings_.push_back({false, cycle.front().rank, fmt::format("deadlock: {} ({})", waits, why)});
  }

  void check_activations(int most) {
    const auto peaks = peak_activations(schedule_);
    for (int rank = 0; rank < schedule_.ranks(); ++rank) {
      if (peaks[at(rank)] > most) {
        add(rank, fmt::format("holds activations of {} micro-batches, {} are allowed", peaks[at(rank)], most));
      }
    }
  }

  void note_weight_gradient_order() {
    for (int rank = 0; rank < schedule_.ranks(); ++rank) {
      std::vector<int> last(at(schedule_.stages), -1);
      std::set<int> told;
      for (const Action& action : row(rank)) {
        if (!makes_weight_gradient(action.kind) || !index_.contains(action)) continue;
        int& before = last[at(action.stage)];
        if (action.micro_batch < before && told.insert(action.stage).second) {
          add(rank,
              fmt::format("{} stands after micro-batch {}: weight gradients are not added in ascending order, so that "
                          "the last bits may differ from other schedules",
                          to_string(action), before),
              true);
        }
        before = std::max(before, action.micro_batch);
      }
    }
  }

  const Schedule& schedule_;
  const VerifyOptions& options_;
  ActionIndex index_;
  std::vector<int> owner_;
  bool with_transfers_ = false;
  std::vector<Finding> findings_;
  std::size_t left_out_ = 0;
};

}  // namespace

std::vector<Finding> verify(const Schedule& schedule, const VerifyOptions& options) {
  if (schedule.rows.empty() || schedule.stages < 1 || schedule.micro_batches < 1) {
    return {{false, -1,
             fmt::format("{} ranks, {} stages, {} micro-batches: a schedule has at least one of each", schedule.ranks(),
                         schedule.stages, schedule.micro_batches)}};
  }
  // Every stage and micro-batch needs its F. Far fewer actions than that: say so before tables of that size are made.
  std::int64_t actions = 0;
  for (const auto& row : schedule.rows) actions += static_cast<std::int64_t>(row.size());
  const std::int64_t pairs = std::int64_t{schedule.stages} * schedule.micro_batches;
  if (pairs > kMaxSparse + 2 * actions) {
    return {{false, -1,
             fmt::format("{} actions are too few for {} stages × {} micro-batches: most are missing", actions,
                         schedule.stages, schedule.micro_batches)}};
  }
  return Verifier(schedule, options).run();
}

void require_valid(const Schedule& schedule, const VerifyOptions& options) {
  Problems problems;
  for (const Finding& finding : verify(schedule, options)) {
    problems.add_if(!finding.note, fmt::format("--schedule {}: {}", schedule.name, finding.text));
  }
  problems.throw_if_any();
}

std::vector<int> peak_activations(const Schedule& schedule) {
  std::vector<int> peaks;
  for (const auto& row : schedule.rows) {
    int held = 0;
    int peak = 0;
    for (const Action& action : row) {
      if (action.kind == ActionKind::forward) peak = std::max(peak, ++held);
      if (makes_weight_gradient(action.kind)) --held;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace cuboid
