#include "cuboid/parallel/pipeline/passes.h"

#include <algorithm>
#include <deque>

#include "cuboid/core/error.h"

#include "action_index.h"

namespace cuboid {
namespace {

using pipeline::ActionIndex;
using pipeline::Place;

// The transfers of each computing action.
class Boundary {
 public:
  explicit Boundary(const Schedule& schedule) : owner_(schedule.rank_of_stage()), last_(schedule.stages - 1) {}

  // The RECV before the action, if its input comes from another rank.
  bool recv(const Action& action, Action& transfer) const {
    if (action.kind == ActionKind::forward && crosses(action.stage - 1)) {
      transfer = {ActionKind::recv_forward, action.stage, action.micro_batch};
      return true;
    }
    if (makes_input_gradient(action.kind) && crosses(action.stage)) {
      transfer = {ActionKind::recv_backward, action.stage, action.micro_batch};
      return true;
    }
    return false;
  }

  // The SEND after the action, if its result goes to another rank.
  bool send(const Action& action, Action& transfer) const {
    if (action.kind == ActionKind::forward && crosses(action.stage)) {
      transfer = {ActionKind::send_forward, action.stage, action.micro_batch};
      return true;
    }
    if (makes_input_gradient(action.kind) && crosses(action.stage - 1)) {
      transfer = {ActionKind::send_backward, action.stage, action.micro_batch};
      return true;
    }
    return false;
  }

 private:
  // Whether stages s and s+1 exist and are on different ranks.
  bool crosses(int s) const {
    return s >= 0 && s < last_ && owner_[static_cast<std::size_t>(s)] != owner_[static_cast<std::size_t>(s) + 1];
  }
  std::vector<int> owner_;
  int last_;
};

Schedule add_buffered(const Schedule& schedule) {
  const Boundary boundary(schedule);
  Schedule out = schedule;
  Action transfer;
  for (auto& row : out.rows) {
    std::vector<Action> lowered;
    for (std::size_t i = 0; i < row.size();) {
      const std::size_t end = i + (row[i].overlapped ? 2 : 1);
      for (std::size_t j = i; j < end; ++j) {
        if (boundary.recv(row[j], transfer)) lowered.push_back(transfer);
      }
      lowered.insert(lowered.end(), row.begin() + static_cast<std::ptrdiff_t>(i),
                     row.begin() + static_cast<std::ptrdiff_t>(end));
      for (std::size_t j = i; j < end; ++j) {
        if (boundary.send(row[j], transfer)) lowered.push_back(transfer);
      }
      i = end;
    }
    row = std::move(lowered);
  }
  return out;
}

// Walks all rows together and writes each transfer into both rows at the moment it happens.
class RendezvousLowering {
 public:
  explicit RendezvousLowering(const Schedule& schedule)
      : schedule_(schedule), index_(schedule), boundary_(schedule), out_(schedule), states_(schedule.rows.size()) {
    for (auto& row : out_.rows) row.clear();
    owner_ = schedule.rank_of_stage();
    received_.assign(2 * static_cast<std::size_t>(schedule.stages) * static_cast<std::size_t>(schedule.micro_batches),
                     false);
  }

  Schedule run() {
    for (int rank = 0; rank < schedule_.ranks(); ++rank) ready_.push_back(rank);
    while (true) {
      while (!ready_.empty()) {
        const int rank = ready_.front();
        ready_.pop_front();
        while (advance(rank)) {
        }
      }
      const bool done = std::all_of(states_.begin(), states_.end(), [](const State& s) { return s.sends.empty(); });
      if (done) break;
      take_early();
    }
    for (int rank = 0; rank < schedule_.ranks(); ++rank) {
      CUBOID_CHECK(state(rank).cursor == row(rank).size(), "a valid schedule lowers completely");
    }
    return std::move(out_);
  }

 private:
  struct State {
    std::size_t cursor = 0;    // next computing action
    std::deque<Action> sends;  // made, not yet taken by their receivers
  };

  State& state(int rank) { return states_[static_cast<std::size_t>(rank)]; }
  const std::vector<Action>& row(int rank) const { return schedule_.rows[static_cast<std::size_t>(rank)]; }
  std::vector<Action>& out(int rank) { return out_.rows[static_cast<std::size_t>(rank)]; }
  std::size_t slot(const Action& recv) const {
    return (static_cast<std::size_t>(recv.kind == ActionKind::recv_forward ? 0 : schedule_.stages) +
            static_cast<std::size_t>(recv.stage)) *
               static_cast<std::size_t>(schedule_.micro_batches) +
           static_cast<std::size_t>(recv.micro_batch);
  }
  int owner(const Action& action) const { return owner_[static_cast<std::size_t>(action.stage)]; }

  // One step of a row: takes a due input, or computes. False: it has to wait, or it ended.
  bool advance(int rank) {
    State& self = state(rank);
    if (!self.sends.empty() || self.cursor == row(rank).size()) return false;
    const std::size_t end = self.cursor + (row(rank)[self.cursor].overlapped ? 2 : 1);
    Action recv;
    for (std::size_t i = self.cursor; i < end; ++i) {
      if (!boundary_.recv(row(rank)[i], recv) || received_[slot(recv)]) continue;
      const Action send = ActionIndex::partner(recv);
      const auto& offered = state(owner(send)).sends;
      if (offered.empty() || offered.front() != send) return false;
      transfer(send, recv);
    }
    Action send;
    for (std::size_t i = self.cursor; i < end; ++i) {
      out(rank).push_back(row(rank)[i]);
      if (boundary_.send(row(rank)[i], send)) self.sends.push_back(send);
    }
    self.cursor = end;
    // The receiver may be waiting for exactly this.
    if (!self.sends.empty()) ready_.push_back(owner(ActionIndex::partner(self.sends.front())));
    return true;
  }

  void transfer(const Action& send, const Action& recv) {
    const int from = owner(send);
    const int to = owner(recv);
    out(from).push_back(send);
    out(to).push_back(recv);
    received_[slot(recv)] = true;
    auto& sends = state(from).sends;
    sends.pop_front();
    ready_.push_back(from);
    if (!sends.empty()) ready_.push_back(owner(ActionIndex::partner(sends.front())));
  }

  // No row can move: of the SENDs that wait, the one needed soonest by its receiver is received now.
  void take_early() {
    Action chosen;
    long nearest = -1;
    for (const State& sender : states_) {
      if (sender.sends.empty()) continue;
      const Action recv = ActionIndex::partner(sender.sends.front());
      const long distance =
          index_.at(index_.computing_end(recv)).position - static_cast<long>(state(owner(recv)).cursor);
      if (nearest < 0 || distance < nearest) {
        nearest = distance;
        chosen = sender.sends.front();
      }
    }
    const Action recv = ActionIndex::partner(chosen);
    transfer(chosen, recv);
    ready_.push_back(owner(recv));
  }

  const Schedule& schedule_;
  ActionIndex index_;
  Boundary boundary_;
  Schedule out_;
  std::vector<State> states_;
  std::vector<int> owner_;
  std::vector<bool> received_;
  std::deque<int> ready_;
};

}  // namespace

Schedule add_transfers(const Schedule& schedule, SendMode sends) {
  for (const auto& row : schedule.rows) {
    for (const Action& action : row) {
      CUBOID_CHECK(!transfers(action.kind), schedule.name + " has transfers already");
    }
  }
  require_valid(schedule);
  return sends == SendMode::buffered ? add_buffered(schedule) : RendezvousLowering(schedule).run();
}

Schedule add_reduction(const Schedule& schedule) {
  Schedule out = schedule;
  for (auto& row : out.rows) {
    std::vector<std::size_t> last(static_cast<std::size_t>(schedule.stages), row.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (makes_weight_gradient(row[i].kind)) last[static_cast<std::size_t>(row[i].stage)] = i;
    }
    std::vector<Action> lowered;
    std::vector<int> pending;  // stages that are complete, waiting for the SENDs to pass
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool send = row[i].kind == ActionKind::send_forward || row[i].kind == ActionKind::send_backward;
      if (!send) {
        for (int stage : pending) lowered.push_back({ActionKind::reduce_gradient, stage, -1});
        pending.clear();
      }
      lowered.push_back(row[i]);
      if (makes_weight_gradient(row[i].kind) && last[static_cast<std::size_t>(row[i].stage)] == i) {
        pending.push_back(row[i].stage);
      }
    }
    for (int stage : pending) lowered.push_back({ActionKind::reduce_gradient, stage, -1});
    row = std::move(lowered);
  }
  return out;
}

Schedule add_step(const Schedule& schedule) {
  Schedule out = schedule;
  for (auto& row : out.rows) row.push_back({ActionKind::step, -1, -1});
  return out;
}

}  // namespace cuboid
