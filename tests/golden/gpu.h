// Which GPU the harness's runs use.
#pragma once

#include <vector>

namespace cuboid::golden {

/// True: all ranks share CUDA's first GPU.
inline bool g_on_gpu = false;

inline std::vector<int> gpus_of(int ranks) {
  return g_on_gpu ? std::vector<int>(static_cast<std::size_t>(ranks), 0) : std::vector<int>();
}

}  // namespace cuboid::golden
