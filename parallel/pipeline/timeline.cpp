#include "timeline.h"

#include <algorithm>
#include <limits>
#include <set>

namespace cuboid::pipeline {
namespace {

std::vector<Level> levels_of(const std::vector<Span>& spans, double freed_by_input_gradient) {
  std::vector<Level> changes;
  for (const Span& span : spans) {
    switch (span.action.kind) {
      case ActionKind::forward:
        changes.push_back({span.begin, 1});
        break;
      case ActionKind::backward:
        changes.push_back({span.end, -1});
        break;
      case ActionKind::input_gradient:
        changes.push_back({span.end, -freed_by_input_gradient});
        break;
      case ActionKind::weight_gradient:
        changes.push_back({span.end, freed_by_input_gradient - 1});
        break;
      default:
        break;
    }
  }
  // What ends makes room for what begins at the same time.
  std::stable_sort(changes.begin(), changes.end(), [](const Level& a, const Level& b) {
    return a.time != b.time ? a.time < b.time : a.activations < b.activations;
  });
  double held = 0;
  for (Level& change : changes) change.activations = held += change.activations;
  return changes;
}

}  // namespace

Timeline make_timeline(const Drawing& drawing) {
  Timeline out;
  double first = std::numeric_limits<double>::infinity();
  double last = -first;
  for (const auto& spans : drawing.spans) {
    for (const Span& span : spans) {
      if (!computes(span.action.kind)) continue;
      first = std::min(first, span.begin);
      last = std::max(last, span.end);
    }
  }
  if (last < first) first = last = 0;
  out.makespan = last - first;
  out.shortest = out.makespan;
  double idle = 0;
  for (const auto& spans : drawing.spans) {
    Lane lane;
    std::set<int> stages;
    double busy = 0;
    double until = 0;
    for (Span span : spans) {
      if (transfers(span.action.kind) || span.end <= span.begin) continue;  // waiting is idle time
      span.begin -= first;
      span.end -= first;
      lane.spans.push_back(span);
      if (!computes(span.action.kind)) continue;
      stages.insert(span.action.stage);
      out.shortest = std::min(out.shortest, span.end - span.begin);
      busy += std::max(0.0, span.end - std::max(until, span.begin));  // an overlapped pair counts once
      until = std::max(until, span.end);
    }
    lane.idle = out.makespan - busy;
    lane.levels = levels_of(lane.spans, drawing.freed_by_input_gradient);
    for (const Level& level : lane.levels) lane.peak = std::max(lane.peak, level.activations);
    idle += lane.idle;
    out.peak = std::max(out.peak, lane.peak);
    out.virtual_stages = std::max(out.virtual_stages, static_cast<int>(stages.size()));
    out.lanes.push_back(std::move(lane));
  }
  if (out.makespan > 0) out.bubble_fraction = idle / (out.makespan * static_cast<double>(out.lanes.size()));
  return out;
}

}  // namespace cuboid::pipeline
