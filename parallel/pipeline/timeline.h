// What both drawings need to know of a set of spans. Internal to parallel/pipeline.
#pragma once

#include <vector>

#include "cuboid/parallel/pipeline/draw.h"

namespace cuboid::pipeline {

/// Activations held from `time` on.
struct Level {
  double time = 0;
  double activations = 0;
};

struct Lane {
  std::vector<Span> spans;    ///< what takes time, from 0 on; by begin
  std::vector<Level> levels;  ///< by time; starts and ends at 0 activations
  double idle = 0;
  double peak = 0;
};

struct Timeline {
  std::vector<Lane> lanes;
  double makespan = 0;  ///< from the first begin to the last end
  double shortest = 0;  ///< duration of the shortest computing action; 0: none
  double bubble_fraction = 0;
  double peak = 0;         ///< of all lanes
  int virtual_stages = 1;  ///< most stages on one rank
};

Timeline make_timeline(const Drawing& drawing);

}  // namespace cuboid::pipeline
