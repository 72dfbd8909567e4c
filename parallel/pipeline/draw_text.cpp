#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "cuboid/parallel/pipeline/draw.h"

#include "timeline.h"

namespace cuboid {
namespace {

using pipeline::Lane;
using pipeline::make_timeline;
using pipeline::Timeline;

// Wider pictures are scaled down until actions lose their names.
constexpr double kMaxColumns = 20000;

// Columns a unit of time: the shortest action has room for its cell and a blank.
double columns_per_time(const Timeline& timeline) {
  std::size_t widest = 1;
  for (const Lane& lane : timeline.lanes) {
    for (const Span& span : lane.spans) widest = std::max(widest, to_string(span.action).size());
  }
  if (timeline.shortest <= 0) return 1;
  return std::min(static_cast<double>(widest + 1) / timeline.shortest, kMaxColumns / timeline.makespan);
}

std::string bar(const Lane& lane, double scale, std::size_t width) {
  std::string text(width, '.');
  const auto column = [&](double time) {
    return std::min(width, static_cast<std::size_t>(std::llround(std::max(0.0, time) * scale)));
  };
  for (std::size_t i = 0; i < lane.spans.size(); ++i) {
    const Span& span = lane.spans[i];
    std::size_t begin = column(span.begin);
    std::size_t end = column(span.end);
    const bool second = i > 0 && lane.spans[i - 1].action.overlapped;
    if (second) begin = (begin + end) / 2;
    if (span.action.overlapped) end = (begin + end) / 2;
    if (begin >= end) continue;
    // The last column separates: a following action begins with a digit.
    std::string cell = to_string(span.action);
    cell.resize(end - begin, span.action.kind == ActionKind::forward ? '-' : '=');
    if (cell.size() > 1) cell.back() = span.action.overlapped ? '+' : ' ';
    text.replace(begin, end - begin, cell);
  }
  return text;
}

}  // namespace

std::string draw_text(const Drawing& drawing) {
  const Timeline timeline = make_timeline(drawing);
  const double scale = columns_per_time(timeline);
  const auto width = static_cast<std::size_t>(std::llround(timeline.makespan * scale));
  const std::size_t digits = std::to_string(timeline.lanes.size()).size();
  std::string text = drawing.title + "\n";
  if (!drawing.subtitle.empty()) text += drawing.subtitle + "\n";
  text += fmt::format("{:{}}|{:{}}| {:>9} {:>6}\n", "rank ", digits + 6, "", width, "idle", "peak");
  for (std::size_t rank = 0; rank < timeline.lanes.size(); ++rank) {
    const Lane& lane = timeline.lanes[rank];
    text += fmt::format("rank {:>{}} |{}| {:>9.6g} {:>6.4g}\n", rank, digits, bar(lane, scale, width), lane.idle,
                        lane.peak);
  }
  text += fmt::format("makespan {:.6g}{}, bubble {:.1f} %\n", timeline.makespan,
                      drawing.unit.empty() ? "" : " " + drawing.unit, 100 * timeline.bubble_fraction);
  return text;
}

}  // namespace cuboid
