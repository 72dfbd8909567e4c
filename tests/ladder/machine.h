// How many GPUs the tests of NCCL's communicator use: those of the machine, or emulated ones.
#pragma once

namespace cuboid::ladder {

int gpus_for_nccl();

}  // namespace cuboid::ladder
