#include "list_scheduler.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "cuboid/core/error.h"

namespace cuboid::pipeline {
namespace {

constexpr double kRounding = 1e-12;
constexpr double kNever = std::numeric_limits<double>::infinity();

class ListScheduler {
 public:
  ListScheduler(const ListProblem& problem, const PerAction& keys, const ListPolicy& policy)
      : problem_(problem), keys_(keys), policy_(policy), m_(problem.micro_batches) {
    const auto stages = at(problem.stages());
    stages_of_rank_.resize(at(problem.ranks));
    for (int stage = 0; stage < problem.stages(); ++stage) {
      stages_of_rank_[at(problem.rank_of_stage[at(stage)])].push_back(stage);
    }
    next_.resize(stages);
    f_ready_.assign(stages * at(m_), kNever);
    i_ready_.assign(stages * at(m_), kNever);
    std::fill_n(f_ready_.begin(), m_, 0.0);
    for (auto* of : {&out_.starts.forward, &out_.starts.input_gradient, &out_.starts.weight_gradient}) {
      of->assign(stages * at(m_), 0);
    }
    const auto ranks = at(problem.ranks);
    free_at_.resize(ranks);
    live_.resize(ranks);
    oldest_.resize(ranks);
    forwarded_.assign(ranks * at(m_), 0);
    finished_.assign(ranks * at(m_), 0);
    out_.rows.resize(ranks);
  }

  ListResult run() {
    for (int rank = 0; rank < problem_.ranks; ++rank) events_.push({0, rank});
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      if (event.time >= free_at_[at(event.rank)]) decide(event.rank, event.time);
    }
    for (double end : free_at_) out_.makespan = std::max(out_.makespan, end);
    for (const Next& next : next_) CUBOID_CHECK(next.w == m_, "list scheduling runs to its end");
    return std::move(out_);
  }

 private:
  struct Event {
    double time;
    int rank;
    bool operator<(const Event& other) const {  // the earliest on top
      return time != other.time ? time > other.time : rank > other.rank;
    }
  };
  struct Next {  // micro-batches that a stage takes next
    int f = 0, i = 0, w = 0;
  };
  struct Choice {
    ActionKind kind{};
    int stage = -1;
    int k = 0;
    double ready = kNever;
    double key = kNever;
    double duration = 0;
  };

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  std::size_t slot(int stage, int k) const { return at(stage) * at(m_) + at(k); }

  // Takes the ready action of the smallest key, or arranges to look again when something arrives.
  void decide(int rank, double now) {
    Choice best;
    double wake = kNever;
    const auto offer = [&](const Choice& choice) {
      if (choice.ready > now) {
        wake = std::min(wake, choice.ready);
      } else if (choice.key < best.key || best.stage < 0) {
        best = choice;
      }
    };
    for (int stage : stages_of_rank_[at(rank)]) each_next(rank, stage, offer);
    if (best.stage < 0) {
      if (wake < kNever) events_.push({wake, rank});
      return;
    }
    if (policy_.patience > 0 && wake <= now + policy_.patience * best.duration) {
      double until = kNever;
      const auto better = [&](const Choice& choice) {
        if (choice.ready > now && choice.ready <= now + policy_.patience * best.duration && choice.key < best.key) {
          until = std::min(until, choice.ready);
        }
      };
      for (int stage : stages_of_rank_[at(rank)]) each_next(rank, stage, better);
      if (until < kNever) return events_.push({until, rank});
    }
    start(rank, best, now);
  }

  // The next F, I (or B) and W of a stage, as far as they are known to become ready.
  template <typename Use>
  void each_next(int rank, int stage, Use use) const {
    const Next& next = next_[at(stage)];
    const StageCosts& costs = problem_.costs->of(stage);
    if (next.f < m_) {
      const std::size_t i = slot(stage, next.f);
      if (f_ready_[i] < kNever && admits(rank, next.f)) {
        use(Choice{ActionKind::forward, stage, next.f, f_ready_[i], keys_.forward[i], costs.forward});
      }
    }
    if (next.i < next.f) {
      const std::size_t i = slot(stage, next.i);
      if (i_ready_[i] < kNever) {
        const bool apart = halves_apart(costs);
        use(Choice{apart ? ActionKind::input_gradient : ActionKind::backward, stage, next.i, i_ready_[i],
                   keys_.input_gradient[i], apart ? costs.input_gradient : costs.backward});
      }
    }
    if (next.w < next.i) {
      const std::size_t i = slot(stage, next.w);
      use(Choice{ActionKind::weight_gradient, stage, next.w, 0, keys_.weight_gradient[i], costs.weight_gradient});
    }
  }

  bool halves_apart(const StageCosts& costs) const {
    if (policy_.halves != Halves::apart_if_equal) return policy_.halves == Halves::apart;
    return costs.backward >= (costs.input_gradient + costs.weight_gradient) * (1 - kRounding);
  }

  // Banker's rule: after one more F of micro-batch k, the micro-batches under way can still be finished one after the
  // other, oldest first, each with the slots that are free and those of the ones before it.
  bool admits(int rank, int k) const {
    if (problem_.max_activations == 0) return true;
    int free = problem_.max_activations - live_[at(rank)] - 1;
    if (free < 0) return false;
    const int stages = static_cast<int>(stages_of_rank_[at(rank)].size());
    if (stages == 1) return true;
    for (int j = oldest_[at(rank)]; j < m_; ++j) {
      const std::size_t i = at(rank) * at(m_) + at(j);
      const int forwarded = forwarded_[i] + (j == k ? 1 : 0);
      if (forwarded == 0) break;
      if (stages - forwarded > free) return false;
      free += forwarded - finished_[i];
    }
    return true;
  }

  void start(int rank, const Choice& choice, double now) {
    const auto [kind, stage, k, ready, key, duration] = choice;
    const double end = now + duration;
    const std::size_t i = slot(stage, k);
    Next& next = next_[at(stage)];
    out_.rows[at(rank)].push_back({kind, stage, k});
    free_at_[at(rank)] = end;
    events_.push({end, rank});
    if (kind == ActionKind::forward) {
      out_.starts.forward[i] = now;
      ++next.f;
      ++live_[at(rank)];
      ++forwarded_[at(rank) * at(m_) + at(k)];
      if (stage + 1 < problem_.stages()) {
        arrive(f_ready_, stage + 1, k, rank, end);
      } else {
        i_ready_[i] = end;
      }
      return;
    }
    if (kind == ActionKind::weight_gradient) {
      out_.starts.weight_gradient[i] = now;
    } else {
      out_.starts.input_gradient[i] = now;
      ++next.i;
      if (stage > 0) arrive(i_ready_, stage - 1, k, rank, end);
      if (kind == ActionKind::input_gradient) return;
      out_.starts.weight_gradient[i] = now;
    }
    ++next.w;
    --live_[at(rank)];
    ++finished_[at(rank) * at(m_) + at(k)];
    int& oldest = oldest_[at(rank)];
    const int stages = static_cast<int>(stages_of_rank_[at(rank)].size());
    while (oldest < m_ && finished_[at(rank) * at(m_) + at(oldest)] == stages) ++oldest;
  }

  void arrive(std::vector<double>& ready, int stage, int k, int from, double end) {
    const int to = problem_.rank_of_stage[at(stage)];
    const double time = to == from ? end : end + problem_.costs->transfer;
    ready[slot(stage, k)] = time;
    events_.push({std::max(time, free_at_[at(to)]), to});
  }

  const ListProblem& problem_;
  const PerAction& keys_;
  const ListPolicy& policy_;
  int m_;
  std::vector<std::vector<int>> stages_of_rank_;
  std::vector<Next> next_;
  std::vector<double> f_ready_;  // when the input of F is there
  std::vector<double> i_ready_;  // when the input of I is there
  std::vector<double> free_at_;
  std::vector<int> live_;       // activations held, a rank
  std::vector<int> oldest_;     // a rank's first micro-batch that is not finished
  std::vector<int> forwarded_;  // stages of rank × micro-batch that have run F
  std::vector<int> finished_;   // and that have run W
  std::priority_queue<Event> events_;
  ListResult out_;
};

}  // namespace

ListResult list_schedule(const ListProblem& problem, const PerAction& keys, const ListPolicy& policy) {
  return ListScheduler(problem, keys, policy).run();
}

}  // namespace cuboid::pipeline
