// A build without the CUDA toolkit: no tensor is ever in a GPU's memory.
#include "../operation.h"
#include "nccl.h"
#include "shared_gpu.h"

namespace cuboid::detail {

StreamMark mark_of(const Device&) {
  return nullptr;
}

void wait_for(const Device&, const StreamMark&) {}

std::unique_ptr<SharedGpu> make_shared_gpu(int) {
  throw Error(ErrorKind::request, "this build has no CUDA");
}

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator>, const Device&, double) {
  throw Error(ErrorKind::request, "this build has no NCCL");
}

}  // namespace cuboid::detail
