// FP8 x FP8 with AVX512_BF16: codes widen to bf16 exactly, by a table in registers (VBMI), and
// their products and sums are those of bf16. No code is a subnormal bf16, no sum a subnormal f32:
// all are multiples of 2^-25. Scales are the driver's (add_scaled).
#include "cpu/kernels/bf16_op.h"
#include "cpu/kernels/kernel_list.h"
#include "cpu/kernels/pack.h"

namespace cadre::cpu {
namespace {

// Both bytes of the bf16 of each code without its sign.
struct alignas(64) CodeTable {
  uint8_t low[128], high[128];
};

constexpr uint32_t bf16_of_code(uint32_t code, int fraction_bits, uint32_t bias,
                                bool has_infinity) {
  const uint32_t exponent_mask = 0x7fu >> fraction_bits;
  uint32_t exponent = code >> fraction_bits;
  uint32_t fraction = code & ((1u << fraction_bits) - 1u);
  if (has_infinity && exponent == exponent_mask) return fraction == 0 ? 0x7f80u : 0x7fc0u;
  if (!has_infinity && code == 0x7fu) return 0x7fc0u;
  if (code == 0) return 0;
  if (exponent == 0) {  // a subnormal: its first one becomes the implicit one
    exponent = 1;
    while ((fraction >> fraction_bits) == 0) fraction <<= 1, --exponent;
    fraction &= (1u << fraction_bits) - 1u;
  }
  return ((exponent + 127u - bias) << 7 | fraction << (7 - fraction_bits)) & 0xffffu;
}

template <class T>
constexpr CodeTable make_table() {
  constexpr bool kE5 = T::kDType == DType::kE5M2;
  CodeTable table{};
  for (uint32_t code = 0; code < 128; ++code) {
    const uint32_t bits = bf16_of_code(code, kE5 ? 2 : 3, kE5 ? 15 : 7, kE5);
    table.low[code] = static_cast<uint8_t>(bits & 0xffu);
    table.high[code] = static_cast<uint8_t>(bits >> 8);
  }
  return table;
}
template <class T>
inline constexpr CodeTable kTable = make_table<T>();

// The low and the high byte of 64 codes.
template <class T>
inline __m512i low_bytes(__m512i codes) {
  const CodeTable& table = kTable<T>;
  return _mm512_permutex2var_epi8(_mm512_load_si512(table.low), codes,
                                  _mm512_load_si512(table.low + 64));
}
template <class T>
inline __m512i high_bytes(__m512i codes) {
  const CodeTable& table = kTable<T>;
  const __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(table.high), codes,
                                                _mm512_load_si512(table.high + 64));
  // high | (codes & sign)
  return _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(static_cast<char>(0x80)), 0xf8);
}

// 32 bf16 of codes that stand in both bytes of their word.
template <class T>
inline __m512i widened(__m512i twice) {
  return _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaaull, low_bytes<T>(twice), high_bytes<T>(twice));
}
inline __m512i twice_in_words(__m512i words) {
  return _mm512_or_si512(words, _mm512_slli_epi16(words, 8));
}

// Bytes j of two rows of 32, each twice: granules of 16 columns.
struct alignas(64) ByteOrder {
  uint8_t low[64], high[64];
};
constexpr ByteOrder order_of_rows() {
  ByteOrder order{};
  for (size_t i = 0; i < 64; ++i) {
    const size_t from = i / 4 + i / 2 % 2 * 32;
    order.low[i] = static_cast<uint8_t>(from);
    order.high[i] = static_cast<uint8_t>(from + 16);
  }
  return order;
}
template <class T>
inline void granules_of_rows(const char* row, int64_t k_bytes, __m512i (&granules)[2]) {
  static constexpr ByteOrder kOrder = order_of_rows();
  const auto load = [](const char* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  };
  const __m512i rows =
      _mm512_inserti64x4(_mm512_castsi256_si512(load(row)), load(row + k_bytes), 1);
  granules[0] = widened<T>(_mm512_permutexvar_epi8(_mm512_load_si512(kOrder.low), rows));
  granules[1] = widened<T>(_mm512_permutexvar_epi8(_mm512_load_si512(kOrder.high), rows));
}

// Two codes, widened to bf16.
template <class T>
struct PairLoaderFp8 : DwordGranules {
  using Elem = T;
  static constexpr int kGranuleK = 2;
  static Reg along(const T* p, int64_t count) {
    return widened<T>(
        twice_in_words(_mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(first32(count), p))));
  }
  static Reg across(const T* p, int64_t k_stride, int64_t k_count, int64_t lanes) {
    Reg pairs = codes_of(p, lanes);
    if (k_count > 1) {
      pairs = _mm512_or_si512(pairs, _mm512_slli_epi32(codes_of(p + k_stride, lanes), 16));
    }
    return widened<T>(twice_in_words(pairs));
  }
  using WholeRows = void;
  static void whole_rows(const T* p, int64_t k_stride, Reg (&granules)[2]) {
    granules_of_rows<T>(reinterpret_cast<const char*>(p), k_stride, granules);
  }

 private:
  static Reg codes_of(const T* p, int64_t lanes) {
    return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(first16(lanes), p));
  }
};

// B as it lies. A lane of a column holds four codes, two granules: the first two codes of the four
// lanes of 128 bits go in front, so that the bytes of all four granules come together by unpacking.
struct alignas(16) LaneOrder {
  uint8_t bytes[16];
};
constexpr LaneOrder order_of_halves() {
  LaneOrder order{};
  for (size_t i = 0; i < 16; ++i) {
    order.bytes[i] = static_cast<uint8_t>(i % 8 / 2 * 4 + i / 8 * 2 + i % 2);
  }
  return order;
}
template <class T>
struct Fp8Source {
  static constexpr DType kDType = T::kDType;
  static constexpr int64_t kSourceRowBytes = kBf16Nr;
  static constexpr int kColumnGranules = 2;
  static constexpr int kColumnParts = 4;

  static void load_source(const char* row, int64_t k_bytes, __m512i (&b)[2]) {
    granules_of_rows<T>(row, k_bytes, b);
  }
  static __m512i load_column(const char* p) { return _mm512_loadu_si512(p); }
  static void transpose(__m512i (&block)[16]) { gather_parts(block); }
  static void transpose_part(__m512i (&block)[16], int part) { cpu::transpose_part(block, part); }
  static __m512i granule(const __m512i (&block)[16], int i) {
    static constexpr LaneOrder kOrder = order_of_halves();
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kOrder.bytes)));
    const __m512i codes = _mm512_shuffle_epi8(block[i / 2], order);
    const __m512i low = low_bytes<T>(codes), high = high_bytes<T>(codes);
    return i % 2 == 0 ? _mm512_unpacklo_epi8(low, high) : _mm512_unpackhi_epi8(low, high);
  }
};

void pack_a_fp8(const MatrixRef& a, int64_t rows, int64_t k, void* dst) {
  if (a.dtype == DType::kE4M3) return pack_a_from<PairLoaderFp8<Fp8E4M3>>(a, rows, k, dst);
  pack_a_from<PairLoaderFp8<Fp8E5M2>>(a, rows, k, dst);
}

void pack_b_fp8(const MatrixRef& b, int64_t k, int64_t cols, void* dst, int64_t ahead_bytes) {
  if (b.dtype == DType::kE4M3) {
    return pack_b_from<PairLoaderFp8<Fp8E4M3>, kBf16Nr>(b, k, cols, dst, ahead_bytes);
  }
  pack_b_from<PairLoaderFp8<Fp8E5M2>, kBf16Nr>(b, k, cols, dst, ahead_bytes);
}

}  // namespace

const GemmKernel kGemmAvx512Fp8 = vector_kernel<OpBf16, Fp8Source<Fp8E4M3>, Fp8Source<Fp8E5M2>>(
    {.name = "avx512_fp8",
     .acc_dtype = DType::kF32,
     .tuning = {.streams_in_order = true},
     .pack_a = &pack_a_fp8,
     .pack_b = &pack_b_fp8,
     .epilogue = &epilogue_float<VecF32, float, kBf16Nr>,
     .activated = &activated_f32_avx512,
     .add_scaled = &add_scaled_sums<VecF32, kBf16Nr>});

}  // namespace cadre::cpu
