// The inner loop's view of pairs of bf16 with AVX512_BF16. For kernel files only.
//
// vdpbf16ps adds two exact products of bf16 into an f32, rounding after each addition, as two
// multiply-adds would; it treats subnormal inputs and results as zero (docs/numerics.md).
#pragma once

#include "cpu/kernels/epilogue.h"
#include "cpu/kernels/granule_avx512.h"
#include "cpu/kernels/tile.h"

namespace cadre::cpu {
namespace {

inline constexpr int kBf16Rows = 14;
inline constexpr int kBf16Nr = 32;

struct OpBf16 {
  using Acc = __m512;
  using Vec = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kVectors = 2;
  static constexpr int kMaxRows = kBf16Rows;
  static constexpr int kGranuleBytes = 4;
  static constexpr int kGranuleK = 2;
  static constexpr bool kSubtractsSurplus = false;
  static constexpr uint32_t kSourceFlip = 0;
  static constexpr int64_t kSourceRowBytes = int64_t{kBf16Nr} * 2;
  static constexpr int kColumnRows = kMaxColumnRows;

  static Acc zero() { return _mm512_setzero_ps(); }
  static Acc load_acc(const char* p) { return _mm512_loadu_ps(p); }
  static Vec load_b(const char* p) { return _mm512_loadu_si512(p); }
  static Vec broadcast_a(const char* p) {
    return _mm512_set1_epi32(*reinterpret_cast<const int*>(p));
  }
  // As in folded_avx512.h.
  static constexpr int kFirstFoldedRow = 4;
  static Acc multiply_add(Acc acc, Vec a, Vec b) {
    __asm__("vdpbf16ps %1, %2, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
  }
  static Acc multiply_add_folded(Acc acc, const char* a, Vec b) {
    __asm__("vdpbf16ps %1%{1to16%}, %2, %0"
            : "+v"(acc)
            : "m"(*reinterpret_cast<const int*>(a)), "v"(b));
    return acc;
  }
  static void store_acc(char* p, Acc acc) { _mm512_storeu_ps(p, acc); }
  static void store_past_cache(char* p, Acc acc) {
    _mm512_stream_ps(reinterpret_cast<float*>(p), acc);
  }
  // To nearest even, in one instruction. That takes subnormal sums for zero, but there are none:
  // the products have done so before.
  static __m512i rounded(const Acc (&row)[kVectors]) {
    __m512i x;
    __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(x) : "v"(row[0]), "v"(row[1]));
    return x;
  }
  static void store_rounded(char* p, const Acc (&row)[kVectors]) {
    _mm512_storeu_si512(p, rounded(row));
  }
  static void store_rounded_past_cache(char* p, const Acc (&row)[kVectors]) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), rounded(row));
  }
  static void finish_past_cache() { _mm_sfence(); }
  static void load_source(const char* row, int64_t k_bytes, Vec (&b)[kVectors]) {
    pairs_of_rows(row, k_bytes, b);
  }
  static void store_b(char* p, Vec b) { _mm512_storeu_si512(p, b); }
  static Vec load_column(const char* p) { return _mm512_loadu_si512(p); }
  static void transpose(Vec (&block)[kLanes]) { transpose_lanes(block); }
};

}  // namespace
}  // namespace cadre::cpu
