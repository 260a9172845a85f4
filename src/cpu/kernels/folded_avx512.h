// f32 products whose multiply-adds broadcast their value of A themselves, from some row of the tile
// on. For kernel files only.
#pragma once

#include "cpu/kernels/simd_avx512.h"
#include "cpu/kernels/widened_op.h"

namespace cadre::cpu {
namespace {

// A broadcast that is part of a multiply-add is no instruction, but a load for every vector of the
// row instead of one for all of them. Rows of A are interleaved, so that a step of k reads one or
// two lines of it, with addresses of one byte in each instruction.
//
// As assembly, in this order, so that sums stay in their registers: GCC moves some of them about
// and spills one. Loads claim to need what they replace, since otherwise the last one of a loop
// ends up in another register than the first one of the next round expects.
template <int kRows, int kVectors, int kFirstFolded>
struct FoldedOpF32 : WidenedOp<VecF32, kRows, kVectors> {
  using Reg = VecF32::Reg;
  static constexpr int kFirstFoldedRow = kFirstFolded;
  static constexpr bool kInterleavesA = true;
  static void reload_b(Reg& b, const char* p) {
    __asm__ volatile("vmovups %1, %0" : "+v"(b) : "m"(*reinterpret_cast<const Reg*>(p)));
  }
  static void rebroadcast_a(Reg& a, const char* p) {
    __asm__ volatile("vbroadcastss %1, %0" : "+v"(a) : "m"(*reinterpret_cast<const float*>(p)));
  }
  static Reg multiply_add(Reg acc, Reg a, Reg b) {
    __asm__ volatile("vfmadd231ps %1, %2, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
  }
  static Reg multiply_add_folded(Reg acc, const char* a, Reg b) {
    __asm__ volatile("vfmadd231ps %1%{1to16%}, %2, %0"
                     : "+v"(acc)
                     : "m"(*reinterpret_cast<const float*>(a)), "v"(b));
    return acc;
  }
};

}  // namespace
}  // namespace cadre::cpu
