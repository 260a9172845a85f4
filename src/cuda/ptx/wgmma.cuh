// wgmma: m64nNk16 products of bf16 or f16 and m64nNk32 products of FP8 in fp32, N = 16 to 256 in
// steps of 16, both operands in shared memory. Order of use: wgmma_fence, wgmma_at<N>...,
// wgmma_commit, wgmma_wait. The accumulators may not be touched in between.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

namespace cadre::ptx {

enum class Major { kK = 0, kMN = 1 };  // K-major (rows of K) or MN-major (rows of M or N)

// Operand tiles are rows of 128 bytes under the 128-byte swizzle, 1024-byte aligned.
// K-major: 128 bytes of K a row, leading offset unused, 8 rows 1024 bytes apart; a step is +32
// bytes.
// MN-major: 64 of M/N a row, k rows below each other, next 64 of M/N `leading_bytes` further; a k16
// step is +2048.
// The high word is the same for both: 8 rows are 1024 bytes (stride offset 64 in bits 32 to 45),
// swizzle mode 1 in 62.
__device__ __forceinline__ uint32_t wgmma_descriptor_low(uint32_t address, uint32_t leading_bytes) {
  return (leading_bytes >> 4 << 16) | ((address & 0x3ffff) >> 4);
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// After the wait for them: the compiler reads the results no earlier.
template <int kCount>
__device__ __forceinline__ void wgmma_results(float (&results)[kCount]) {
#pragma unroll
  for (float& result : results) asm volatile("" : "+f"(result)::"memory");
}

template <int kN>
struct Wgmma;

// The first operands %0... of an asm statement, and the accumulators bound to them, in steps of 8
// (N in steps of 16).
// clang-format off
#define CADRE_REGS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define CADRE_REGS_16 CADRE_REGS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define CADRE_REGS_24 CADRE_REGS_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define CADRE_REGS_32 CADRE_REGS_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define CADRE_REGS_40 CADRE_REGS_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define CADRE_REGS_48 CADRE_REGS_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define CADRE_REGS_56 CADRE_REGS_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define CADRE_REGS_64 CADRE_REGS_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define CADRE_REGS_72 CADRE_REGS_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define CADRE_REGS_80 CADRE_REGS_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define CADRE_REGS_88 CADRE_REGS_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define CADRE_REGS_96 CADRE_REGS_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define CADRE_REGS_104 CADRE_REGS_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define CADRE_REGS_112 CADRE_REGS_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define CADRE_REGS_120 CADRE_REGS_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define CADRE_REGS_128 CADRE_REGS_120 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define CADRE_OUT_8_AT(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define CADRE_OUT_8 CADRE_OUT_8_AT(0)
#define CADRE_OUT_16 CADRE_OUT_8, CADRE_OUT_8_AT(8)
#define CADRE_OUT_24 CADRE_OUT_16, CADRE_OUT_8_AT(16)
#define CADRE_OUT_32 CADRE_OUT_24, CADRE_OUT_8_AT(24)
#define CADRE_OUT_40 CADRE_OUT_32, CADRE_OUT_8_AT(32)
#define CADRE_OUT_48 CADRE_OUT_40, CADRE_OUT_8_AT(40)
#define CADRE_OUT_56 CADRE_OUT_48, CADRE_OUT_8_AT(48)
#define CADRE_OUT_64 CADRE_OUT_56, CADRE_OUT_8_AT(56)
#define CADRE_OUT_72 CADRE_OUT_64, CADRE_OUT_8_AT(64)
#define CADRE_OUT_80 CADRE_OUT_72, CADRE_OUT_8_AT(72)
#define CADRE_OUT_88 CADRE_OUT_80, CADRE_OUT_8_AT(80)
#define CADRE_OUT_96 CADRE_OUT_88, CADRE_OUT_8_AT(88)
#define CADRE_OUT_104 CADRE_OUT_96, CADRE_OUT_8_AT(96)
#define CADRE_OUT_112 CADRE_OUT_104, CADRE_OUT_8_AT(104)
#define CADRE_OUT_120 CADRE_OUT_112, CADRE_OUT_8_AT(112)
#define CADRE_OUT_128 CADRE_OUT_120, CADRE_OUT_8_AT(120)
// clang-format on

#define CADRE_WGMMA_ASM(TYPES, N, R, A, B, S, TA, TB, OA, OB)                         \
  asm volatile(                                                                       \
      "{\n.reg .pred p;\n.reg .b32 la, lb, high;\n.reg .b64 da, db;\n"                \
      "add.u32 la, %" #A ", %" #OA ";\nadd.u32 lb, %" #B ", %" #OB                    \
      ";\n"                                                                           \
      "mov.b32 high, 0x40000040;\nmov.b64 da, {la, high};\nmov.b64 db, {lb, high};\n" \
      "setp.ne.b32 p, %" #S                                                           \
      ", 0;\n"                                                                        \
      "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPES " {" CADRE_REGS_##R     \
      "}, da, db, p, 1, 1, %" #TA ", %" #TB ";\n}\n"                                  \
      : CADRE_OUT_##R                                                                 \
      : "r"(a), "r"(b), "r"(accumulate), "n"(static_cast<int>(kMajorA)),              \
        "n"(static_cast<int>(kMajorB)), "n"(kOffsetA), "n"(kOffsetB))

// FP8 is K-major alone, so the instruction says nothing of majors.
#define CADRE_WGMMA_FP8_ASM(TYPES, N, R, A, B, S, OA, OB)                             \
  asm volatile(                                                                       \
      "{\n.reg .pred p;\n.reg .b32 la, lb, high;\n.reg .b64 da, db;\n"                \
      "add.u32 la, %" #A ", %" #OA ";\nadd.u32 lb, %" #B ", %" #OB                    \
      ";\n"                                                                           \
      "mov.b32 high, 0x40000040;\nmov.b64 da, {la, high};\nmov.b64 db, {lb, high};\n" \
      "setp.ne.b32 p, %" #S                                                           \
      ", 0;\n"                                                                        \
      "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." TYPES " {" CADRE_REGS_##R     \
      "}, da, db, p, 1, 1;\n}\n"                                                      \
      : CADRE_OUT_##R                                                                 \
      : "r"(a), "r"(b), "r"(accumulate), "n"(kOffsetA), "n"(kOffsetB))

// N, then N/2 registers, then the numbers of the seven operands after them.
#define CADRE_WGMMA(N, R, A, B, S, TA, TB, OA, OB)                                        \
  template <>                                                                             \
  struct Wgmma<N> {                                                                       \
    template <typename TypeA, typename TypeB, Major kMajorA, Major kMajorB, int kOffsetA, \
              int kOffsetB>                                                               \
    static __device__ __forceinline__ void mma(float (&d)[R], uint32_t a, uint32_t b,     \
                                               int accumulate) {                          \
      if constexpr (sizeof(TypeA) == 1) {                                                 \
        static_assert(kMajorA == Major::kK && kMajorB == Major::kK);                      \
        if constexpr (!std::is_same_v<TypeA, __nv_fp8_e4m3>) {                            \
          static_assert(std::is_same_v<TypeB, __nv_fp8_e4m3>);                            \
          CADRE_WGMMA_FP8_ASM("e5m2.e4m3", N, R, A, B, S, TA, TB);                        \
        } else if constexpr (!std::is_same_v<TypeB, __nv_fp8_e4m3>) {                     \
          CADRE_WGMMA_FP8_ASM("e4m3.e5m2", N, R, A, B, S, TA, TB);                        \
        } else {                                                                          \
          CADRE_WGMMA_FP8_ASM("e4m3.e4m3", N, R, A, B, S, TA, TB);                        \
        }                                                                                 \
      } else {                                                                            \
        static_assert(std::is_same_v<TypeA, TypeB>);                                      \
        if constexpr (std::is_same_v<TypeA, __nv_bfloat16>) {                             \
          CADRE_WGMMA_ASM("bf16.bf16", N, R, A, B, S, TA, TB, OA, OB);                    \
        } else {                                                                          \
          static_assert(std::is_same_v<TypeA, __half>);                                   \
          CADRE_WGMMA_ASM("f16.f16", N, R, A, B, S, TA, TB, OA, OB);                      \
        }                                                                                 \
      }                                                                                   \
    }                                                                                     \
  };

CADRE_WGMMA(16, 8, 8, 9, 10, 11, 12, 13, 14)
CADRE_WGMMA(32, 16, 16, 17, 18, 19, 20, 21, 22)
CADRE_WGMMA(48, 24, 24, 25, 26, 27, 28, 29, 30)
CADRE_WGMMA(64, 32, 32, 33, 34, 35, 36, 37, 38)
CADRE_WGMMA(80, 40, 40, 41, 42, 43, 44, 45, 46)
CADRE_WGMMA(96, 48, 48, 49, 50, 51, 52, 53, 54)
CADRE_WGMMA(112, 56, 56, 57, 58, 59, 60, 61, 62)
CADRE_WGMMA(128, 64, 64, 65, 66, 67, 68, 69, 70)
CADRE_WGMMA(144, 72, 72, 73, 74, 75, 76, 77, 78)
CADRE_WGMMA(160, 80, 80, 81, 82, 83, 84, 85, 86)
CADRE_WGMMA(176, 88, 88, 89, 90, 91, 92, 93, 94)
CADRE_WGMMA(192, 96, 96, 97, 98, 99, 100, 101, 102)
CADRE_WGMMA(208, 104, 104, 105, 106, 107, 108, 109, 110)
CADRE_WGMMA(224, 112, 112, 113, 114, 115, 116, 117, 118)
CADRE_WGMMA(240, 120, 120, 121, 122, 123, 124, 125, 126)
CADRE_WGMMA(256, 128, 128, 129, 130, 131, 132, 133, 134)

#undef CADRE_WGMMA
#undef CADRE_WGMMA_ASM
#undef CADRE_WGMMA_FP8_ASM

// d (+)= A * B for one step of 32 bytes along K; `accumulate` = 0 starts a new sum, so accumulators
// are never zeroed by moves. `a` and `b` are low words of descriptors, to which constants (in units
// of 16 bytes) are added within the assembly: the compiler then holds one register for each operand
// instead of two for every step.
template <int kN, typename TypeA, typename TypeB, Major kMajorA, Major kMajorB, int kOffsetA,
          int kOffsetB>
__device__ __forceinline__ void wgmma_at(float (&d)[kN / 2], uint32_t a, uint32_t b,
                                         int accumulate) {
  Wgmma<kN>::template mma<TypeA, TypeB, kMajorA, kMajorB, kOffsetA, kOffsetB>(d, a, b, accumulate);
}

}  // namespace cadre::ptx
