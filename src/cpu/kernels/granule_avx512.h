// AVX-512 loaders for granules of several k values: pairs of 16-bit and quadruples of 8-bit
// elements. For kernel files only.
#pragma once

#include "cpu/kernels/simd_avx512.h"

namespace cadre::cpu {
namespace {

// What the loaders below share: 16 granules of 4 bytes in a register.
struct DwordGranules {
  using Reg = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kGranuleBytes = 4;
  static Reg zero() { return _mm512_setzero_si512(); }
  static void store(void* p, Reg x) { _mm512_storeu_si512(p, x); }
  static void transpose(Reg (&r)[16]) { transpose_lanes(r); }
  static void store_columns(Reg (&r)[8], char* rows, int64_t row_bytes) {
    store_eight_columns(r, rows, row_bytes);
  }
};

inline __mmask64 first64(int64_t count) {
  return count >= 64 ? ~__mmask64{0} : (__mmask64{1} << count) - 1;
}
inline __mmask32 first32(int64_t count) {
  return count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1;
}
inline __m512i words_to_dwords(const Bf16* p, int64_t lanes) {
  return _mm512_cvtepu16_epi32(lanes >= 16 ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))
                                           : _mm256_maskz_loadu_epi16(first16(lanes), p));
}
inline __m512i bytes_to_dwords(const int8_t* p, int64_t lanes) {
  return _mm512_cvtepu8_epi32(lanes >= 16 ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(p))
                                          : _mm_maskz_loadu_epi8(first16(lanes), p));
}

// Granules of two or four k values straight from rows of B, 32 columns of each: word or byte j of
// row p goes to place p of granule j. Two permutations of words make 32 granules.
struct alignas(64) PairOrder {
  uint16_t low[32], high[32];  // a word below 32 is from the first register, above from the second
};

// Rows p and p + 1: word j of each, next to each other.
constexpr PairOrder interleave_words() {
  PairOrder order{};
  for (size_t j = 0; j < 16; ++j) {
    order.low[2 * j] = static_cast<uint16_t>(j);
    order.low[2 * j + 1] = static_cast<uint16_t>(32 + j);
    order.high[2 * j] = static_cast<uint16_t>(16 + j);
    order.high[2 * j + 1] = static_cast<uint16_t>(48 + j);
  }
  return order;
}

// Pairs of bytes of rows 0, 1 and 2, 3 as unpacking leaves them: the first register holds columns
// 0-7 and 16-23 of rows 0, 1, then of rows 2, 3; the second columns 8-15 and 24-31.
constexpr PairOrder interleave_byte_pairs() {
  PairOrder order{};
  for (size_t j = 0; j < 16; ++j) {
    const auto from = static_cast<uint16_t>(j % 8 + (j < 8 ? 0 : 32));
    order.low[2 * j] = from;
    order.low[2 * j + 1] = static_cast<uint16_t>(from + 16);
    order.high[2 * j] = static_cast<uint16_t>(from + 8);
    order.high[2 * j + 1] = static_cast<uint16_t>(from + 24);
  }
  return order;
}

inline void permute_words(__m512i first, __m512i second, const PairOrder& order,
                          __m512i (&granules)[2]) {
  granules[0] = _mm512_permutex2var_epi16(first, _mm512_load_si512(order.low), second);
  granules[1] = _mm512_permutex2var_epi16(first, _mm512_load_si512(order.high), second);
}

inline void pairs_of_rows(const char* row, int64_t k_bytes, __m512i (&granules)[2]) {
  static constexpr PairOrder kOrder = interleave_words();
  permute_words(_mm512_loadu_si512(row), _mm512_loadu_si512(row + k_bytes), kOrder, granules);
}

// The same from bytes, widened to words.
inline __m512i words_of_bytes(const char* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void byte_pairs_of_rows(const char* row, int64_t k_bytes, __m512i (&granules)[2]) {
  static constexpr PairOrder kOrder = interleave_words();
  permute_words(words_of_bytes(row), words_of_bytes(row + k_bytes), kOrder, granules);
}

inline void quads_of_rows(const char* row, int64_t k_bytes, __m512i (&granules)[2]) {
  static constexpr PairOrder kOrder = interleave_byte_pairs();
  const auto row_of = [&](int64_t p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + p * k_bytes));
  };
  const __m512i even = _mm512_inserti64x4(_mm512_castsi256_si512(row_of(0)), row_of(2), 1);
  const __m512i odd = _mm512_inserti64x4(_mm512_castsi256_si512(row_of(1)), row_of(3), 1);
  permute_words(_mm512_unpacklo_epi8(even, odd), _mm512_unpackhi_epi8(even, odd), kOrder, granules);
}

// Two bf16, as they are.
struct PairLoaderBf16 : DwordGranules {
  using Elem = Bf16;
  static constexpr int kGranuleK = 2;
  static Reg along(const Bf16* p, int64_t count) {
    return count >= 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16(first32(count), p);
  }
  static Reg across(const Bf16* p, int64_t k_stride, int64_t k_count, int64_t lanes) {
    const Reg even = words_to_dwords(p, lanes);
    if (k_count < 2) return even;
    const Reg odd = words_to_dwords(p + k_stride, lanes);
    return _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
  }
  using WholeRows = void;
  static void whole_rows(const Bf16* p, int64_t k_stride, Reg (&granules)[2]) {
    pairs_of_rows(reinterpret_cast<const char*>(p), k_stride * 2, granules);
  }
};

// Two int8, widened to int16.
struct PairLoaderInt8 : DwordGranules {
  using Elem = int8_t;
  static constexpr int kGranuleK = 2;
  static Reg along(const int8_t* p, int64_t count) {
    return _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(first32(count), p));
  }
  static Reg across(const int8_t* p, int64_t k_stride, int64_t k_count, int64_t lanes) {
    const __mmask16 mask = first16(lanes);
    const Reg even = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask, p));
    const Reg low = _mm512_and_si512(even, _mm512_set1_epi32(0xffff));
    if (k_count < 2) return low;
    const Reg odd = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask, p + k_stride));
    return _mm512_or_si512(low, _mm512_slli_epi32(odd, 16));
  }
};

// Four int8, each xor kFlip (0x80 turns int8 x into the unsigned x + 128).
template <int kFlip>
struct QuadLoaderInt8 : DwordGranules {
  using Elem = int8_t;
  static constexpr int kGranuleK = 4;
  static Reg along(const int8_t* p, int64_t count) {
    return flip(count >= 64 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi8(first64(count), p));
  }
  static Reg across(const int8_t* p, int64_t k_stride, int64_t k_count, int64_t lanes) {
    Reg x = bytes_to_dwords(p, lanes);
    if (k_count > 1)
      x = _mm512_or_si512(x, _mm512_slli_epi32(bytes_to_dwords(p + k_stride, lanes), 8));
    if (k_count > 2)
      x = _mm512_or_si512(x, _mm512_slli_epi32(bytes_to_dwords(p + 2 * k_stride, lanes), 16));
    if (k_count > 3)
      x = _mm512_or_si512(x, _mm512_slli_epi32(bytes_to_dwords(p + 3 * k_stride, lanes), 24));
    return flip(x);
  }
  using WholeRows = void;
  static void whole_rows(const int8_t* p, int64_t k_stride, Reg (&granules)[2]) {
    quads_of_rows(reinterpret_cast<const char*>(p), k_stride, granules);
    for (Reg& x : granules) x = flip(x);
  }

 private:
  static Reg flip(Reg x) {
    if constexpr (kFlip == 0) return x;
    return _mm512_xor_si512(x, _mm512_set1_epi8(static_cast<char>(kFlip)));
  }
};

// The tile's view of granules of 4 bytes with int32 accumulators.
template <int kMaxRowsOfTile, int kVectorsOfTile>
struct DwordOp {
  using Acc = __m512i;
  using Vec = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kVectors = kVectorsOfTile;
  static constexpr int kMaxRows = kMaxRowsOfTile;
  static constexpr int kGranuleBytes = 4;

  static Acc zero() { return _mm512_setzero_si512(); }
  static Acc load_acc(const char* p) { return _mm512_loadu_si512(p); }
  static Vec load_b(const char* p) { return _mm512_loadu_si512(p); }
  static Vec broadcast_a(const char* p) {
    return _mm512_set1_epi32(*reinterpret_cast<const int*>(p));
  }
  static void store_acc(char* p, Acc acc) { _mm512_storeu_si512(p, acc); }
  static void store_past_cache(char* p, Acc acc) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), acc);
  }
  static void finish_past_cache() { _mm_sfence(); }
};

}  // namespace
}  // namespace cadre::cpu
