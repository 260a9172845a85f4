// stmatrix: four 8x8 matrices of 16-bit elements from a warp's registers to shared memory. Lane l
// gives the address of row l % 8 of matrix l / 8; register i holds matrix i in the accumulator's
// layout (row lane/4, columns 2(lane%4)).
#pragma once

#include <cstdint>

namespace cadre::ptx {

__device__ __forceinline__ void stmatrix_x4(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// The same with each matrix transposed on the way: the address of lane l is then that of column l
// % 8.
__device__ __forceinline__ void stmatrix_x4_transposed(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}

// Two matrices; lanes 0 to 15 point at their rows.
__device__ __forceinline__ void stmatrix_x2_transposed(uint32_t address, const uint32_t (&r)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address),
               "r"(r[0]), "r"(r[1])
               : "memory");
}

}  // namespace cadre::ptx
