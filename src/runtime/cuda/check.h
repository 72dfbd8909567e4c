// Every call of the CUDA runtime goes through one check that carries the failing expression.
#pragma once

#include <cuda_runtime.h>

namespace cuboid::cuda {

/// @throws Error{failed} that names the expression, CUDA's words for the error and the place; std::bad_alloc never.
void check(cudaError_t status, const char* expression, const char* file, int line);

}  // namespace cuboid::cuda

/// CUBOID_CUDA(cudaStreamSynchronize(stream)): throws Error{failed} if the call reports an error.
#define CUBOID_CUDA(expression) ::cuboid::cuda::check((expression), #expression, __FILE__, __LINE__)
