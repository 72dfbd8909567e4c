// A communicator of ranks that do not exist: on the meta device it says what a rank would send, and completes at once.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cuboid/comm/communicator.h"

namespace cuboid {

enum class Collective : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all, broadcast };
const char* name_of(Collective collective);

/// Told about every collective of more than one rank. Bytes as nccl-tests counts size: of the whole buffer; the unsplit
/// side of reduce_scatter (input) and all_gather (output).
using CollectiveObserver = std::function<void(Collective collective, double bytes, DType dtype)>;

/// Member `rank` of `size`. Messages are dropped and received as tensors of the device, which must be a meta device.
/// Splitting it throws std::logic_error: nobody knows what the other members would say.
std::unique_ptr<Communicator> make_meta_communicator(const Device& device, int rank, int size, const std::string& name,
                                                     CollectiveObserver observer);

}  // namespace cuboid
