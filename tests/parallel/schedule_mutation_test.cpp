// Mutated schedules: verify against an executor written as simply as possible, and the names it gives.
#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "cuboid/parallel/pipeline/generators.h"
#include "cuboid/parallel/pipeline/passes.h"
#include "cuboid/parallel/pipeline/verify.h"

namespace cuboid {
namespace {

// Runs rows of F, B, I, W and transfers with rendezvous sends by trying every row again and again. What exists where is
// a set of texts; it shares no code with verify but to_string.
class NaiveExecutor {
 public:
  explicit NaiveExecutor(const Schedule& schedule) : s_(schedule), cursor_(schedule.rows.size()) {
    for (const auto& row : s_.rows) {
      for (const Action& a : row) {
        ++count_[to_string(a)];
        with_transfers_ |= transfers(a.kind);
      }
    }
  }

  // True: the right actions, all of which ran.
  bool runs() {
    if (!right_actions()) return false;
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < s_.ranks(); ++rank) {
        while (cursor_[rank] < s_.rows[rank].size() && try_one(rank)) moved = true;
      }
    }
    for (int rank = 0; rank < s_.ranks(); ++rank) {
      if (cursor_[rank] < s_.rows[rank].size()) return false;
    }
    return true;
  }

 private:
  static std::string cell(int stage, const char* word, int k) {
    return std::to_string(stage) + word + std::to_string(k);
  }

  bool right_actions() {
    std::map<int, int> home;
    for (int rank = 0; rank < s_.ranks(); ++rank) {
      if (s_.rows[rank].empty()) return false;
      for (const Action& a : s_.rows[rank]) {
        if (home.emplace(a.stage, rank).first->second != rank) return false;
      }
    }
    std::map<std::string, int> expected;
    for (int stage = 0; stage < s_.stages; ++stage) {
      for (int k = 0; k < s_.micro_batches; ++k) {
        expected[cell(stage, "F", k)] = 1;
        const bool whole = count_.count(cell(stage, "B", k)) > 0;
        for (const char* word : whole ? std::vector{"B"} : std::vector{"I", "W"}) expected[cell(stage, word, k)] = 1;
        if (!with_transfers_ || stage + 1 == s_.stages || home[stage] == home[stage + 1]) continue;
        expected[cell(stage, "SEND_F", k)] = expected[cell(stage + 1, "RECV_F", k)] = 1;
        expected[cell(stage + 1, "SEND_B", k)] = expected[cell(stage, "RECV_B", k)] = 1;
      }
    }
    return expected == count_;
  }

  // Whether the result of a stage is on the rank: made there, received, or (without transfers) made anywhere.
  bool has(int rank, const std::string& result) const { return made_.count({with_transfers_ ? rank : 0, result}) > 0; }
  void make(int rank, const std::string& result) { made_.insert({with_transfers_ ? rank : 0, result}); }

  bool inputs(int rank, const Action& a) const {
    const int k = a.micro_batch;
    switch (a.kind) {
      case ActionKind::forward:
        return a.stage == 0 || has(rank, cell(a.stage - 1, "out", k));
      case ActionKind::backward:
      case ActionKind::input_gradient:
        return has(rank, cell(a.stage, "saved", k)) &&
               (a.stage + 1 == s_.stages || has(rank, cell(a.stage + 1, "gradient", k)));
      default:
        return has(rank, cell(a.stage, "gradient", k));
    }
  }

  void finish(int rank, const Action& a) {
    if (a.kind == ActionKind::forward) {
      make(rank, cell(a.stage, "out", a.micro_batch));
      make(rank, cell(a.stage, "saved", a.micro_batch));
    } else if (a.kind != ActionKind::weight_gradient) {
      make(rank, cell(a.stage, "gradient", a.micro_batch));
    }
  }

  bool try_one(int rank) {
    const Action& a = s_.rows[rank][cursor_[rank]];
    if (transfers(a.kind)) return try_transfer(rank, a);
    if (a.overlapped) {
      const Action& b = s_.rows[rank][cursor_[rank] + 1];
      if (!inputs(rank, a) || !inputs(rank, b)) return false;
      finish(rank, a);
      finish(rank, b);
      cursor_[rank] += 2;
      return true;
    }
    if (!inputs(rank, a)) return false;
    finish(rank, a);
    ++cursor_[rank];
    return true;
  }

  // Looked at from the sender only: both ends must be next.
  bool try_transfer(int rank, const Action& a) {
    const bool forward = a.kind == ActionKind::send_forward;
    if (!forward && a.kind != ActionKind::send_backward) return false;
    const std::string result = cell(a.stage, forward ? "out" : "gradient", a.micro_batch);
    const std::string partner = cell(a.stage + (forward ? 1 : -1), forward ? "RECV_F" : "RECV_B", a.micro_batch);
    if (!has(rank, result)) return false;
    for (int other = 0; other < s_.ranks(); ++other) {
      if (cursor_[other] == s_.rows[other].size() || to_string(s_.rows[other][cursor_[other]]) != partner) continue;
      make(other, result);
      ++cursor_[other];
      ++cursor_[rank];
      return true;
    }
    return false;
  }

  const Schedule& s_;
  std::vector<std::size_t> cursor_;
  std::map<std::string, int> count_;
  std::set<std::pair<int, std::string>> made_;
  bool with_transfers_ = false;
};

Schedule small_schedule() {
  ScheduleRequest request;
  request.name = *rc::gen::elementOf(schedule_names());
  request.ranks = *rc::gen::inRange(2, 5);
  request.micro_batches = *rc::gen::inRange(1, 7);
  if (request.name == "dualpipe-v") request.micro_batches += 2 * request.ranks - 1;
  const Schedule schedule = make_schedule(request);
  return *rc::gen::arbitrary<bool>() ? add_transfers(schedule) : schedule;
}

// An F that overlapped with what followed it stands alone once either has moved.
void mend_overlaps(Schedule& schedule) {
  for (auto& row : schedule.rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool pair =
          i + 1 < row.size() && row[i].kind == ActionKind::forward && makes_input_gradient(row[i + 1].kind);
      row[i].overlapped = row[i].overlapped && pair;
    }
  }
}

bool valid(const Schedule& schedule) {
  const auto findings = verify(schedule);
  return std::all_of(findings.begin(), findings.end(), [](const Finding& finding) { return finding.note; });
}

bool named(const std::vector<Finding>& findings, const Action& action) {
  return std::any_of(findings.begin(), findings.end(),
                     [&](const Finding& finding) { return finding.text.find(to_string(action)) != std::string::npos; });
}

TEST(Mutation, GoodSchedulesRunNaively) {
  EXPECT_TRUE(rc::check([] {
    const Schedule schedule = small_schedule();
    RC_ASSERT(valid(schedule));
    RC_ASSERT(NaiveExecutor(schedule).runs());
  }));
}

TEST(Mutation, DroppedActionIsNamed) {
  EXPECT_TRUE(rc::check([] {
    Schedule schedule = small_schedule();
    auto& row = schedule.rows[*rc::gen::inRange(0, schedule.ranks())];
    const auto position = *rc::gen::inRange<std::size_t>(0, row.size());
    const Action dropped = row[position];
    row.erase(row.begin() + static_cast<std::ptrdiff_t>(position));
    mend_overlaps(schedule);
    RC_ASSERT(!valid(schedule));
    RC_ASSERT(named(verify(schedule), dropped));
  }));
}

TEST(Mutation, DuplicatedActionIsNamed) {
  EXPECT_TRUE(rc::check([] {
    Schedule schedule = small_schedule();
    auto& row = schedule.rows[*rc::gen::inRange(0, schedule.ranks())];
    Action copy = row[*rc::gen::inRange<std::size_t>(0, row.size())];
    copy.overlapped = false;
    const auto position = *rc::gen::inRange<std::size_t>(0, row.size() + 1);
    row.insert(row.begin() + static_cast<std::ptrdiff_t>(position), copy);
    mend_overlaps(schedule);
    RC_ASSERT(!valid(schedule));
    RC_ASSERT(named(verify(schedule), copy));
  }));
}

TEST(Mutation, ActionMovedToAnotherRankIsNamed) {
  EXPECT_TRUE(rc::check([] {
    Schedule schedule = small_schedule();
    const int from = *rc::gen::inRange(0, schedule.ranks());
    const int to = (from + *rc::gen::inRange(1, schedule.ranks())) % schedule.ranks();
    auto& row = schedule.rows[from];
    const auto position = *rc::gen::inRange<std::size_t>(0, row.size());
    Action moved = row[position];
    moved.overlapped = false;
    row.erase(row.begin() + static_cast<std::ptrdiff_t>(position));
    auto& other = schedule.rows[to];
    other.insert(other.begin() + static_cast<std::ptrdiff_t>(*rc::gen::inRange<std::size_t>(0, other.size() + 1)),
                 moved);
    mend_overlaps(schedule);
    const auto findings = verify(schedule);
    RC_ASSERT(!valid(schedule));
    RC_ASSERT(std::any_of(findings.begin(), findings.end(), [&](const Finding& finding) {
      return finding.text.find("stage " + std::to_string(moved.stage) + " is on ") != std::string::npos ||
             finding.text.find(to_string(moved)) != std::string::npos;
    }));
  }));
}

TEST(Mutation, SwapWithItsOwnInputIsNamed) {
  EXPECT_TRUE(rc::check([] {
    Schedule schedule = small_schedule();
    auto& row = schedule.rows[*rc::gen::inRange(0, schedule.ranks())];
    // An F and the B or I of its stage and micro-batch, which every row has.
    const int k = *rc::gen::inRange(0, schedule.micro_batches);
    const auto forward = std::find_if(
        row.begin(), row.end(), [&](const Action& a) { return a.kind == ActionKind::forward && a.micro_batch == k; });
    const auto gradient = std::find_if(row.begin(), row.end(), [&](const Action& a) {
      return makes_input_gradient(a.kind) && a.micro_batch == k && a.stage == forward->stage;
    });
    const Action action = *gradient;
    std::iter_swap(forward, gradient);
    mend_overlaps(schedule);
    RC_ASSERT(!valid(schedule));
    RC_ASSERT(named(verify(schedule), action));
  }));
}

TEST(Mutation, AnySwapsAndMovesAreJudgedAsTheNaiveExecutorDoes) {
  int accepted = 0;
  int refused = 0;
  const bool agreed = rc::check([&] {
    Schedule schedule = small_schedule();
    const int mutations = *rc::gen::inRange(1, 3);
    for (int i = 0; i < mutations; ++i) {
      auto& row = schedule.rows[*rc::gen::inRange(0, schedule.ranks())];
      const auto a = *rc::gen::inRange<std::size_t>(0, row.size());
      const auto b = *rc::gen::inRange<std::size_t>(0, row.size());
      if (*rc::gen::arbitrary<bool>()) {
        std::swap(row[a], row[b]);
      } else {
        const Action moved = row[a];
        row.erase(row.begin() + static_cast<std::ptrdiff_t>(a));
        row.insert(row.begin() + static_cast<std::ptrdiff_t>(b), moved);
      }
    }
    mend_overlaps(schedule);
    const bool runs = NaiveExecutor(schedule).runs();
    ++(runs ? accepted : refused);
    RC_ASSERT(valid(schedule) == runs);
  });
  EXPECT_TRUE(agreed);
  // The comparison means something only when both verdicts occur.
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
}

TEST(Mutation, DescendingWeightGradientsAreNoted) {
  EXPECT_TRUE(rc::check([] {
    Schedule schedule = make_schedule({"gpipe", *rc::gen::inRange(1, 4), *rc::gen::inRange(2, 7)});
    const int m = schedule.micro_batches;
    const int a = *rc::gen::inRange(0, m - 1);
    const int b = *rc::gen::inRange(a + 1, m);
    for (auto& row : schedule.rows) std::swap(row[m + a], row[m + b]);
    const auto findings = verify(schedule);
    RC_ASSERT(static_cast<int>(findings.size()) == schedule.ranks());
    for (const Finding& finding : findings) RC_ASSERT(finding.note);
    RC_ASSERT(named(findings, schedule.rows[0][m + a + 1]) || named(findings, schedule.rows[0][m + b]));
  }));
}

}  // namespace
}  // namespace cuboid
