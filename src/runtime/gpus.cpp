#include "cuboid/runtime/gpus.h"

#include <cstdlib>

namespace cuboid {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

std::string describe_missing_gpus(const GpuReport& report) {
  if (!report.built) return report.problem;
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::string text = report.problem;
  text += report.driver_version == 0 ? "; no driver was found"
                                     : "; the driver supports CUDA " + version_text(report.driver_version);
  text += ", the program was built with CUDA " + version_text(report.runtime_version);
  text += visible == nullptr ? "; CUDA_VISIBLE_DEVICES is not set"
                             : "; CUDA_VISIBLE_DEVICES is \"" + std::string(visible) + "\"";
  return text;
}

}  // namespace cuboid
