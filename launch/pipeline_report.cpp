#include "launch/pipeline_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cuboid/core/log.h"
#include "cuboid/core/units.h"

namespace cuboid::launch {
namespace {

std::string cost_text(double cost, const RunStart& start) {
  return start.cost_unit == "s" ? human_seconds(cost) : human_count(cost) + start.cost_unit;
}

std::string split_text(const RunConfig& run, const RunStart& start) {
  const char* costs = run.balance == Balance::measured ? "measured in a profile" : "from the model's arithmetic";
  std::vector<std::string> work;
  for (const double stage : start.stage_work) work.push_back(cost_text(stage, start));
  return fmt::format("layers of each stage: {} ({}; a micro-batch costs {}, {})", fmt::join(start.stage_layers, ", "),
                     start.stages_balanced ? "balanced by cost" : "as given", fmt::join(work, ", "), costs);
}

std::string choice_text(const AutoChoice& chosen, const RunStart& start) {
  std::string named = "no named schedule fits";
  if (!chosen.best_named.empty()) {
    named = fmt::format("the best named schedule, {}, takes {}", chosen.best_named,
                        cost_text(chosen.best_named_makespan, start));
  }
  return fmt::format("auto: found from {}; a step takes {}, at least {} whatever the schedule; {}", chosen.origin,
                     cost_text(chosen.makespan, start), cost_text(chosen.lower_bound, start), named);
}

}  // namespace

void announce_pipeline(const RunConfig& run, const RunStart& start) {
  if (run.grid.degree(Axis::pp) == 1) return;
  log::info(split_text(run, start));
  if (start.chosen) log::info(choice_text(*start.chosen, start));
  std::string bubble = fmt::format("bubble {:.0f} %", 100 * start.schedule_bubble);
  if (start.schedule_barrier >= 0.0005) {
    bubble += fmt::format("; waiting for all ranks before the optimizer step costs {:.1f} % of the step",
                          100 * start.schedule_barrier);
  }
  log::info(fmt::format("{} with {} micro-batches: {}", run.schedule, start.micro_batches, bubble));
}

std::string bubble_summary(const RunStart& start, const TrainResult& result) {
  return fmt::format("bubble            {:.1f} % (the schedule's at the measured times {:.1f} %, predicted {:.1f} %)\n",
                     100 * result.bubble_fraction, 100 * result.schedule_bubble_fraction, 100 * start.schedule_bubble);
}

}  // namespace cuboid::launch
