// NCCL, loaded when the first communicator is made: runs on the CPU or on one GPU never touch it. Each function
// forwards to the library's own.
#include <nccl.h>

#include "cuboid/runtime/gpus.h"

#include "runtime/cuda/library.h"

namespace {

void* library() {
  static void* const handle = cuboid::cuda::load_library(
      cuboid::kNcclNames,
      "NCCL cannot be loaded: libnccl.so.2 is neither in the linker's path (see LD_LIBRARY_PATH) nor "
      "in /usr/local/cuda/lib64");
  return handle;
}

template <typename Function>
Function* symbol(const char* name) {
  return cuboid::cuda::function_of<Function>(library(), "libnccl", name);
}

}  // namespace

// FORWARD(name, (parameters), (arguments)): the function of that name.
#define FORWARD(result, name, parameters, arguments)                \
  result name parameters {                                          \
    static auto* const function = symbol<result parameters>(#name); \
    return function arguments;                                      \
  }

extern "C" {

FORWARD(const char*, ncclGetErrorString, (ncclResult_t status), (status))
FORWARD(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id), (id))
FORWARD(ncclResult_t, ncclCommInitRankConfig,
        (ncclComm_t * comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config), (comm, size, id, rank, config))
FORWARD(ncclResult_t, ncclCommDestroy, (ncclComm_t comm), (comm))
FORWARD(ncclResult_t, ncclCommAbort, (ncclComm_t comm), (comm))
FORWARD(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t* state), (comm, state))
FORWARD(ncclResult_t, ncclGroupStart, (), ())
FORWARD(ncclResult_t, ncclGroupEnd, (), ())
FORWARD(ncclResult_t, ncclAllReduce,
        (const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
         cudaStream_t stream),
        (in, out, count, type, op, comm, stream))
FORWARD(ncclResult_t, ncclReduceScatter,
        (const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
         cudaStream_t stream),
        (in, out, count, type, op, comm, stream))
FORWARD(ncclResult_t, ncclAllGather,
        (const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream),
        (in, out, count, type, comm, stream))
FORWARD(ncclResult_t, ncclBroadcast,
        (const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream),
        (in, out, count, type, root, comm, stream))
FORWARD(ncclResult_t, ncclSend,
        (const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream),
        (from, count, type, peer, comm, stream))
FORWARD(ncclResult_t, ncclRecv,
        (void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream),
        (to, count, type, peer, comm, stream))

}  // extern "C"
