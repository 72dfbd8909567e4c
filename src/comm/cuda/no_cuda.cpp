// A build without the CUDA toolkit: no tensor is ever in a GPU's memory.
#include "../operation.h"
#include "shared_gpu.h"

namespace cuboid::detail {

StreamMark mark_of(const Device&) {
  return nullptr;
}

void wait_for(const Device&, const StreamMark&) {}

std::unique_ptr<SharedGpu> make_shared_gpu(int) {
  throw Error(ErrorKind::request, "this build has no CUDA");
}

}  // namespace cuboid::detail
