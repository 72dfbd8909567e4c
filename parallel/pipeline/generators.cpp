#include "cuboid/parallel/pipeline/generators.h"

#include <algorithm>
#include <deque>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/core/text.h"
#include "cuboid/parallel/pipeline/verify.h"

#include "rows.h"

namespace cuboid {
namespace pipeline {

// All forwards, then all backwards. Backwards ascend too (arXiv 1811.06965 lets them descend): law 1.
Row gpipe_row(const RowShape& shape) {
  Row row;
  for (int k = 0; k < shape.m; ++k) add_f(row, shape.r, k);
  for (int k = 0; k < shape.m; ++k) add_b(row, shape.r, k);
  return row;
}

// Megatron-LM schedules.py: p-1-r warm-up forwards (fewer when m is small), then pairs, then the remaining backwards.
Row one_f_one_b_row(const RowShape& shape) {
  Row row;
  const int warm_up = std::min(shape.m, shape.p - 1 - shape.r);
  for (int k = 0; k < warm_up; ++k) add_f(row, shape.r, k);
  for (int k = warm_up; k < shape.m; ++k) {
    add_f(row, shape.r, k);
    add_b(row, shape.r, k - warm_up);
  }
  for (int k = shape.m - warm_up; k < shape.m; ++k) add_b(row, shape.r, k);
  return row;
}

// Megatron-LM (arXiv 2104.04473): micro-batches in groups of at least p run through the rank's chunks in turn. Groups
// of p need m to be a multiple of p; here m is dealt to floor(m/p) groups whose sizes differ by at most one, larger
// ones first, so that no group is smaller than p (but the only one, when m < p) and none larger than the first, which
// sets the warm-up.
Row interleaved_row(const RowShape& shape) {
  const auto [r, p, m, v] = shape;
  const int groups = std::max(1, m / p);
  std::vector<std::pair<int, int>> forwards;   // chunk, micro-batch
  std::vector<std::pair<int, int>> backwards;  // the same with the chunks from last to first
  for (int group = 0, begin = 0; group < groups; ++group) {
    const int end = begin + m / groups + (group < m % groups ? 1 : 0);
    for (int chunk = 0; chunk < v; ++chunk) {
      for (int k = begin; k < end; ++k) {
        forwards.emplace_back(chunk, k);
        backwards.emplace_back(v - 1 - chunk, k);
      }
    }
    begin = end;
  }
  const int total = m * v;
  const int first_group = m / groups + (m % groups > 0 ? 1 : 0);
  const int warm_up = std::min(total, 2 * (p - 1 - r) + (v - 1) * first_group);
  Row row;
  for (int i = 0; i < total + warm_up; ++i) {
    if (i < total)
      add_f(row, forwards[static_cast<std::size_t>(i)].first * p + r, forwards[static_cast<std::size_t>(i)].second);
    if (i >= warm_up) {
      const auto [chunk, k] = backwards[static_cast<std::size_t>(i - warm_up)];
      add_b(row, chunk * p + r, k);
    }
  }
  return row;
}

// arXiv 2211.05953: stage by stage, all micro-batches of a stage before the next.
Row looped_bfs_row(const RowShape& shape) {
  Row row;
  for (int chunk = 0; chunk < shape.v; ++chunk) {
    for (int k = 0; k < shape.m; ++k) add_f(row, chunk * shape.p + shape.r, k);
  }
  for (int chunk = shape.v - 1; chunk >= 0; --chunk) {
    for (int k = 0; k < shape.m; ++k) add_b(row, chunk * shape.p + shape.r, k);
  }
  return row;
}

void check_size(int ranks, int micro_batches, int virtual_stages, Problems& problems) {
  problems.add_if(ranks < 1, fmt::format("--pp {}: a pipeline has at least 1 rank", ranks));
  problems.add_if(micro_batches < 1, fmt::format("{} micro-batches: a step has at least 1", micro_batches));
  if (ranks < 1 || micro_batches < 1 || virtual_stages < 1) return;
  constexpr std::int64_t kMostForwards = 1 << 23;  // about 1 GiB of actions, their transfers and their times
  const std::int64_t most_of_a_stage = kMostForwards / ranks / virtual_stages;
  problems.add_if(micro_batches > most_of_a_stage,
                  fmt::format("{} micro-batches on {} ranks of {} stages: a schedule has at most {} forwards; use "
                              "larger micro-batches or fewer stages",
                              micro_batches, ranks, virtual_stages, kMostForwards));
}

Row keep_micro_batches(Row row, int m) {
  std::erase_if(row, [m](const Action& action) { return action.micro_batch >= m; });
  return row;
}

}  // namespace pipeline

namespace {

using pipeline::Row;
using pipeline::RowShape;

struct Generator {
  std::string name;
  std::function<Row(const RowShape&)> row;
  int default_virtual_stages;
  int min_virtual_stages;
  int max_virtual_stages;           // 0: any
  int min_micro_batches_of_a_rank;  // m must be at least this times p
  bool registered = false;          // from outside: not known to be right
};

std::deque<Generator>& generators() {
  static std::deque<Generator> all = {
      {"gpipe", pipeline::gpipe_row, 1, 1, 1, 0},
      {"1f1b", pipeline::one_f_one_b_row, 1, 1, 1, 0},
      {"interleaved-1f1b", pipeline::interleaved_row, 2, 1, 0, 0},
      {"looped-bfs", pipeline::looped_bfs_row, 2, 1, 0, 0},
      {"zb-h1", pipeline::zb_h1_row, 1, 1, 1, 0},
      {"zb-h2", pipeline::zb_h2_row, 1, 1, 1, 0},
      {"zb-v", pipeline::zb_v_row, 2, 2, 2, 0},
      {"v-half", pipeline::v_half_row, 2, 2, 2, 0},
      {"v-min", pipeline::v_min_row, 2, 2, 2, 0},
      {"dualpipe-v", pipeline::dualpipe_v_row, 2, 2, 2, 2},
  };
  return all;
}

std::vector<std::string>& names() {
  static std::vector<std::string> all = [] {
    std::vector<std::string> made;
    for (const Generator& generator : generators()) made.push_back(generator.name);
    return made;
  }();
  return all;
}

const Generator& find_generator(std::string_view name) {
  const auto found = std::find_if(generators().begin(), generators().end(),
                                  [&](const Generator& generator) { return generator.name == name; });
  if (found != generators().end()) return *found;
  throw Error(ErrorKind::request, fmt::format("--schedule {}: no such schedule; did you mean {}? There are {}", name,
                                              nearest(name, schedule_names()), join(schedule_names())));
}

}  // namespace

const std::vector<std::string>& schedule_names() {
  return names();
}

void register_schedule(const std::string& name, int virtual_stages, RowGenerator row) {
  CUBOID_CHECK(std::find(names().begin(), names().end(), name) == names().end(), "schedule " + name + " twice");
  CUBOID_CHECK(virtual_stages >= 1, "schedule " + name + " with " + std::to_string(virtual_stages) + " stages a rank");
  const auto adapted = [row = std::move(row)](const RowShape& s) { return row({s.r, s.p, s.m, s.v}); };
  generators().push_back({name, adapted, virtual_stages, virtual_stages, virtual_stages, 0, true});
  names().push_back(name);
}

int default_virtual_stages(std::string_view name) {
  return find_generator(name).default_virtual_stages;
}

int fewest_micro_batches(std::string_view name, int ranks) {
  return std::max(1, find_generator(name).min_micro_batches_of_a_rank * ranks);
}

Schedule make_schedule(const ScheduleRequest& request) {
  const Generator& generator = find_generator(request.name);
  const int v = request.virtual_stages == 0 ? generator.default_virtual_stages : request.virtual_stages;
  Problems problems;
  pipeline::check_size(request.ranks, request.micro_batches, v, problems);
  if (v < generator.min_virtual_stages || (generator.max_virtual_stages > 0 && v > generator.max_virtual_stages)) {
    problems.add(fmt::format("--virtual-stages {}: {} has {}", v, request.name,
                             generator.max_virtual_stages == 0 ? "at least 1 stage a rank"
                             : generator.max_virtual_stages == 1
                                 ? "1 stage a rank"
                                 : fmt::format("{} stages a rank", generator.max_virtual_stages)));
  }
  const std::int64_t least = std::int64_t{generator.min_micro_batches_of_a_rank} * request.ranks;
  problems.add_if(request.micro_batches >= 1 && request.micro_batches < least,
                  fmt::format("{} micro-batches: {} with --pp {} needs at least {}", request.micro_batches,
                              request.name, request.ranks, least));
  problems.throw_if_any();

  Schedule schedule{request.name, request.ranks * v, request.micro_batches, {}};
  for (int r = 0; r < request.ranks; ++r) {
    schedule.rows.push_back(generator.row({r, request.ranks, request.micro_batches, v}));
  }
  if (generator.registered) require_valid(schedule);
  return schedule;
}

}  // namespace cuboid
