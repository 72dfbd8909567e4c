// cuBLASLt, loaded when the first matrix product is made: half a gigabyte that most runs of the program never touch,
// and that a machine without GPUs need not have. Each function forwards to the library's own.
#include <cublasLt.h>

#include "cuboid/runtime/gpus.h"

#include "runtime/cuda/library.h"

namespace {

void* library() {
  static void* const handle = cuboid::cuda::load_library(
      cuboid::kCublasLtNames,
      "cuBLASLt cannot be loaded: neither libcublasLt.so.13 nor .12 is in the linker's path (see "
      "LD_LIBRARY_PATH) or in /usr/local/cuda/lib64");
  return handle;
}

template <typename Function>
Function* symbol(const char* name) {
  return cuboid::cuda::function_of<Function>(library(), "libcublasLt", name);
}

}  // namespace

// FORWARD(name, (parameters), (arguments)): the function of that name.
#define FORWARD(result, name, parameters, arguments)                \
  result CUBLASWINAPI name parameters {                             \
    static auto* const function = symbol<result parameters>(#name); \
    return function arguments;                                      \
  }

extern "C" {

FORWARD(const char*, cublasLtGetStatusName, (cublasStatus_t status), (status))
FORWARD(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle), (handle))
FORWARD(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t handle), (handle))
FORWARD(cublasStatus_t, cublasLtMatmulDescCreate,
        (cublasLtMatmulDesc_t * desc, cublasComputeType_t compute, cudaDataType_t scale), (desc, compute, scale))
FORWARD(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t desc), (desc))
FORWARD(cublasStatus_t, cublasLtMatmulDescSetAttribute,
        (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes),
        (desc, attribute, value, bytes))
FORWARD(cublasStatus_t, cublasLtMatrixLayoutCreate,
        (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows, uint64_t columns, int64_t stride),
        (layout, type, rows, columns, stride))
FORWARD(cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout), (layout))
FORWARD(cublasStatus_t, cublasLtMatrixLayoutSetAttribute,
        (cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, const void* value, size_t bytes),
        (layout, attribute, value, bytes))
FORWARD(cublasStatus_t, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference), (preference))
FORWARD(cublasStatus_t, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference), (preference))
FORWARD(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
        (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
         size_t bytes),
        (preference, attribute, value, bytes))
FORWARD(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
         cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
         cublasLtMatmulHeuristicResult_t* results, int* found),
        (handle, desc, a, b, c, d, preference, wanted, results, found))
FORWARD(cublasStatus_t, cublasLtMatmul,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
         cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
         const void* c, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
         const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes, cudaStream_t stream),
        (handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm, workspace,
         workspace_bytes, stream))

}  // extern "C"
