// What a run says about its pipeline: how layers were split and why, what the schedule will idle, and what it did.
#pragma once

#include "cuboid/train/trainer.h"

namespace cuboid::launch {

/// Lines before the first step; nothing for a pipeline of one rank.
void announce_pipeline(const RunConfig& run, const RunStart& start);

/// Lines of the summary: "bubble            31.2 % (schedule 25.0 % at the measured times, predicted 24.1 %)\n".
std::string bubble_summary(const RunStart& start, const TrainResult& result);

}  // namespace cuboid::launch
