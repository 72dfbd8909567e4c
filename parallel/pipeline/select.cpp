#include "cuboid/parallel/pipeline/select.h"

#include <algorithm>

#include <fmt/format.h>

#include "cuboid/core/log.h"
#include "cuboid/parallel/pipeline/generators.h"
#include "cuboid/parallel/pipeline/verify.h"
#include "cuboid/value/schedule_csv.h"

namespace cuboid {
namespace {

Schedule schedule_of_file(const RunConfig& run) {
  const std::string path = run.schedule.substr(kSchedulePathPrefix.size());
  const CsvSchedule file = read_schedule_csv(path);
  for (const std::string& note : file.notes) log::info(path + ": " + note);
  const Schedule& schedule = file.schedule;
  Problems problems;
  problems.add_if(schedule.ranks() != run.grid.degree(Axis::pp),
                  fmt::format("--schedule {}: has {} ranks, --pp is {}", run.schedule, schedule.ranks(),
                              run.grid.degree(Axis::pp)));
  problems.add_if(schedule.micro_batches != run.micro_batches(),
                  fmt::format("--schedule {}: has {} micro-batches, the run has {} (global batch {} / (dp {} x "
                              "micro-batch {}))",
                              run.schedule, schedule.micro_batches, run.micro_batches(), run.global_batch,
                              run.grid.degree(Axis::dp), run.micro_batch));
  for (const Finding& finding : verify(schedule, {.sends = SendMode::buffered, .max_activations = {}})) {
    if (finding.note) {
      log::info(path + ": " + finding.text);
    } else {
      problems.add(fmt::format("--schedule {}: {}", run.schedule, finding.text));
    }
  }
  problems.throw_if_any();
  return schedule;
}

}  // namespace

Schedule schedule_of(const RunConfig& run) {
  if (run.schedule.starts_with(kSchedulePathPrefix)) return schedule_of_file(run);
  return make_schedule({.name = run.schedule,
                        .ranks = run.grid.degree(Axis::pp),
                        .micro_batches = run.micro_batches(),
                        .virtual_stages = run.virtual_stages});
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
