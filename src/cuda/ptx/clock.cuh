// Where and when a thread runs.
#pragma once

#include <cstdint>

namespace cadre::ptx {

// Nanoseconds, the same clock on every multiprocessor; it may advance in larger steps.
__device__ __forceinline__ uint64_t global_time_ns() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)::"memory");
  return time;
}

__device__ __forceinline__ uint32_t multiprocessor() {
  uint32_t number;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
  return number;
}

}  // namespace cadre::ptx
