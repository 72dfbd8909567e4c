#include "cuboid/parallel/pipeline/generators.h"

#include <algorithm>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/core/text.h"

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

}  // namespace pipeline

namespace {

using pipeline::Row;
using pipeline::RowShape;

struct Generator {
  std::string_view name;
  Row (*row)(const RowShape&);
  int default_virtual_stages;
  int max_virtual_stages;  // 0: any
};

constexpr Generator kGenerators[] = {
    {"gpipe", pipeline::gpipe_row, 1, 1},
    {"1f1b", pipeline::one_f_one_b_row, 1, 1},
};

const Generator& find_generator(std::string_view name) {
  const auto found = std::find_if(std::begin(kGenerators), std::end(kGenerators),
                                  [&](const Generator& generator) { return generator.name == name; });
  if (found != std::end(kGenerators)) return *found;
  throw Error(ErrorKind::request, fmt::format("--schedule {}: no such schedule; did you mean {}? There are {}", name,
                                              nearest(name, schedule_names()), join(schedule_names())));
}

}  // namespace

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Generator& generator : kGenerators) all.emplace_back(generator.name);
    return all;
  }();
  return names;
}

int default_virtual_stages(std::string_view name) {
  return find_generator(name).default_virtual_stages;
}

Schedule make_schedule(const ScheduleRequest& request) {
  const Generator& generator = find_generator(request.name);
  const int v = request.virtual_stages == 0 ? generator.default_virtual_stages : request.virtual_stages;
  Problems problems;
  problems.add_if(request.ranks < 1, fmt::format("--pp {}: a pipeline has at least 1 rank", request.ranks));
  problems.add_if(request.micro_batches < 1,
                  fmt::format("{} micro-batches: a step has at least 1", request.micro_batches));
  problems.add_if(v < 1, fmt::format("--virtual-stages {}: a rank has at least 1 stage", v));
  problems.add_if(generator.max_virtual_stages > 0 && v > generator.max_virtual_stages,
                  fmt::format("--virtual-stages {}: {} has {} a rank", v, request.name, generator.max_virtual_stages));
  problems.throw_if_any();

  Schedule schedule{request.name, request.ranks * v, request.micro_batches, {}};
  for (int r = 0; r < request.ranks; ++r) {
    schedule.rows.push_back(generator.row({r, request.ranks, request.micro_batches, v}));
  }
  return schedule;
}

}  // namespace cuboid
