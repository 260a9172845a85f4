// setmaxnreg: moves registers from the producer warpgroup to the consumers. A kernel needs
// __launch_bounds__(threads, 1) and one if/else over the roles, or the compiler ignores it (message
// C7508).
#pragma once

namespace cadre::ptx {

template <int kRegisters>
__device__ __forceinline__ void decrease_registers() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void increase_registers() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace cadre::ptx
