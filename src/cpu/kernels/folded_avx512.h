// f32 products whose multiply-adds broadcast their value of A themselves, from some row of the tile
// on. For kernel files only.
#pragma once

#include "cpu/kernels/simd_avx512.h"
#include "cpu/kernels/widened_op.h"

namespace cadre::cpu {
namespace {

// A broadcast that is part of a multiply-add is no instruction, but a load for every vector of the
// row instead of one for all of them. As assembly, so that sums stay in their registers: GCC moves
// some of them about and spills one.
template <int kRows, int kVectors, int kFirstFolded>
struct FoldedOpF32 : WidenedOp<VecF32, kRows, kVectors> {
  using Reg = VecF32::Reg;
  static constexpr int kFirstFoldedRow = kFirstFolded;
  static Reg multiply_add(Reg acc, Reg a, Reg b) {
    __asm__("vfmadd231ps %1, %2, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
  }
  static Reg multiply_add_folded(Reg acc, const char* a, Reg b) {
    __asm__("vfmadd231ps %1%{1to16%}, %2, %0"
            : "+v"(acc)
            : "m"(*reinterpret_cast<const float*>(a)), "v"(b));
    return acc;
  }
};

}  // namespace
}  // namespace cadre::cpu
