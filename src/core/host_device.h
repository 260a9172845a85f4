// CADRE_HOST_DEVICE marks code that a host compiler and nvcc both compile.
#pragma once

#if defined(__CUDACC__)
#define CADRE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define CADRE_HOST_DEVICE inline
#endif
