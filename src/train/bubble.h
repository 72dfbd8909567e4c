// The bubble that a schedule has at the times its actions really took: beside the measured one it tells how much of the
// idle time is the schedule's and how much has other causes. Private to train/.
#pragma once

#include <vector>

#include "cuboid/comm/communicator.h"
#include "cuboid/parallel/pipeline/simulate.h"

namespace cuboid {

/// Mean time of each stage's F, B, I and W over the world's spans. Collective.
PipelineCosts mean_costs(const std::vector<Span>& spans, int stages, Communicator& world, const Device& device);

class BubbleMeter {
 public:
  explicit BubbleMeter(const Schedule& schedule) : schedule_(schedule) {}
  /// Bubble fraction of the schedule at the mean times of one run of it. Collective; the result is on rank 0.
  double schedule_bubble(const std::vector<Span>& spans, Communicator& world, const Device& device) const;

 private:
  const Schedule& schedule_;
};

}  // namespace cuboid
