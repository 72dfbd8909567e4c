// Marks a function as callable on the host and on a CUDA device. Plain C++ compilers see nothing.
#pragma once

#if defined(__CUDACC__)
#define CUBOID_HD __host__ __device__
#else
#define CUBOID_HD
#endif
