// ldmatrix: 8x8 matrices of 16-bit elements from shared memory to a warp's registers; the inverse
// of stmatrix.cuh.
#pragma once

#include <cstdint>

namespace cadre::ptx {

__device__ __forceinline__ void ldmatrix_x4_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Two matrices; lanes 0 to 15 point at their rows.
__device__ __forceinline__ void ldmatrix_x2_transposed(uint32_t (&r)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

}  // namespace cadre::ptx
