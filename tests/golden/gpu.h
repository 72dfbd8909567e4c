// Which GPU the harness's runs use.
#pragma once

namespace cuboid::golden {

/// CUDA's number of the GPU; -1, the default: the CPU.
inline int g_gpu = -1;

}  // namespace cuboid::golden
