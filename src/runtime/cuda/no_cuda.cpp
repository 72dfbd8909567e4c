// A build without the CUDA toolkit: no GPU is ever found, and so no device of that kind made.
#include "cuboid/runtime/device.h"
#include "cuboid/runtime/gpus.h"
#include "cuboid/runtime/profiler_range.h"

#include "laps.h"

namespace cuboid {

GpuReport find_gpus() {
  GpuReport report;
  report.problem = "this build has no CUDA (nvcc was not found when it was configured, or -DCUBOID_CUDA=off)";
  return report;
}

Device Device::cuda(int) {
  throw Error(ErrorKind::request, find_gpus().problem);
}

std::unique_ptr<Stopwatch::Laps> detail::make_gpu_laps(const Device&, int) {
  throw Error(ErrorKind::request, find_gpus().problem);
}

ProfilerRange::ProfilerRange(const std::string&) {}
ProfilerRange::~ProfilerRange() = default;

}  // namespace cuboid
