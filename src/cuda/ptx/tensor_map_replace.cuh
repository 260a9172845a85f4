// tensormap.replace: changing a field of a tensor map that lies in global memory.
#pragma once

#include <cuda.h>

namespace cadre::ptx {

__device__ __forceinline__ void replace_tensor_map_address(CUtensorMap* map, const void* address) {
  asm volatile("tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;" ::"l"(map),
               "l"(address)
               : "memory");
}

}  // namespace cadre::ptx
