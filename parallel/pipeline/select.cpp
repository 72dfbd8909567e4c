#include "cuboid/parallel/pipeline/select.h"

#include <algorithm>

#include <fmt/format.h>

#include "cuboid/core/log.h"
#include "cuboid/parallel/pipeline/generators.h"
#include "cuboid/parallel/pipeline/verify.h"
#include "cuboid/value/schedule_csv.h"

namespace cuboid {
namespace {

VerifyOptions options_of(const RunConfig& run) {
  VerifyOptions options{.sends = SendMode::buffered, .max_activations = {}};
  if (run.max_activations > 0) options.max_activations = run.max_activations;
  return options;
}

int stages_of_auto(const RunConfig& run) {
  Problems problems;
  const int virtual_stages = std::max(1, run.virtual_stages);
  problems.add_if(run.virtual_stages < 0,
                  fmt::format("--virtual-stages {}: must be at least 1, or 0 for 1", run.virtual_stages));
  problems.add_if(run.max_activations > 0 && run.max_activations < virtual_stages,
                  fmt::format("--max-activations {0}: with {1} stages a rank, one micro-batch holds {1}; use at least "
                              "{1}",
                              run.max_activations, virtual_stages));
  problems.throw_if_any();
  return run.grid.degree(Axis::pp) * virtual_stages;
}

// Where gradients are reduced and parameters gathered follows from the run's ZeRO stage (add_reduction, add_sharding):
// a file's own REDUCE_GRAD would reduce a second time.
void drop_data_parallel_actions(Schedule& schedule) {
  for (auto& row : schedule.rows) {
    std::erase_if(row, [](const Action& a) {
      return a.kind == ActionKind::reduce_gradient || a.kind == ActionKind::unshard || a.kind == ActionKind::reshard;
    });
  }
}

Schedule schedule_of_file(const RunConfig& run) {
  const std::string path = run.schedule.substr(kSchedulePathPrefix.size());
  CsvSchedule file = read_schedule_csv(path);
  for (const std::string& note : file.notes) log::info(path + ": " + note);
  Schedule& schedule = file.schedule;
  Problems problems;
  problems.add_if(schedule.ranks() != run.grid.degree(Axis::pp),
                  fmt::format("--schedule {}: has {} ranks, --pp is {}", run.schedule, schedule.ranks(),
                              run.grid.degree(Axis::pp)));
  problems.add_if(schedule.micro_batches != run.micro_batches(),
                  fmt::format("--schedule {}: has {} micro-batches, the run has {} (global batch {} / ({} data "
                              "ranks x micro-batch {}))",
                              run.schedule, schedule.micro_batches, run.micro_batches(), run.global_batch,
                              run.grid.data_degree(), run.micro_batch));
  for (const Finding& finding : verify(schedule, options_of(run))) {
    if (finding.note) {
      log::info(path + ": " + finding.text);
    } else {
      problems.add(fmt::format("--schedule {}: {}", run.schedule, finding.text));
    }
  }
  problems.throw_if_any();
  drop_data_parallel_actions(schedule);
  return std::move(schedule);
}

}  // namespace

int stages_of(const RunConfig& run) {
  return run.schedule == kAutoSchedule ? stages_of_auto(run) : schedule_of(run).stages;
}

Schedule schedule_of(const RunConfig& run) {
  CUBOID_CHECK(run.schedule != kAutoSchedule, "auto needs the costs of the stages");
  if (run.schedule.starts_with(kSchedulePathPrefix)) return schedule_of_file(run);
  Schedule schedule = make_schedule({.name = run.schedule,
                                     .ranks = run.grid.degree(Axis::pp),
                                     .micro_batches = run.micro_batches(),
                                     .virtual_stages = run.virtual_stages});
  if (run.max_activations > 0) require_valid(schedule, options_of(run));
  return schedule;
}

bool has_transfers(const Schedule& schedule) {
  const auto transfers = [](const Action& a) {
    return a.kind == ActionKind::send_forward || a.kind == ActionKind::recv_forward ||
           a.kind == ActionKind::send_backward || a.kind == ActionKind::recv_backward;
  };
  return std::any_of(schedule.rows.begin(), schedule.rows.end(),
                     [&](const auto& row) { return std::any_of(row.begin(), row.end(), transfers); });
}

}  // namespace cuboid
