// The communicator of ranks with a GPU each: collectives on device memory by NCCL, everything else (control messages,
// splits, barriers, failures, deadlines) by the communicator underneath, which also brings NCCL's ids around.
#pragma once

#include <memory>

#include "cuboid/comm/communicator.h"

namespace cuboid::detail {

/// Collective over `host`. The result keeps the contract of communicator.h, but for device memory: sums are added in
/// NCCL's order; calls that differ among members end with the deadline, as NCCL does not compare them; and messages go
/// through communicators of two members in one direction only, which is what the grid's channels are.
/// @throws Error{request} that names host ranks and device where two members use one GPU
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host, const Device& device,
                                                     double deadline);

}  // namespace cuboid::detail
