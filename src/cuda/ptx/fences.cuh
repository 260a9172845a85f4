// Fences between the generic proxy (ordinary loads and stores) and the async proxy (TMA, wgmma
// operands).
#pragma once

namespace cadre::ptx {

// Each thread that wrote shared memory which TMA or wgmma reads next, before the barrier that hands
// it over.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A tensor map that was written in global memory by this grid or an earlier one, before its first
// use.
__device__ __forceinline__ void fence_tensor_map_acquire(const void* tensor_map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(tensor_map)
               : "memory");
}

__device__ __forceinline__ void fence_tensor_map_release() {
  asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
}

}  // namespace cadre::ptx
