#include "cuboid/runtime/gpus.h"

#include <cstdio>
#include <cstring>

#include "gpu.h"

namespace cuboid {
namespace {

// As nvidia-smi prints it. CUDA says "MIG" in the name of a part of a GPU.
std::string uuid_text(const char* name, const cudaUUID_t& uuid) {
  std::string text = std::strstr(name, " MIG ") != nullptr ? "MIG-" : "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

}  // namespace

GpuReport find_gpus() {
  GpuReport report;
  report.built = true;
  cudaDriverGetVersion(&report.driver_version);
  cudaRuntimeGetVersion(&report.runtime_version);
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    (void)cudaGetLastError();
    report.problem = std::string("cudaGetDeviceCount: ") + cudaGetErrorString(status);
    return report;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    CUBOID_CUDA(cudaGetDeviceProperties(&properties, i));
    report.gpus.push_back({i, properties.name, uuid_text(properties.name, properties.uuid),
                           static_cast<std::int64_t>(properties.totalGlobalMem), properties.major, properties.minor});
  }
  if (count == 0) report.problem = "the driver reports no GPU";
  return report;
}

Device Device::cuda(int gpu) {
  return Device(std::make_shared<State>(State{.kind = DeviceKind::cuda,
                                              .memory = std::make_shared<cuda::Gpu>(gpu),
                                              .account = std::make_shared<MemoryAccount>()}));
}

}  // namespace cuboid
