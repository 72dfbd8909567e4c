// The GPUs that this process may use, and what was looked for where there are none. Not here: what runs on them
// (device.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cuboid {

struct Gpu {
  int ordinal = 0;  ///< CUDA's number in this process, after CUDA_VISIBLE_DEVICES
  std::string name;
  /// "GPU-…" as nvidia-smi prints it ("MIG-…" for a part of a GPU): the same in every process of the host
  std::string uuid;
  std::int64_t memory_bytes = 0;
  int major = 0, minor = 0;  ///< compute capability
};

struct GpuReport {
  bool built = false;       ///< this build can use GPUs
  int driver_version = 0;   ///< the CUDA version that the driver supports, 1000·major + 10·minor; 0: no driver
  int runtime_version = 0;  ///< the CUDA version that the program was built with, likewise
  std::vector<Gpu> gpus;
  std::string problem;  ///< why there are none; empty where there are some
};

/// Asks the CUDA runtime. Starts nothing on any GPU.
GpuReport find_gpus();

/// "what was looked for and found", for a request that needs GPUs and cannot have them.
std::string describe_missing_gpus(const GpuReport& report);

/// CUDA's libraries that are loaded when they are first needed: the names tried, in this order.
inline constexpr const char* kCublasLtNames[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                                 "/usr/local/cuda/lib64/libcublasLt.so.13"};
inline constexpr const char* kNcclNames[] = {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"};

}  // namespace cuboid
