#include <algorithm>

#include "cuboid/runtime/gpus.h"

#include "machine.h"

int cuboid::ladder::gpus_for_nccl() {
  return std::max(1, static_cast<int>(find_gpus().gpus.size()));
}
