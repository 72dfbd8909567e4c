#include "deadlock.h"

#include <algorithm>

#include "cuboid/core/error.h"

#include "walk.h"

namespace cuboid::pipeline {
namespace {

class Walk {
 public:
  Walk(const Schedule& schedule, const ActionIndex& index, SendMode sends, bool with_transfers)
      : schedule_(schedule), index_(index), sends_(sends), with_transfers_(with_transfers) {
    cursor_.resize(static_cast<std::size_t>(schedule.ranks()));
  }

  void run() {
    walk_rows(schedule_.ranks(), [this](int rank) {
      if (ended(rank)) return static_cast<int>(kEnded);
      const Blocked block = blocked(rank);
      if (block.needed_rank >= 0) return block.needed_rank;
      int& cursor = cursor_[at(rank)];
      cursor += row(rank)[at(cursor)].overlapped ? 2 : 1;
      return static_cast<int>(kMoved);
    });
  }

  bool ended(int rank) const { return cursor_[at(rank)] == static_cast<int>(row(rank).size()); }

  // What the row waits for; nothing is needed (rank -1) when it can move.
  Blocked blocked(int rank) const {
    const int position = cursor_[at(rank)];
    const Action& action = row(rank)[at(position)];
    if (transfers(action.kind)) return blocked_transfer(rank, action);
    Blocked block = blocked_compute(rank, action);
    if (block.needed_rank < 0 && action.overlapped) block = blocked_compute(rank, row(rank)[at(position + 1)]);
    return block;
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  const std::vector<Action>& row(int rank) const { return schedule_.rows[at(rank)]; }

  Blocked blocked_compute(int rank, const Action& action) const {
    if (!computes(action.kind)) return {};
    for (const Action& needed : index_.needs(action)) {
      const Place place = index_.at(needed);
      if (with_transfers_ && place.rank != rank) continue;  // brought by a RECV earlier in this row
      if (place.position >= cursor_[at(place.rank)]) return {rank, action, needed, place.rank};
    }
    return {};
  }

  Blocked blocked_transfer(int rank, const Action& action) const {
    const bool sending = action.kind == ActionKind::send_forward || action.kind == ActionKind::send_backward;
    if (sending && sends_ == SendMode::buffered) return {};
    const Action partner = ActionIndex::partner(action);
    const Place place = index_.at(partner);
    // A rendezvous is complete for the second end that arrives (>=) and for the first end when it is woken (>).
    const bool met = sends_ == SendMode::rendezvous ? place.position <= cursor_[at(place.rank)]
                                                    : place.position < cursor_[at(place.rank)];
    return met ? Blocked{} : Blocked{rank, action, partner, place.rank};
  }

  const Schedule& schedule_;
  const ActionIndex& index_;
  SendMode sends_;
  bool with_transfers_;
  std::vector<int> cursor_;  // next position of each row
};

}  // namespace

std::vector<Blocked> find_deadlock(const Schedule& schedule, const ActionIndex& index, SendMode sends) {
  const bool with_transfers = std::any_of(schedule.rows.begin(), schedule.rows.end(), [](const auto& row) {
    return std::any_of(row.begin(), row.end(), [](const Action& action) { return transfers(action.kind); });
  });
  Walk walk(schedule, index, sends, with_transfers);
  walk.run();
  int rank = 0;
  while (rank < schedule.ranks() && walk.ended(rank)) ++rank;
  if (rank == schedule.ranks()) return {};

  // Every blocked row waits for one other blocked row: following them must come back to a row already seen.
  std::vector<Blocked> path;
  while (true) {
    const auto seen = std::find_if(path.begin(), path.end(), [&](const Blocked& b) { return b.rank == rank; });
    if (seen != path.end()) {
      path.erase(path.begin(), seen);
      break;
    }
    CUBOID_CHECK(!walk.ended(rank), "a row that ended is waited for");
    path.push_back(walk.blocked(rank));
    rank = path.back().needed_rank;
  }
  const auto lowest =
      std::min_element(path.begin(), path.end(), [](const Blocked& a, const Blocked& b) { return a.rank < b.rank; });
  std::rotate(path.begin(), lowest, path.end());
  return path;
}

}  // namespace cuboid::pipeline
