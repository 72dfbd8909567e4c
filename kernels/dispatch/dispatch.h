// Where a kernel meets its device: each function of kernels.h checks its arguments, then the device's backend runs it.
// Internal to kernels/dispatch.
#pragma once

#include "kernels/check.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/cuda.h"
#include "kernels/meta/meta.h"

namespace cuboid::kernels {

/// Runs a kernel that is bound by memory; `cpu` or `cuda` is called with the device and the arguments.
template <typename Cpu, typename Cuda, typename... Arguments>
void run(const Device& device, const Operands& operands, Cpu&& cpu, Cuda&& cuda, Arguments&&... arguments) {
  switch (device.kind()) {
    case DeviceKind::cpu:
      return cpu(device, std::forward<Arguments>(arguments)...);
    case DeviceKind::cuda:
      return cuda(device, std::forward<Arguments>(arguments)...);
    case DeviceKind::meta:
      return meta::other(device, operands);
  }
}

}  // namespace cuboid::kernels
