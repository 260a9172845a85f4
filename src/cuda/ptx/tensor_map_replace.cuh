// tensormap.replace: changing a field of a tensor map that lies in global memory.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace cadre::ptx {

__device__ __forceinline__ void replace_tensor_map_address(CUtensorMap* map, const void* address) {
  asm volatile("tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;" ::"l"(map),
               "l"(address)
               : "memory");
}

// Dim kDim, innermost 0: at least 1.
template <int kDim>
__device__ __forceinline__ void replace_tensor_map_dim(CUtensorMap* map, uint32_t size) {
  asm volatile("tensormap.replace.tile.global_dim.global.b1024.b32 [%0], %2, %1;" ::"l"(map),
               "r"(size), "n"(kDim)
               : "memory");
}

// The distance of dim kDim + 1 in bytes: a multiple of 16 below 2^40.
template <int kDim>
__device__ __forceinline__ void replace_tensor_map_stride(CUtensorMap* map, uint64_t bytes) {
  asm volatile("tensormap.replace.tile.global_stride.global.b1024.b64 [%0], %2, %1;" ::"l"(map),
               "l"(bytes), "n"(kDim)
               : "memory");
}

}  // namespace cadre::ptx
