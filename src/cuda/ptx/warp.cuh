// One lane that speaks for its warp.
#pragma once

#include "cuda/ptx/address.cuh"

namespace cadre::ptx {

// True for one lane, once all lanes of the warp have come here. A shuffle, since __syncwarp
// vanishes where the compiler knows that the lanes run together, and racecheck then misses the
// order.
__device__ __forceinline__ bool first_of_warp() {
  const int lane = static_cast<int>(thread_index() % 32);
  return uniform(lane) == lane;
}

}  // namespace cadre::ptx
