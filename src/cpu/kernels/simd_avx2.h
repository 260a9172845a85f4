// AVX2, FMA and F16C: vectors of f32 and f64 with exact widening loads and rounding stores. For
// kernel files only.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/kernels/element.h"

namespace cadre::cpu {
namespace {

// Partial vectors go through a zeroed copy; only the elements that exist are touched.
template <class T, int kCount>
struct PartialCopy {
  T lanes[kCount] = {};
  PartialCopy(const T* p, int64_t count) {
    std::memcpy(lanes, p, static_cast<size_t>(count) * sizeof(T));
  }
};

// 8 lanes of 32 bits, transposed as an 8x8 matrix. First half p of each register goes to the
// registers 4p to 4p + 3; then these are transposed, four lanes by four.
inline void gather_parts(__m256i (&r)[8]) {
  for (int i = 0; i < 4; ++i) {
    const __m256i x = r[i];
    r[i] = _mm256_permute2x128_si256(x, r[i + 4], 0x20);
    r[i + 4] = _mm256_permute2x128_si256(x, r[i + 4], 0x31);
  }
}
inline void transpose_part(__m256i (&r)[8], int64_t part) {
  __m256i* const p = r + 4 * part;
  const __m256i t0 = _mm256_unpacklo_epi32(p[0], p[1]);
  const __m256i t1 = _mm256_unpackhi_epi32(p[0], p[1]);
  const __m256i t2 = _mm256_unpacklo_epi32(p[2], p[3]);
  const __m256i t3 = _mm256_unpackhi_epi32(p[2], p[3]);
  p[0] = _mm256_unpacklo_epi64(t0, t2);
  p[1] = _mm256_unpackhi_epi64(t0, t2);
  p[2] = _mm256_unpacklo_epi64(t1, t3);
  p[3] = _mm256_unpackhi_epi64(t1, t3);
}
inline void transpose_lanes(__m256i (&r)[8]) {
  gather_parts(r);
  for (int part = 0; part < 2; ++part) transpose_part(r, part);
}

// 8 columns of 16 words, transposed into pairs of rows of 8: register j holds rows j and j + 8.
inline void transpose_words(__m256i (&r)[8]) {
  __m256i t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_epi16(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_epi16(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int p = 0; p < 2; ++p) {
      r[i + 2 * p] = _mm256_unpacklo_epi32(t[i + p], t[i + p + 2]);
      r[i + 2 * p + 1] = _mm256_unpackhi_epi32(t[i + p], t[i + p + 2]);
    }
  }
  for (int64_t p = 0; p < 4; ++p) {
    t[2 * p] = _mm256_unpacklo_epi64(r[p], r[p + 4]);
    t[2 * p + 1] = _mm256_unpackhi_epi64(r[p], r[p + 4]);
  }
  for (int i = 0; i < 8; ++i) r[i] = t[i];
}

struct VecF32 {
  using Elem = float;
  using Reg = __m256;
  using Pairs = __m256i;
  static constexpr int kLanes = 8;

  static Reg zero() { return _mm256_setzero_ps(); }
  static Reg set1(float x) { return _mm256_set1_ps(x); }
  static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static void store(float* p, Reg x) { _mm256_storeu_ps(p, x); }
  // To an address aligned to the vector; the order is settled by finish_past_cache.
  static void store_past_cache(float* p, Reg x) { _mm256_stream_ps(p, x); }
  static void finish_past_cache() { _mm_sfence(); }

  // The first `count` of 8 elements, widened exactly; the rest is zero.
  static Reg load(const float* p, int64_t count) {
    return count >= 8 ? _mm256_loadu_ps(p) : _mm256_loadu_ps(PartialCopy<float, 8>(p, count).lanes);
  }
  static Reg load(const Bf16* p, int64_t count) {
    if (count < 8) return load(PartialCopy<Bf16, 8>(p, count).lanes, 8);
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  }
  static Reg load(const F16* p, int64_t count) {
    if (count < 8) return load(PartialCopy<F16, 8>(p, count).lanes, 8);
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  // As widen_one does it, 8 at a time.
  static Reg load(const Fp8E5M2* p, int64_t count) {
    if (count < 8) return load(PartialCopy<Fp8E5M2, 8>(p, count).lanes, 8);
    return _mm256_cvtph_ps(
        _mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))), 8));
  }
  static Reg load(const Fp8E4M3* p, int64_t count) {
    if (count < 8) return load(PartialCopy<Fp8E4M3, 8>(p, count).lanes, 8);
    // Sign-extended, so that shifted by 7 the sign is in its place, and once more below it.
    const __m128i x =
        _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))), 7);
    const __m128i f16 = _mm_and_si128(x, _mm_set1_epi16(static_cast<int16_t>(0xbf80)));
    const __m128i all = _mm_set1_epi16(0x3f80);
    const __m128i is_nan = _mm_cmpeq_epi16(_mm_and_si128(f16, all), all);
    const __m128i with_nan = _mm_or_si128(f16, _mm_and_si128(is_nan, _mm_set1_epi16(0x7c00)));
    return _mm256_mul_ps(_mm256_cvtph_ps(with_nan), _mm256_set1_ps(256.0f));
  }
  static Reg load(const int8_t* p, int64_t count) {
    if (count < 8) return load(PartialCopy<int8_t, 8>(p, count).lanes, 8);
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static Reg load(const int32_t* p, int64_t count) {
    if (count < 8) return load(PartialCopy<int32_t, 8>(p, count).lanes, 8);
    return _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Reg load(const double* p, int64_t count) {
    if (count < 8) return load(PartialCopy<double, 8>(p, count).lanes, 8);
    return _mm256_set_m128(_mm256_cvtpd_ps(_mm256_loadu_pd(p + 4)),
                           _mm256_cvtpd_ps(_mm256_loadu_pd(p)));
  }

  // Columns of 16-bit elements, two in each lane: 8 of them transposed, and of these the row i of
  // 16, widened exactly.
  static Pairs load_pairs(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  static constexpr int pair_parts(Bf16) { return 2; }
  static void gather_pairs(Pairs (&r)[8], Bf16) { gather_parts(r); }
  static void transpose_pairs(Pairs (&r)[8], int64_t part, Bf16) { transpose_part(r, part); }
  static Reg widen_pair(const Pairs (&r)[8], int i, Bf16) {
    const Pairs x = r[i / 2];
    return _mm256_castsi256_ps(i % 2 == 0 ? _mm256_slli_epi32(x, 16)
                                          : _mm256_and_si256(x, _mm256_set1_epi32(-0x10000)));
  }
  static constexpr int pair_parts(F16) { return 1; }
  static void gather_pairs(Pairs (&)[8], F16) {}
  static void transpose_pairs(Pairs (&r)[8], int64_t, F16) { transpose_words(r); }
  static Reg widen_pair(const Pairs (&r)[8], int i, F16) {
    const Pairs x = r[i % 8];
    return _mm256_cvtph_ps(i < 8 ? _mm256_castsi256_si128(x) : _mm256_extracti128_si256(x, 1));
  }

  // The first `count` lanes, rounded to nearest even where the target is narrower.
  template <class T>
  static void store(T* p, Reg x, int64_t count) {
    if (count >= 8) return store_all(p, x);
    T lanes[8];
    store_all(lanes, x);
    std::memcpy(p, lanes, static_cast<size_t>(count) * sizeof(T));
  }

  static void transpose(Reg (&r)[8]) {
    __m256i t[8];
    for (int i = 0; i < 8; ++i) t[i] = _mm256_castps_si256(r[i]);
    transpose_lanes(t);
    for (int i = 0; i < 8; ++i) r[i] = _mm256_castsi256_ps(t[i]);
  }

 private:
  static void store_all(float* p, Reg x) { _mm256_storeu_ps(p, x); }
  static void store_all(Bf16* p, Reg x) {
    // Add half of the discarded unit, or one less where the kept part is even; a NaN keeps its top
    // bits and is quiet.
    const __m256i u = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i r = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  static void store_all(F16* p, Reg x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static void store_all(double* p, Reg x) {
    _mm256_storeu_pd(p, _mm256_cvtps_pd(_mm256_castps256_ps128(x)));
    _mm256_storeu_pd(p + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
  }
  static void store_all(int32_t* p, Reg x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_cvtps_epi32(x));
  }
};

struct VecF64 {
  using Elem = double;
  using Reg = __m256d;
  static constexpr int kLanes = 4;

  static Reg zero() { return _mm256_setzero_pd(); }
  static Reg set1(double x) { return _mm256_set1_pd(x); }
  static Reg mul(Reg a, Reg b) { return _mm256_mul_pd(a, b); }
  static Reg add(Reg a, Reg b) { return _mm256_add_pd(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_pd(a, b, c); }
  static void store(double* p, Reg x) { _mm256_storeu_pd(p, x); }
  static void store_past_cache(double* p, Reg x) { _mm256_stream_pd(p, x); }
  static void finish_past_cache() { _mm_sfence(); }

  static Reg load(const double* p, int64_t count) {
    return _mm256_loadu_pd(count >= 4 ? p : PartialCopy<double, 4>(p, count).lanes);
  }
  static Reg load(const int32_t* p, int64_t count) {
    if (count < 4) return load(PartialCopy<int32_t, 4>(p, count).lanes, 4);
    return _mm256_cvtepi32_pd(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  // Anything narrower widens to f32 first; only `count` elements are touched.
  template <class T>
  static Reg load(const T* p, int64_t count) {
    return _mm256_cvtps_pd(_mm256_castps256_ps128(VecF32::load(p, count < 4 ? count : 4)));
  }

  static void store(double* p, Reg x, int64_t count) {
    if (count >= 4) return _mm256_storeu_pd(p, x);
    store_each(p, x, count, [](double value) { return value; });
  }
  static void store(float* p, Reg x, int64_t count) {
    if (count >= 4) return _mm_storeu_ps(p, _mm256_cvtpd_ps(x));
    store_each(p, x, count, [](double value) { return static_cast<float>(value); });
  }
  static void store(Bf16* p, Reg x, int64_t count) {
    store_each(p, x, count, [](double value) { return round_to_bf16(narrow_to_odd(value)); });
  }
  static void store(F16* p, Reg x, int64_t count) {
    store_each(p, x, count, [](double value) { return round_to_f16(narrow_to_odd(value)); });
  }
  static void store(int32_t* p, Reg x, int64_t count) {
    int32_t lanes[4];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes), _mm256_cvtpd_epi32(x));
    std::memcpy(p, lanes, static_cast<size_t>(count < 4 ? count : 4) * sizeof(int32_t));
  }

  static void transpose(Reg (&r)[4]) {
    const Reg t0 = _mm256_unpacklo_pd(r[0], r[1]);
    const Reg t1 = _mm256_unpackhi_pd(r[0], r[1]);
    const Reg t2 = _mm256_unpacklo_pd(r[2], r[3]);
    const Reg t3 = _mm256_unpackhi_pd(r[2], r[3]);
    r[0] = _mm256_permute2f128_pd(t0, t2, 0x20);
    r[1] = _mm256_permute2f128_pd(t1, t3, 0x20);
    r[2] = _mm256_permute2f128_pd(t0, t2, 0x31);
    r[3] = _mm256_permute2f128_pd(t1, t3, 0x31);
  }

 private:
  template <class T, class Round>
  static void store_each(T* p, Reg x, int64_t count, Round round) {
    double lanes[4];
    _mm256_storeu_pd(lanes, x);
    for (int64_t i = 0; i < (count < 4 ? count : 4); ++i) write_one(p + i, T(round(lanes[i])));
  }
};

}  // namespace
}  // namespace cadre::cpu
