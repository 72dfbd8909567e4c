#include <algorithm>
#include <cmath>
#include <vector>

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

// The lanes, and each rank's idle time and peak: beside them, or under them where they go on below.
std::string rows_of(const Timeline& timeline, double scale, std::size_t width, int columns) {
  const std::size_t digits = std::to_string(timeline.lanes.size()).size();
  const std::size_t frame = digits + 8;     // "rank 7 |" and "|"
  constexpr std::size_t kFigures = 17;      // idle and peak
  constexpr std::size_t kLeastColumns = 8;  // of a part of the picture
  const auto page = static_cast<std::size_t>(columns > 0 ? columns : 0);
  const bool whole = page == 0 || frame + width + kFigures <= page;
  std::size_t part = whole ? width : std::max(kLeastColumns, page > frame ? page - frame : 0);
  // Pages end with a unit of time, where actions of whole units do.
  const auto unit = static_cast<std::size_t>(std::max(1LL, std::llround(scale)));
  if (!whole && part > unit) part -= part % unit;
  std::vector<std::string> bars;
  for (const Lane& lane : timeline.lanes) bars.push_back(bar(lane, scale, width));
  std::string text;
  if (whole) text += fmt::format("{:{}}|{:{}}| {:>9} {:>6}\n", "rank ", digits + 6, "", width, "idle", "peak");
  for (std::size_t from = 0; from < width; from += part) {
    if (from > 0) text += "\n";
    for (std::size_t rank = 0; rank < bars.size(); ++rank) {
      text += fmt::format("rank {:>{}} |{}|", rank, digits, bars[rank].substr(from, part));
      const Lane& lane = timeline.lanes[rank];
      text += whole ? fmt::format(" {:>9.6g} {:>6.4g}\n", lane.idle, lane.peak) : "\n";
    }
  }
  if (whole) return text;
  text += fmt::format("\n{:{}} {:>9} {:>6}\n", "", digits + 5, "idle", "peak");
  for (std::size_t rank = 0; rank < timeline.lanes.size(); ++rank) {
    const Lane& lane = timeline.lanes[rank];
    text += fmt::format("rank {:>{}} {:>9.6g} {:>6.4g}\n", rank, digits, lane.idle, lane.peak);
  }
  return text;
}

}  // namespace

std::string draw_text(const Drawing& drawing, int columns) {
  const Timeline timeline = make_timeline(drawing);
  const double scale = columns_per_time(timeline);
  const auto width = static_cast<std::size_t>(std::llround(timeline.makespan * scale));
  std::string text = drawing.title + "\n";
  if (!drawing.subtitle.empty()) text += drawing.subtitle + "\n";
  text += rows_of(timeline, scale, width, columns);
  text += fmt::format("makespan {:.6g}{}, bubble {:.1f} %\n", timeline.makespan,
                      drawing.unit.empty() ? "" : " " + drawing.unit, 100 * timeline.bubble_fraction);
  return text;
}

}  // namespace cuboid
