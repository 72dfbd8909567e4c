// What profiles need of a GPU's runtime: events with times, and NVTX ranges.
#include <nvtx3/nvToolsExt.h>

#include "cuboid/runtime/profiler_range.h"

#include "gpu.h"
#include "laps.h"

namespace cuboid {
namespace {

class GpuLaps final : public Stopwatch::Laps {
 public:
  GpuLaps(const Device& device, int most) : device_(device), events_(static_cast<std::size_t>(most), nullptr) {
    for (cudaEvent_t& event : events_) CUBOID_CUDA(cudaEventCreateWithFlags(&event, cudaEventDefault));
  }
  ~GpuLaps() override {
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  }

  void lap() override { CUBOID_CUDA(cudaEventRecord(events_.at(made_++), cuda::gpu_of(device_).compute().get())); }

  std::vector<double> seconds() const override {
    device_.synchronize();
    std::vector<double> between;
    for (std::size_t i = 1; i < made_; ++i) {
      float milliseconds = 0;
      CUBOID_CUDA(cudaEventElapsedTime(&milliseconds, events_[i - 1], events_[i]));
      between.push_back(1e-3 * milliseconds);
    }
    return between;
  }

 private:
  Device device_;
  std::vector<cudaEvent_t> events_;
  std::size_t made_ = 0;
};

nvtxDomainHandle_t domain() {
  static nvtxDomainHandle_t const made = nvtxDomainCreateA("cuboid");
  return made;
}

}  // namespace

namespace detail {

std::unique_ptr<Stopwatch::Laps> make_gpu_laps(const Device& device, int most) {
  return std::make_unique<GpuLaps>(device, most);
}

}  // namespace detail

ProfilerRange::ProfilerRange(const std::string& name) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name.c_str();
  nvtxDomainRangePushEx(domain(), &attributes);
}

ProfilerRange::~ProfilerRange() {
  nvtxDomainRangePop(domain());
}

}  // namespace cuboid
