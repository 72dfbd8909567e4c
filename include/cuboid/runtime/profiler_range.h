// Names for what a thread does, as profilers show them beside the work of the GPU (NVTX, read by Nsight Systems).
// Builds without CUDA have none, and with CUDA they cost next to nothing unless a profiler listens.
#pragma once

#include <string>

namespace cuboid {

/// A stretch of this thread's time, from here to the end of the scope. Ranges nest.
class ProfilerRange {
 public:
  explicit ProfilerRange(const std::string& name);
  ~ProfilerRange();
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

}  // namespace cuboid
