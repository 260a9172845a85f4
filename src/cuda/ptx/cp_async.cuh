// cp.async: bytes from global to shared memory without a register, sm_80 and up.
#pragma once

#include <cstdint>

namespace cadre::ptx {

__device__ __forceinline__ void cp_async_16(uint32_t destination, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(destination), "l"(source)
               : "memory");
}

__device__ __forceinline__ void cp_async_4(uint32_t destination, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(destination), "l"(source)
               : "memory");
}

// Copies the first `bytes` (0 to 16) and fills the rest with zeros; with 0 nothing is read.
__device__ __forceinline__ void cp_async_16(uint32_t destination, const void* source, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(bytes)
               : "memory");
}

// Copies 16 bytes when `index` is below `limit`, else fills them with zeros and reads nothing. The
// comparison stands here so that a predicate and no register holds its result.
__device__ __forceinline__ void cp_async_16_below(uint32_t destination, const void* source,
                                                  int index, int limit) {
  asm volatile(
      "{\n"
      ".reg .pred outside;\n"
      "setp.ge.s32 outside, %2, %3;\n"
      "cp.async.cg.shared.global [%0], [%1], 16, outside;\n"
      "}"
      :
      : "r"(destination), "l"(source), "r"(index), "r"(limit)
      : "memory");
}

// The same for 4 bytes.
__device__ __forceinline__ void cp_async_4_below(uint32_t destination, const void* source,
                                                 int index, int limit) {
  asm volatile(
      "{\n"
      ".reg .pred outside;\n"
      "setp.ge.s32 outside, %2, %3;\n"
      "cp.async.ca.shared.global [%0], [%1], 4, outside;\n"
      "}"
      :
      : "r"(destination), "l"(source), "r"(index), "r"(limit)
      : "memory");
}

// The same with two bounds: zeros when either index reaches its limit.
__device__ __forceinline__ void cp_async_16_below(uint32_t destination, const void* source,
                                                  int index, int limit, int second_index,
                                                  int second_limit) {
  asm volatile(
      "{\n"
      ".reg .pred beyond, outside;\n"
      "setp.ge.s32 beyond, %4, %5;\n"
      "setp.ge.or.s32 outside, %2, %3, beyond;\n"
      "cp.async.cg.shared.global [%0], [%1], 16, outside;\n"
      "}"
      :
      : "r"(destination), "l"(source), "r"(index), "r"(limit), "r"(second_index), "r"(second_limit)
      : "memory");
}

// Arrives on an mbarrier, which counts this arrival, once all copies of this thread so far have
// landed.
__device__ __forceinline__ void cp_async_arrive(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Waits for all of this thread's copies, committed or not.
__device__ __forceinline__ void cp_async_wait_all() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace cadre::ptx
