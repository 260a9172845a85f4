// st.global of 16 bytes: through a pointer that was read from memory the compiler knows no more
// than a generic address.
#pragma once

#include <cstdint>

namespace cadre::ptx {

// Stores when `index` is below `limit`, without a branch.
__device__ __forceinline__ void store_global_16_below(void* destination, const uint4& value,
                                                      int index, int limit) {
  asm volatile(
      "{\n"
      ".reg .pred inside;\n"
      "setp.lt.s32 inside, %5, %6;\n"
      "@inside st.global.v4.b32 [%0], {%1, %2, %3, %4};\n"
      "}" ::"l"(destination),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(index), "r"(limit)
      : "memory");
}

}  // namespace cadre::ptx
