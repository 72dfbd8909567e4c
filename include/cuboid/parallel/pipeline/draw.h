// Pictures of a pipeline step: a text grid for terminals and an SVG Gantt chart. They draw spans, simulated or
// measured.
#pragma once

#include <string>
#include <vector>

#include "cuboid/value/schedule.h"

namespace cuboid {

struct Drawing {
  std::string title;                     ///< "1f1b · 4 ranks · 8 micro-batches"
  std::string subtitle;                  ///< a second line, or empty
  std::vector<std::vector<Span>> spans;  ///< each rank's actions by time; those that do not compute may be left out
  double freed_by_input_gradient = 0;    ///< as in PipelineCosts: for the memory curves
  bool arrows = false;                   ///< SVG: a line from each result to its use on another rank
  std::string unit;                      ///< of the times: "s", "ms"; empty: none
};

/// One line a rank, time to the right; every action is as wide as it is long and starts with its cell ("2B7"); idle
/// time is dots. Overlapped pairs share their time: the F is drawn, then the B or I. Ends with idle and peak of each
/// rank. Over 0, `columns` is the width of the page: a longer picture goes on below.
std::string draw_text(const Drawing& drawing, int columns = 0);

/// A stand-alone SVG document: a lane a rank, colours by kind and shade by virtual stage, micro-batch numbers where
/// they fit, idle time hatched, legend, time axis, and under it each rank's curve of activations held (in micro-batches
/// of one stage). Every box has its cell and times as a tooltip.
std::string draw_svg(const Drawing& drawing);

}  // namespace cuboid
