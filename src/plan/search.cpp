#include "cuboid/plan/search.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cuboid/models/registry.h"
#include "cuboid/parallel/pipeline/generators.h"

#include "explain.h"
#include "stages.h"

namespace cuboid {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kTensorSplit = "tensor degree: does not divide heads, key/value heads or the inner width";
constexpr const char* kExpertSplit = "expert degree: does not divide the experts";
constexpr const char* kContextSplit = "context degree: does not cut the sequence into two equal chunks a rank";
constexpr const char* kStages = "pipeline: fewer layers than stages";
constexpr const char* kBatch = "global batch: not divisible by dp x micro-batch";
constexpr const char* kSequence = "sequence parallelism: tp does not divide a rank's part of the sequence";
constexpr const char* kSchedule = "schedule: not defined for so few micro-batches";
constexpr const char* kMemory = "memory";
constexpr const char* kBeaten = "others are faster, and one of them smaller too: lower bounds of its time and memory";

constexpr int kLargestMicroBatch = 64;
constexpr Recompute kRecomputes[] = {Recompute::none, Recompute::selective, Recompute::full};

std::vector<int> divisors(int n) {
  std::vector<int> found;
  for (int d = 1; d <= n; ++d) {
    if (n % d == 0) found.push_back(d);
  }
  return found;
}

// A candidate with the bound that decides when it is walked: a run in few words, since there are very many.
struct Open {
  int grid;  // index into the grids
  int pipeline;
  int micro_batch;
  int zero;
  Recompute recompute;
  bool sequence_parallel;
  double bound;   // seconds
  double memory;  // bytes, at least
};

// A schedule's name and stages a rank.
struct Pipeline {
  std::string schedule;
  int virtual_stages;
};

class Search {
 public:
  Search(Predictor& predictor, const PlanRequest& request)
      : predictor_(predictor),
        model_(predictor.model()),
        cluster_(predictor.cluster()),
        request_(request),
        limit_(request.memory_limit > 0 ? request.memory_limit : static_cast<double>(cluster_.device.memory_bytes)),
        schedules_(request.schedules.empty() ? planned_schedules() : request.schedules) {}

  PlanResult run() {
    const Clock::time_point begin = Clock::now();
    check();
    enumerate();
    walk();
    result_.explanation = plan::explain(predictor_, request_, limit_, result_, smallest_);
    result_.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    return std::move(result_);
  }

 private:
  void check() const {
    Problems problems;
    problems.add_if(request_.gpus < 1, fmt::format("--gpus {}: at least 1", request_.gpus));
    problems.add_if(request_.gpus > cluster_.devices(), fmt::format("--gpus {}: the cluster {} has {} devices",
                                                                    request_.gpus, cluster_.name, cluster_.devices()));
    problems.add_if(request_.global_batch < 1, fmt::format("--global-batch {}: at least 1", request_.global_batch));
    problems.add_if(
        request_.seq_len < 1 || request_.seq_len > model_.positions,
        fmt::format("--seq-len {}: {} has positions for 1 to {}", request_.seq_len, model_.name, model_.positions));
    problems.add_if(request_.top < 1, fmt::format("--top {}: at least 1", request_.top));
    problems.throw_if_any();
  }

  void reject(const char* reason, std::int64_t count = 1) {
    result_.rejected[reason] += count;
    result_.searched += count;
    if (reason == kMemory) too_large_ += count;
  }

  void enumerate() {
    const std::vector<int> usable = usable_tensor_degrees(model_, request_.gpus);
    for (const int tp : divisors(request_.gpus)) {
      if (!std::binary_search(usable.begin(), usable.end(), tp)) {
        reject(kTensorSplit);
        continue;
      }
      for (const int pp : divisors(request_.gpus / tp)) {
        if (pp > model_.layers) {
          reject(kStages);
          continue;
        }
        const int copies = request_.gpus / tp / pp;
        for (const int ep : divisors(copies)) {
          if (ep > 1 && (model_.experts == 0 || ep > request_.largest_ep)) break;
          if (ep > 1 && model_.experts % ep != 0) {
            reject(kExpertSplit);
          } else {
            for (const int cp : divisors(copies / ep)) {
              if (cp > 1 && !cuts_sequence(cp)) break;
              if (cp > 1 && request_.seq_len % (2 * cp) != 0) {
                reject(kContextSplit);
              } else {
                grids({{tp, cp, ep, copies / ep / cp, pp}});
              }
            }
          }
        }
      }
    }
  }

  // Whether it can, and is long enough to gain by it.
  bool cuts_sequence(int cp) const {
    return cp <= request_.largest_cp && request_.seq_len / cp >= kFewestTokensOfAPart &&
           model_of(model_).splits_context() && (model_.experts == 0 || request_.context_with_experts);
  }

  void grids(const AxisValues& degrees) {
    const int samples = degrees[Axis::ep] * degrees[Axis::dp];
    if (request_.global_batch % samples != 0) return reject(kBatch);
    for (const Grid& grid : placements(degrees)) {
      bool fits = true;
      for (int micro_batch = 1; micro_batch <= kLargestMicroBatch; micro_batch *= 2) {
        if (request_.global_batch / samples % micro_batch != 0) {
          reject(kBatch);
        } else if (fits) {
          fits = settings(grid, micro_batch);
        } else {
          reject(kMemory);
        }
      }
    }
  }

  // One grid for each way its groups can lie on the cluster: other orders of the axes are the same. Context and expert
  // groups, whose messages are the larger ones, lie inside those of data parallelism.
  std::vector<Grid> placements(const AxisValues& degrees) const {
    std::vector<Axis> axes = {Axis::tp, Axis::dp, Axis::pp};
    std::sort(axes.begin(), axes.end());
    std::vector<Grid> grids;
    std::set<std::vector<int>> seen;
    do {
      std::string order;
      for (const Axis axis : axes) {
        order += (order.empty() ? "" : "-") + std::string(axis == Axis::dp ? "cp-ep-" : "") + name_of(axis);
      }
      const Grid grid(degrees, order);
      std::vector<int> lie;
      for (const Axis axis : kAxes) {
        const GroupPlacement group = place_group(cluster_, grid, {axis});
        lie.insert(lie.end(), group.inside.begin(), group.inside.end());
      }
      if (seen.insert(lie).second) grids.push_back(grid);
    } while (std::next_permutation(axes.begin(), axes.end()));
    return grids;
  }

  std::vector<Pipeline> pipelines(int pp, int micro_batches) {
    if (pp == 1) return {{"1f1b", 1}};
    std::vector<Pipeline> made;
    for (const std::string& name : schedules_) {
      const int own = default_virtual_stages(name);
      const bool any = name == "interleaved-1f1b" || name == "looped-bfs";
      for (int v = own; v * pp <= model_.layers; ++v) {
        if (!any && v != own) break;
        // Stages of unequal depth only make the deepest wait.
        if (any && model_.layers % (v * pp) != 0) continue;
        if (micro_batches < fewest_micro_batches(name, pp)) {
          reject(kSchedule);
        } else {
          made.push_back({name, v});
        }
      }
      if (own * pp > model_.layers) reject(kStages);
    }
    return made;
  }

  // Returns false if memory ruled out all of them. Then it rules out those of larger micro-batches, of which half as
  // many are held at least, each of twice the size.
  bool settings(const Grid& grid, int micro_batch) {
    const std::size_t open = open_.size();
    const std::int64_t too_large = too_large_;
    RunConfig run = asked();
    run.grid = grid;
    run.micro_batch = micro_batch;
    const int tp = grid.degree(Axis::tp);
    const int pp = grid.degree(Axis::pp);
    grids_.push_back(grid);
    for (Pipeline& pipeline : pipelines(pp, run.micro_batches())) {
      pipelines_.push_back(pipeline);
      run.schedule = pipeline.schedule;
      run.virtual_stages = pipeline.virtual_stages;
      for (const int zero : request_.zero_stages) {
        // Nothing to shard; or another framework has no such combination.
        if (zero > 0 && grid.copies() == 1) continue;
        if (pp > 1 && zero > request_.largest_zero_with_pipeline) continue;
        if (grid.degree(Axis::cp) > 1 && zero < request_.least_zero_with_context) continue;
        run.zero = zero;
        const bool splits = request_.seq_len / grid.degree(Axis::cp) % tp == 0;
        recomputations(run, tp > 1 && splits);
        if (tp > 1 && !splits) reject(kSequence);
      }
    }
    return open_.size() > open || too_large_ == too_large;
  }

  // All that is left to choose: whether to split the sequence, and what to recompute. What keeps least can rule out the
  // others with it.
  void recomputations(RunConfig run, bool splits) {
    run.sequence_parallel = splits;
    run.recompute = Recompute::full;
    const StepBound smallest = predictor_.bound(run, 0);
    smallest_ = std::min(smallest_, smallest.memory_bytes);
    if (smallest.kept_bytes > limit_) return reject(kMemory, splits ? 6 : 3);
    for (const bool sequence_parallel : {false, true}) {
      if (sequence_parallel && !splits) continue;
      run.sequence_parallel = sequence_parallel;
      for (const Recompute recompute : kRecomputes) {
        run.recompute = recompute;
        consider(run);
      }
    }
  }

  // What all candidates have in common.
  RunConfig asked() const {
    RunConfig run;
    run.model = model_.name;
    run.global_batch = request_.global_batch;
    run.seq_len = request_.seq_len;
    run.dtype = request_.dtype;
    return run;
  }

  RunConfig run_of(const Open& open) const {
    RunConfig run = asked();
    run.grid = grids_[static_cast<std::size_t>(open.grid)];
    run.schedule = pipelines_[static_cast<std::size_t>(open.pipeline)].schedule;
    run.virtual_stages = pipelines_[static_cast<std::size_t>(open.pipeline)].virtual_stages;
    run.micro_batch = open.micro_batch;
    run.zero = open.zero;
    run.recompute = open.recompute;
    run.sequence_parallel = open.sequence_parallel;
    return run;
  }

  void consider(const RunConfig& run) {
    const StepBound bound = predictor_.bound(run, limit_);
    smallest_ = std::min(smallest_, bound.memory_bytes);
    if (bound.memory_bytes > limit_) return reject(kMemory);
    open_.push_back({static_cast<int>(grids_.size()) - 1, static_cast<int>(pipelines_.size()) - 1, run.micro_batch,
                     run.zero, run.recompute, run.sequence_parallel, bound.step_seconds, bound.memory_bytes});
  }

  // By the bound of time: what is found early rules out what comes late.
  void walk() {
    std::stable_sort(open_.begin(), open_.end(), [](const Open& a, const Open& b) { return a.bound < b.bound; });
    const auto most = static_cast<std::size_t>(request_.top);
    for (std::size_t i = 0; i < open_.size(); ++i) {
      auto& best = result_.best;
      const auto hopeless = [&](double seconds) {
        return !request_.exhaustive && best.size() == most && seconds > best.back().prediction.step_seconds &&
               beaten(seconds, open_[i].memory);
      };
      if (hopeless(open_[i].bound)) {
        reject(kBeaten);
        continue;
      }
      RunConfig run = run_of(open_[i]);
      // What was walked since has taught what its schedule cannot do better.
      if (hopeless(predictor_.bound(run).step_seconds)) {
        reject(kBeaten);
        continue;
      }
      StepPrediction prediction = predictor_.predict(run, {.spans = false, .memory_limit = limit_});
      if (!prediction.feasible) {
        reject(kMemory);
        continue;
      }
      ++result_.feasible;
      ++result_.searched;
      keep({std::move(run), std::move(prediction)}, most);
    }
  }

  // Whether one that was walked is as fast and as small.
  bool beaten(double seconds, double bytes) const {
    return std::any_of(result_.pareto.begin(), result_.pareto.end(), [&](const PlanCandidate& other) {
      return other.prediction.step_seconds <= seconds && other.prediction.memory().total() <= bytes;
    });
  }

  void keep(PlanCandidate candidate, std::size_t most) {
    const auto seconds = [](const PlanCandidate& c) { return c.prediction.step_seconds; };
    const auto bytes = [](const PlanCandidate& c) { return c.prediction.memory().total(); };
    auto& front = result_.pareto;
    if (!beaten(seconds(candidate), bytes(candidate))) {
      std::erase_if(front, [&](const PlanCandidate& other) {
        return seconds(candidate) <= seconds(other) && bytes(candidate) <= bytes(other);
      });
      insert(front, candidate);
    }
    insert(result_.best, std::move(candidate));
    if (result_.best.size() > most) result_.best.pop_back();
  }

  // Fastest first; of equally fast ones the smaller, and then the one that was found first.
  static void insert(std::vector<PlanCandidate>& list, PlanCandidate candidate) {
    const auto less = [](const PlanCandidate& a, const PlanCandidate& b) {
      if (a.prediction.step_seconds != b.prediction.step_seconds) {
        return a.prediction.step_seconds < b.prediction.step_seconds;
      }
      return a.prediction.memory().total() < b.prediction.memory().total();
    };
    list.insert(std::upper_bound(list.begin(), list.end(), candidate, less), std::move(candidate));
  }

  Predictor& predictor_;
  const ModelConfig& model_;
  const Cluster& cluster_;
  const PlanRequest& request_;
  double limit_;
  const std::vector<std::string>& schedules_;
  std::vector<Grid> grids_;
  std::vector<Pipeline> pipelines_;
  std::vector<Open> open_;
  double smallest_ = std::numeric_limits<double>::infinity();
  std::int64_t too_large_ = 0;  // rejected for memory so far
  PlanResult result_;
};

}  // namespace

const std::vector<std::string>& planned_schedules() {
  static const std::vector<std::string> names = {"1f1b",  "interleaved-1f1b", "zb-h1", "zb-v", "v-half",
                                                 "v-min", "dualpipe-v"};
  return names;
}

PlanResult search_plans(Predictor& predictor, const PlanRequest& request) {
  return Search(predictor, request).run();
}

}  // namespace cuboid
