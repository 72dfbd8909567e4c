#include "cuboid/runtime/stopwatch.h"

#include <chrono>

#include "cuda/laps.h"

namespace cuboid {
namespace {

class HostLaps final : public Stopwatch::Laps {
 public:
  explicit HostLaps(int most) { at_.reserve(static_cast<std::size_t>(most)); }
  void lap() override { at_.push_back(std::chrono::steady_clock::now()); }
  std::vector<double> seconds() const override {
    std::vector<double> between;
    for (std::size_t i = 1; i < at_.size(); ++i) {
      between.push_back(std::chrono::duration<double>(at_[i] - at_[i - 1]).count());
    }
    return between;
  }

 private:
  std::vector<std::chrono::steady_clock::time_point> at_;
};

}  // namespace

Stopwatch::Stopwatch(const Device& device, int most) {
  if (device.kind() == DeviceKind::cuda) {
    laps_ = detail::make_gpu_laps(device, most);
  } else {
    laps_ = std::make_unique<HostLaps>(most);
  }
}

Stopwatch::~Stopwatch() = default;

void Stopwatch::lap() {
  laps_->lap();
}

std::vector<double> Stopwatch::seconds() const {
  return laps_->seconds();
}

}  // namespace cuboid
