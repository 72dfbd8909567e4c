#include "cuboid/parallel/pipeline/auto_schedule.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/core/random.h"
#include "cuboid/parallel/pipeline/generators.h"
#include "cuboid/parallel/pipeline/verify.h"

#include "list_scheduler.h"
#include "rows.h"

namespace cuboid {
namespace {

using pipeline::Halves;
using pipeline::list_schedule;
using pipeline::ListPolicy;
using pipeline::ListProblem;
using pipeline::ListResult;
using pipeline::PerAction;

// How many of the best starting points are improved in turn.
constexpr std::size_t kParents = 4;
// A found schedule that is better than a named one by rounding only is not better.
constexpr double kRounding = 1e-12;

// Rounds of improvement for a pipeline of this size: a round takes time in proportion to it.
int rounds_for(double stages, double micro_batches) {
  constexpr double kRounds = 400;
  constexpr double kActions = 2048;
  return static_cast<int>(kRounds * std::min(1.0, kActions / (stages * micro_batches)));
}

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

// Times of one micro-batch on one rank, all stages of it together.
struct RankTimes {
  int first_stage = -1;
  double work = 0;       // F, I and W
  double gradients = 0;  // F and I
  double held = 0;       // from each F to its W
};

// Shortest times of a micro-batch's way through the pipeline.
struct Ways {
  std::vector<double> f, i, whole;  // of each stage: F; I; I and W
  std::vector<double> before;       // from the start of the step to F of the stage
  std::vector<double> beyond;       // from the end of F of the stage, through the stages behind, to its I
  std::vector<double> back;         // from the end of I of the stage to the end of the step

  Ways(const PipelineCosts& costs, const std::vector<int>& rank_of_stage) {
    const std::size_t stages = rank_of_stage.size();
    const double scale = std::min(1.0, costs.overlap);
    std::vector<double> hop(stages + 1);  // from stage s-1 to s, and back
    for (std::size_t s = 0; s < stages; ++s) {
      const StageCosts& c = costs.of(static_cast<int>(s));
      f.push_back(scale * c.forward);
      i.push_back(scale * std::min(c.input_gradient, c.backward));
      whole.push_back(scale * std::min(c.input_gradient + c.weight_gradient, c.backward));
      if (s > 0 && rank_of_stage[s] != rank_of_stage[s - 1]) hop[s] = costs.transfer;
    }
    before.resize(stages);
    beyond.resize(stages);
    back.resize(stages);
    back[0] = whole[0] - i[0];
    for (std::size_t s = 1; s < stages; ++s) {
      before[s] = before[s - 1] + f[s - 1] + hop[s];
      back[s] = hop[s] + i[s - 1] + back[s - 1];
    }
    for (std::size_t s = stages - 1; s-- > 0;) beyond[s] = 2 * hop[s + 1] + f[s + 1] + i[s + 1] + beyond[s + 1];
  }

  RankTimes of_rank(const std::vector<int>& rank_of_stage, int rank) const {
    RankTimes times;
    for (std::size_t s = rank_of_stage.size(); s-- > 0;) {
      if (rank_of_stage[s] != rank) continue;
      times.first_stage = static_cast<int>(s);
      times.work += f[s] + whole[s];
      times.gradients += f[s] + i[s];
      times.held += f[s] + beyond[s] + whole[s];
    }
    return times;
  }
};

PerAction start_times(const Schedule& schedule, const Simulation& run, const PipelineCosts& costs) {
  const std::size_t size = at(schedule.stages) * at(schedule.micro_batches);
  PerAction starts{std::vector<double>(size), std::vector<double>(size), std::vector<double>(size)};
  for (const auto& spans : run.spans) {
    for (const Span& span : spans) {
      const std::size_t i = at(span.action.stage) * at(schedule.micro_batches) + at(span.action.micro_batch);
      switch (span.action.kind) {
        case ActionKind::forward:
          starts.forward[i] = span.begin;
          break;
        case ActionKind::backward:
          starts.input_gradient[i] = span.begin;
          starts.weight_gradient[i] = span.begin + costs.of(span.action.stage).input_gradient;
          break;
        case ActionKind::input_gradient:
          starts.input_gradient[i] = span.begin;
          break;
        case ActionKind::weight_gradient:
          starts.weight_gradient[i] = span.begin;
          break;
        default:
          break;
      }
    }
  }
  return starts;
}

// Start times as late as they may be when the step is in its steady state: micro-batch k ends at k times what the
// slowest rank needs for one, be it for its work or for want of room.
PerAction latest_starts(const ListProblem& problem) {
  const int m = problem.micro_batches;
  const int stages = problem.stages();
  const PipelineCosts& costs = *problem.costs;
  const Ways ways(costs, problem.rank_of_stage);
  double period = 0;
  for (int rank = 0; rank < problem.ranks; ++rank) {
    const RankTimes times = ways.of_rank(problem.rank_of_stage, rank);
    period = std::max(period, times.work);
    if (problem.max_activations > 0) period = std::max(period, times.held / problem.max_activations);
  }
  const std::size_t size = at(stages) * at(m);
  PerAction starts{std::vector<double>(size), std::vector<double>(size), std::vector<double>(size)};
  for (int k = 0; k < m; ++k) {
    double time = k * period;
    for (int stage = 0; stage < stages; ++stage) {
      starts.weight_gradient[at(stage) * at(m) + at(k)] = time;
      time -= costs.of(stage).input_gradient;
      starts.input_gradient[at(stage) * at(m) + at(k)] = time;
      time -= costs.transfer;
    }
    for (int stage = stages - 1; stage >= 0; --stage) {
      time -= costs.of(stage).forward;
      starts.forward[at(stage) * at(m) + at(k)] = time;
      time -= costs.transfer;
    }
  }
  return starts;
}

struct Candidate {
  ListProblem problem;
  ListPolicy policy;
  ListResult result;
  std::string origin;
};

class Search {
 public:
  explicit Search(const AutoRequest& request) : request_(request), stages_(request.ranks * request.virtual_stages) {
    for (int stage = 0; stage < stages_; ++stage) {
      const StageCosts& c = request.costs.of(stage);
      whole_is_cheaper_ |= c.backward < (c.input_gradient + c.weight_gradient) * (1 - kRounding);
    }
  }

  AutoSchedule run() {
    best_.makespan = std::numeric_limits<double>::infinity();
    best_.best_named_makespan = best_.makespan;
    best_.lower_bound = best_.makespan;
    for (const std::string& name : schedule_names()) start_from(name);
    for (const Schedule& placement : placements_) {
      best_.lower_bound = std::min(best_.lower_bound, makespan_lower_bound(request_, placement.rank_of_stage()));
      const ListProblem problem = problem_of(placement);
      explore(problem, latest_starts(problem), "latest starts");
    }
    improve();
    for (const Candidate& candidate : candidates_)
      consider(schedule_of(candidate.result.rows), candidate.origin, kRounding);
    merge_backwards();
    if (best_.best_named.empty()) best_.best_named_makespan = 0;
    best_.schedule.name = "auto";
    const auto findings = verify(best_.schedule);
    CUBOID_CHECK(findings.empty(), "the schedule found is not valid: " + (findings.empty() ? "" : findings[0].text));
    return std::move(best_);
  }

 private:
  ListProblem problem_of(const Schedule& schedule) const {
    return {request_.ranks, request_.micro_batches, schedule.rank_of_stage(), &request_.costs,
            request_.max_activations.value_or(0)};
  }

  Schedule schedule_of(const std::vector<std::vector<Action>>& rows) const {
    return {"auto", stages_, request_.micro_batches, rows};
  }

  bool fits(const Schedule& schedule) const {
    if (!request_.max_activations) return true;
    const auto peaks = peak_activations(schedule);
    return *std::max_element(peaks.begin(), peaks.end()) <= *request_.max_activations;
  }

  // A named schedule as it is, and as priorities.
  void start_from(const std::string& name) {
    Schedule schedule;
    try {
      schedule = make_schedule({name, request_.ranks, request_.micro_batches, request_.virtual_stages});
    } catch (const Error&) {
      return;  // not defined for these sizes
    }
    const Simulation run = simulate(schedule, request_.costs);
    if (fits(schedule)) {
      if (run.makespan < best_.best_named_makespan) {
        best_.best_named = name;
        best_.best_named_makespan = run.makespan;
      }
      consider(schedule, name, 0);
    }
    const auto same = [&](const Schedule& other) { return other.rank_of_stage() == schedule.rank_of_stage(); };
    if (std::none_of(placements_.begin(), placements_.end(), same)) placements_.push_back(schedule);
    explore(problem_of(schedule), start_times(schedule, run, request_.costs), name);
  }

  void consider(const Schedule& schedule, const std::string& origin, double margin) {
    const double makespan = simulate(schedule, request_.costs).makespan;
    if (makespan >= best_.makespan * (1 - margin)) return;
    best_.makespan = makespan;
    best_.schedule = schedule;
    best_.origin = origin;
  }

  // List schedules with these priorities under every policy.
  void explore(const ListProblem& problem, const PerAction& keys, const std::string& origin) {
    PerAction fill = keys;  // W only where nothing else is ready
    const double late = *std::max_element(keys.weight_gradient.begin(), keys.weight_gradient.end());
    const double early = *std::min_element(keys.forward.begin(), keys.forward.end());
    for (double& key : fill.weight_gradient) key += 1 + late - early;
    for (double patience : {0.0, 0.5, 1.0}) {
      add(problem, keys, {Halves::whole, patience}, origin);
      for (const Halves halves : {Halves::apart, Halves::apart_if_equal}) {
        if (halves == Halves::apart_if_equal && !whole_is_cheaper_) continue;  // the same
        add(problem, keys, {halves, patience}, origin);
        add(problem, fill, {halves, patience}, origin);
      }
    }
  }

  void add(const ListProblem& problem, const PerAction& keys, const ListPolicy& policy, const std::string& origin) {
    candidates_.push_back({problem, policy, list_schedule(problem, keys, policy), origin});
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const Candidate& a, const Candidate& b) { return a.result.makespan < b.result.makespan; });
    if (candidates_.size() > kParents) candidates_.pop_back();
  }

  // Schedules the best candidates again from their own start times, some of them moved at random.
  void improve() {
    double mean = 0;
    for (int stage = 0; stage < stages_; ++stage) {
      const StageCosts& c = request_.costs.of(stage);
      mean += (c.forward + c.input_gradient + c.weight_gradient) / (3.0 * stages_);
    }
    const int rounds = request_.rounds > 0 ? request_.rounds : rounds_for(stages_, request_.micro_batches);
    for (int round = 0; round < rounds; ++round) {
      Candidate& parent = candidates_[at(round) % candidates_.size()];
      if (parent.result.makespan <= best_.lower_bound * (1 + kRounding)) return;
      // A few actions far, or many near.
      constexpr double kShare[] = {0.02, 0.1, 0.5};
      constexpr double kReach[] = {16, 4, 1};
      const auto kind = at(round) / candidates_.size() % 3;
      PerAction keys = parent.result.starts;
      disturb(keys, round, kShare[kind], kReach[kind] * mean);
      ListResult next = list_schedule(parent.problem, keys, parent.policy);
      if (next.makespan <= parent.result.makespan) parent.result = std::move(next);
    }
  }

  static void disturb(PerAction& keys, int round, double share, double reach) {
    std::uint32_t array = 0;
    for (auto* of : {&keys.forward, &keys.input_gradient, &keys.weight_gradient}) {
      for (std::size_t i = 0; i < of->size(); ++i) {
        const Philox4 random =
            philox(0x6175746fULL, static_cast<std::uint32_t>(i), array, static_cast<std::uint32_t>(round), 0);
        if (random.x[0] * 0x1p-32 < share) (*of)[i] += reach * (random.x[1] * 0x1p-31 - 1);
      }
      ++array;
    }
  }

  // An I with its W right behind it is a B where that takes no longer. On stage 0 nobody waits for the I; elsewhere the
  // gradient leaves later, which must not lengthen the step.
  void merge_backwards() {
    for (int first_stages : {1, stages_}) {
      Schedule merged = best_.schedule;
      for (auto& row : merged.rows) {
        std::vector<Action> shorter;
        for (const Action& action : row) {
          const bool pair = action.kind == ActionKind::weight_gradient && action.stage < first_stages &&
                            !shorter.empty() && shorter.back().kind == ActionKind::input_gradient &&
                            shorter.back().stage == action.stage && shorter.back().micro_batch == action.micro_batch &&
                            cheap_backward(action.stage);
          if (pair) {
            shorter.back().kind = ActionKind::backward;
          } else {
            shorter.push_back(action);
          }
        }
        row = std::move(shorter);
      }
      const double makespan = simulate(merged, request_.costs).makespan;
      if (makespan > best_.makespan) continue;
      best_.makespan = makespan;
      best_.schedule = std::move(merged);
    }
  }

  bool cheap_backward(int stage) const {
    const StageCosts& c = request_.costs.of(stage);
    return c.backward <= (c.input_gradient + c.weight_gradient) * (1 + kRounding);
  }

  const AutoRequest& request_;
  int stages_;
  bool whole_is_cheaper_ = false;  // a stage's B takes less than its I and W
  AutoSchedule best_;
  std::vector<Schedule> placements_;  // one schedule of each placement
  std::vector<Candidate> candidates_;
};

}  // namespace

double makespan_lower_bound(const AutoRequest& request, const std::vector<int>& rank_of_stage) {
  const double m = request.micro_batches;
  const Ways ways(request.costs, rank_of_stage);
  double bound = ways.f[0] + ways.beyond[0] + ways.whole[0];
  for (int rank = 0; rank < request.ranks; ++rank) {
    const RankTimes times = ways.of_rank(rank_of_stage, rank);
    const double start = ways.before[at(times.first_stage)];
    bound = std::max({bound, start + m * times.work, start + m * times.gradients + ways.back[at(times.first_stage)]});
    if (request.max_activations) bound = std::max(bound, start + m * times.held / *request.max_activations);
  }
  return bound;
}

AutoSchedule find_schedule(const AutoRequest& request) {
  Problems problems;
  pipeline::check_size(request.ranks, request.micro_batches, request.virtual_stages, problems);
  problems.add_if(request.virtual_stages < 1,
                  fmt::format("--virtual-stages {}: auto has at least 1 stage a rank", request.virtual_stages));
  problems.add_if(request.max_activations && *request.max_activations < request.virtual_stages,
                  fmt::format("a cap of {} activations: with {} stages a rank, one micro-batch holds {}",
                              request.max_activations.value_or(0), request.virtual_stages, request.virtual_stages));
  problems.throw_if_any();
  return Search(request).run();
}

}  // namespace cuboid
