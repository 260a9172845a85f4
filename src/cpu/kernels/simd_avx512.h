// AVX-512 (F, BW, VL, DQ): vectors of f32 and f64 with exact widening loads and rounding stores.
// For kernel files only; everything has internal linkage, so no other file can pick up code
// compiled for this instruction set.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/kernels/element.h"

namespace cadre::cpu {
namespace {

inline __mmask16 first16(int64_t count) {
  return count >= 16 ? __mmask16(0xffff) : __mmask16((1u << count) - 1u);
}
inline __mmask8 first8(int64_t count) {
  return count >= 8 ? __mmask8(0xff) : __mmask8((1u << count) - 1u);
}

// 16 lanes of 32 bits, transposed as a 16x16 matrix in four rounds of 16 shuffles: four lanes by
// four, and part p of 128 bits of each register to the registers 4p to 4p + 3.
inline void gather_parts(__m512i (&r)[16]) {
  for (int i = 0; i < 4; ++i) {
    const __m512i t0 = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x44);
    const __m512i t1 = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xee);
    const __m512i t2 = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x44);
    const __m512i t3 = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xee);
    r[i] = _mm512_shuffle_i32x4(t0, t2, 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(t0, t2, 0xdd);
    r[i + 8] = _mm512_shuffle_i32x4(t1, t3, 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t1, t3, 0xdd);
  }
}
inline void transpose_lanes(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  gather_parts(r);
}
// Parts first, and then each of them alone, just before its use. (As a whole matrix in this order
// GCC keeps some of it in memory: 3 % slower at 16 rows.)
inline void transpose_part(__m512i (&r)[16], int64_t part) {
  __m512i* const p = r + 4 * part;
  const __m512i t0 = _mm512_unpacklo_epi32(p[0], p[1]);
  const __m512i t1 = _mm512_unpackhi_epi32(p[0], p[1]);
  const __m512i t2 = _mm512_unpacklo_epi32(p[2], p[3]);
  const __m512i t3 = _mm512_unpackhi_epi32(p[2], p[3]);
  p[0] = _mm512_unpacklo_epi64(t0, t2);
  p[1] = _mm512_unpackhi_epi64(t0, t2);
  p[2] = _mm512_unpacklo_epi64(t1, t3);
  p[3] = _mm512_unpackhi_epi64(t1, t3);
}

// Eight columns of 16 lanes as 16 rows of eight lanes, row_bytes apart: 24 shuffles and 8
// extractions.
inline void store_eight_columns(__m512i (&r)[8], char* rows, int64_t row_bytes) {
  __m512i t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  // Afterwards the 128-bit part p of r[q] holds row 4p + q of columns 0 to 3, that of r[q + 4] of 4
  // to 7.
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  const auto store = [&](int row, __m256i x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(rows + row * row_bytes), x);
  };
  const __m512i parts01 = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i parts23 = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  for (int q = 0; q < 4; ++q) {
    const __m512i top = _mm512_permutex2var_epi64(r[q], parts01, r[q + 4]);
    const __m512i bottom = _mm512_permutex2var_epi64(r[q], parts23, r[q + 4]);
    store(q, _mm512_castsi512_si256(top));
    store(q + 4, _mm512_extracti64x4_epi64(top, 1));
    store(q + 8, _mm512_castsi512_si256(bottom));
    store(q + 12, _mm512_extracti64x4_epi64(bottom, 1));
  }
}

// 16 columns of 32 words, transposed into pairs of rows of 16, in two parts: register j of the
// first eight holds rows j and j + 8, of the others rows j + 16 and j + 24.
inline void gather_word_parts(__m512i (&r)[16]) {
  const __m512i parts01 = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i parts23 = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  for (int j = 0; j < 8; ++j) {
    const __m512i x = r[j];
    r[j] = _mm512_permutex2var_epi64(x, parts01, r[j + 8]);
    r[j + 8] = _mm512_permutex2var_epi64(x, parts23, r[j + 8]);
  }
}
inline void transpose_word_part(__m512i (&r)[16], int64_t part) {
  __m512i* const p = r + 8 * part;
  __m512i t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm512_unpacklo_epi16(p[i], p[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi16(p[i], p[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int64_t q = 0; q < 2; ++q) {
      u[i + 2 * q] = _mm512_unpacklo_epi32(t[i + q], t[i + q + 2]);
      u[i + 2 * q + 1] = _mm512_unpackhi_epi32(t[i + q], t[i + q + 2]);
    }
  }
  for (int64_t q = 0; q < 4; ++q) {
    p[2 * q] = _mm512_unpacklo_epi64(u[q], u[q + 4]);
    p[2 * q + 1] = _mm512_unpackhi_epi64(u[q], u[q + 4]);
  }
}

struct VecF32 {
  using Elem = float;
  using Reg = __m512;
  using Pairs = __m512i;
  static constexpr int kLanes = 16;

  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg set1(float x) { return _mm512_set1_ps(x); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static void store(float* p, Reg x) { _mm512_storeu_ps(p, x); }
  // To an address aligned to the vector; the order is settled by finish_past_cache.
  static void store_past_cache(float* p, Reg x) { _mm512_stream_ps(p, x); }
  static void finish_past_cache() { _mm_sfence(); }

  // The first `count` of 16 elements, widened exactly; the rest is zero.
  static Reg load(const float* p, int64_t count) {
    return count >= 16 ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(first16(count), p);
  }
  static Reg load(const Bf16* p, int64_t count) {
    const __m256i x = count >= 16 ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))
                                  : _mm256_maskz_loadu_epi16(first16(count), p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  }
  static Reg load(const F16* p, int64_t count) {
    return _mm512_cvtph_ps(count >= 16 ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))
                                       : _mm256_maskz_loadu_epi16(first16(count), p));
  }
  // As widen_one does it, 16 at a time.
  static Reg load(const Fp8E5M2* p, int64_t count) {
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes(p, count)), 8));
  }
  static Reg load(const Fp8E4M3* p, int64_t count) {
    // Sign-extended, so that shifted by 7 the sign is in its place, and once more below it.
    const __m256i x = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes(p, count)), 7);
    const __m256i f16 = _mm256_and_si256(x, _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
    const __m256i all = _mm256_set1_epi16(0x3f80);
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(f16, all), all);
    return _mm512_mul_ps(
        _mm512_cvtph_ps(_mm256_mask_mov_epi16(f16, nan, _mm256_set1_epi16(0x7f80))),
        _mm512_set1_ps(256.0f));
  }
  static Reg load(const int8_t* p, int64_t count) {
    const __m128i x = count >= 16 ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(p))
                                  : _mm_maskz_loadu_epi8(first16(count), p);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x));
  }
  static Reg load(const int32_t* p, int64_t count) {
    return _mm512_cvtepi32_ps(_mm512_maskz_loadu_epi32(first16(count), p));
  }
  static Reg load(const double* p, int64_t count) {
    const __m256 lo = _mm512_cvtpd_ps(_mm512_maskz_loadu_pd(first8(count), p));
    const __m256 hi = count > 8 ? _mm512_cvtpd_ps(_mm512_maskz_loadu_pd(first8(count - 8), p + 8))
                                : _mm256_setzero_ps();
    return _mm512_insertf32x8(_mm512_castps256_ps512(lo), hi, 1);
  }

  // Columns of 16-bit elements, two in each lane: 16 of them transposed, and of these the row i of
  // 32, widened exactly.
  static Pairs load_pairs(const void* p) { return _mm512_loadu_si512(p); }
  static constexpr int pair_parts(Bf16) { return 4; }
  static void gather_pairs(Pairs (&r)[16], Bf16) { gather_parts(r); }
  static void transpose_pairs(Pairs (&r)[16], int64_t part, Bf16) { transpose_part(r, part); }
  static Reg widen_pair(const Pairs (&r)[16], int i, Bf16) {
    const Pairs x = r[i / 2];
    return _mm512_castsi512_ps(i % 2 == 0 ? _mm512_slli_epi32(x, 16)
                                          : _mm512_and_si512(x, _mm512_set1_epi32(-0x10000)));
  }
  static constexpr int pair_parts(F16) { return 2; }
  static void gather_pairs(Pairs (&r)[16], F16) { gather_word_parts(r); }
  static void transpose_pairs(Pairs (&r)[16], int64_t part, F16) { transpose_word_part(r, part); }
  static Reg widen_pair(const Pairs (&r)[16], int i, F16) {
    const Pairs x = r[i % 8 + i / 16 * 8];
    return _mm512_cvtph_ps(i % 16 < 8 ? _mm512_castsi512_si256(x)
                                      : _mm512_extracti64x4_epi64(x, 1));
  }

  // Of 16 results of 16 bits.
  static void store16(void* p, __m256i x, int64_t count) {
    if (count >= 16) return _mm256_storeu_si256(static_cast<__m256i*>(p), x);
    _mm256_mask_storeu_epi16(p, first16(count), x);
  }
  // The first `count` lanes, rounded to nearest even where the target is narrower.
  static void store(float* p, Reg x, int64_t count) { _mm512_mask_storeu_ps(p, first16(count), x); }
  static void store(Bf16* p, Reg x, int64_t count) {
    // Add half of the discarded unit, or one less where the kept part is even; a NaN keeps its top
    // bits and is quiet.
    const __m512i u = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), u,
                             _mm512_set1_epi32(0x400000));
    store16(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)), count);
  }
  static void store(F16* p, Reg x, int64_t count) {
    store16(p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), count);
  }
  static void store(double* p, Reg x, int64_t count) {
    _mm512_mask_storeu_pd(p, first8(count), _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
    if (count > 8)
      _mm512_mask_storeu_pd(p + 8, first8(count - 8),
                            _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
  }

  static void store(int32_t* p, Reg x, int64_t count) {
    _mm512_mask_storeu_epi32(p, first16(count), _mm512_cvtps_epi32(x));
  }

  static void store_columns(Reg (&r)[8], char* rows, int64_t row_bytes) {
    __m512i t[8];
    for (int i = 0; i < 8; ++i) t[i] = _mm512_castps_si512(r[i]);
    store_eight_columns(t, rows, row_bytes);
  }
  static void transpose(Reg (&r)[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; ++i) t[i] = _mm512_castps_si512(r[i]);
    transpose_lanes(t);
    for (int i = 0; i < 16; ++i) r[i] = _mm512_castsi512_ps(t[i]);
  }

 private:
  static __m128i bytes(const void* p, int64_t count) {
    return count >= 16 ? _mm_loadu_si128(static_cast<const __m128i*>(p))
                       : _mm_maskz_loadu_epi8(first16(count), p);
  }
};

struct VecF64 {
  using Elem = double;
  using Reg = __m512d;
  static constexpr int kLanes = 8;

  static Reg zero() { return _mm512_setzero_pd(); }
  static Reg set1(double x) { return _mm512_set1_pd(x); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_pd(a, b); }
  static Reg add(Reg a, Reg b) { return _mm512_add_pd(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_pd(a, b, c); }
  static void store(double* p, Reg x) { _mm512_storeu_pd(p, x); }
  static void store_past_cache(double* p, Reg x) { _mm512_stream_pd(p, x); }
  static void finish_past_cache() { _mm_sfence(); }

  static Reg load(const double* p, int64_t count) {
    return count >= 8 ? _mm512_loadu_pd(p) : _mm512_maskz_loadu_pd(first8(count), p);
  }
  static Reg load(const int32_t* p, int64_t count) {
    return _mm512_cvtepi32_pd(_mm256_maskz_loadu_epi32(first8(count), p));
  }
  // Anything narrower widens to f32 first; only `count` elements are touched.
  template <class T>
  static Reg load(const T* p, int64_t count) {
    return _mm512_cvtps_pd(_mm512_castps512_ps256(VecF32::load(p, count < 8 ? count : 8)));
  }

  static void store(double* p, Reg x, int64_t count) { _mm512_mask_storeu_pd(p, first8(count), x); }
  static void store(float* p, Reg x, int64_t count) {
    _mm256_mask_storeu_ps(p, first8(count), _mm512_cvtpd_ps(x));
  }
  static void store(int32_t* p, Reg x, int64_t count) {
    _mm256_mask_storeu_epi32(p, first8(count), _mm512_cvtpd_epi32(x));
  }
  static void store(Bf16* p, Reg x, int64_t count) {
    alignas(64) double lanes[8];
    _mm512_store_pd(lanes, x);
    for (int64_t i = 0; i < count; ++i) write_one(p + i, round_to_bf16(narrow_to_odd(lanes[i])));
  }
  static void store(F16* p, Reg x, int64_t count) {
    alignas(64) double lanes[8];
    _mm512_store_pd(lanes, x);
    for (int64_t i = 0; i < count; ++i) write_one(p + i, round_to_f16(narrow_to_odd(lanes[i])));
  }

  static void transpose(Reg (&r)[8]) {
    Reg t[8];
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm512_unpacklo_pd(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_pd(r[i], r[i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
      r[i] = _mm512_shuffle_f64x2(t[i], t[i + 2], 0x88);
      r[i + 2] = _mm512_shuffle_f64x2(t[i], t[i + 2], 0xdd);
      r[i + 4] = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0x88);
      r[i + 6] = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0xdd);
    }
    for (int i = 0; i < 2; ++i) {
      t[i] = _mm512_shuffle_f64x2(r[i], r[i + 4], 0x88);
      t[i + 4] = _mm512_shuffle_f64x2(r[i], r[i + 4], 0xdd);
      t[i + 2] = _mm512_shuffle_f64x2(r[i + 2], r[i + 6], 0x88);
      t[i + 6] = _mm512_shuffle_f64x2(r[i + 2], r[i + 6], 0xdd);
    }
    for (int i = 0; i < 8; ++i) r[i] = t[i];
  }
};

}  // namespace
}  // namespace cadre::cpu
