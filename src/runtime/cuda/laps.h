// A stopwatch's laps on a GPU: events with times, on the device's compute stream.
#pragma once

#include "cuboid/runtime/stopwatch.h"

namespace cuboid::detail {

/// @pre device.kind() is DeviceKind::cuda
std::unique_ptr<Stopwatch::Laps> make_gpu_laps(const Device& device, int most);

}  // namespace cuboid::detail
