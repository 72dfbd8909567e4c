// Which GPUs the harness's runs use.
#pragma once

#include <numeric>
#include <vector>

namespace cuboid::golden {

enum class Gpus {
  none,    ///< the CPU
  shared,  ///< all ranks on the first one
  own,     ///< one a rank
};
inline Gpus g_gpus = Gpus::none;

/// As RankOptions has them.
inline std::vector<int> gpus_of(int ranks) {
  std::vector<int> gpus(g_gpus == Gpus::none ? 0 : static_cast<std::size_t>(ranks), 0);
  if (g_gpus == Gpus::own) std::iota(gpus.begin(), gpus.end(), 0);
  return gpus;
}

}  // namespace cuboid::golden
