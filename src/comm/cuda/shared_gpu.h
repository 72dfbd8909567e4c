// Collectives between ranks that are threads of one process and share a GPU: their tensors are in one memory, so that
// device copies and a reduction kernel do it. For tests and debugging; ranks with GPUs of their own use NCCL.
#pragma once

#include <memory>

#include "cuboid/runtime/device.h"

namespace cuboid::detail {

class Operation;

/// A place in a rank's compute stream: an event. Empty on the host.
using StreamMark = std::shared_ptr<void>;

/// What is queued up to now on the device's compute stream.
StreamMark mark_of(const Device& device);
/// What is queued there from now on starts after the mark. The host does not wait.
void wait_for(const Device& device, const StreamMark& mark);

/// The stream on which a group's operations run.
class SharedGpu {
 public:
  virtual ~SharedGpu() = default;
  /// Queues the operation behind the marks of all its members. Returns the mark of its end.
  virtual StreamMark run(const Operation& operation) = 0;
};

/// Most members of a group on one GPU: their pointers are a kernel's arguments.
inline constexpr int kMostOnOneGpu = 64;

/// Of the device that is current on this thread. @throws Error{request} for more than kMostOnOneGpu members
std::unique_ptr<SharedGpu> make_shared_gpu(int members);

}  // namespace cuboid::detail
