// cp.async: 16 bytes from global to shared memory without a register, sm_80 and up.
#pragma once

#include <cstdint>

namespace cadre::ptx {

__device__ __forceinline__ void cp_async_16(uint32_t destination, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(destination), "l"(source)
               : "memory");
}

// Copies the first `bytes` (0 to 16) and fills the rest with zeros; with 0 nothing is read.
__device__ __forceinline__ void cp_async_16(uint32_t destination, const void* source, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace cadre::ptx
