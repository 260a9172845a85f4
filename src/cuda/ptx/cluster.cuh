// Thread-block clusters: the rank of a CTA and the barrier over all threads of the cluster.
#pragma once

#include <cstdint>

namespace cadre::ptx {

__device__ __forceinline__ uint32_t cluster_cta_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

}  // namespace cadre::ptx
