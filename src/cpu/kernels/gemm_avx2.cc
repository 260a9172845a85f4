// AVX2 kernels: f32 and everything that widens to it, f64, and int8 through 16-bit pairs
// (vpmaddwd).
//
// The tile is 6 x 2 vectors: 12 accumulators, 2 registers of B and the broadcast of A, of 16
// registers.
#include "cpu/kernels/epilogue.h"
#include "cpu/kernels/kernel_list.h"
#include "cpu/kernels/simd_avx2.h"
// The generic parts come after the vectors they are instantiated with.
#include "cpu/kernels/pack.h"
#include "cpu/kernels/widened_op.h"

namespace cadre::cpu {
namespace {

constexpr int kRows = 6;
constexpr int kVectors = 2;
using OpF32 = WidenedOp<VecF32, kRows, kVectors>;
template <class T>
using SourceF32 = HalfSource<VecF32, T, kVectors>;
using OpF64 = WidenedOp<VecF64, kRows, kVectors>;
constexpr int kNrF32 = kVectors * VecF32::kLanes;
constexpr int kNrF64 = kVectors * VecF64::kLanes;

// Two int8, widened to int16.
struct PairLoaderInt8 {
  using Elem = int8_t;
  using Reg = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kGranuleK = 2;
  static constexpr int kGranuleBytes = 4;

  static Reg zero() { return _mm256_setzero_si256(); }
  static Reg along(const int8_t* p, int64_t count) {
    if (count < 16) return along(PartialCopy<int8_t, 16>(p, count).lanes, 16);
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Reg across(const int8_t* p, int64_t k_stride, int64_t k_count, int64_t lanes) {
    const Reg even = _mm256_and_si256(widen(p, lanes), _mm256_set1_epi32(0xffff));
    if (k_count < 2) return even;
    return _mm256_or_si256(even, _mm256_slli_epi32(widen(p + k_stride, lanes), 16));
  }
  static void store(void* p, Reg x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
  static void transpose(Reg (&r)[8]) { transpose_lanes(r); }

 private:
  static Reg widen(const int8_t* p, int64_t lanes) {
    if (lanes < 8) return widen(PartialCopy<int8_t, 8>(p, lanes).lanes, 8);
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
};

// Products of two int8 and their sum in pairs are exact in int32; the additions wrap.
struct OpInt8 {
  using Acc = __m256i;
  using Vec = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kVectors = 2;
  static constexpr int kMaxRows = kRows;
  static constexpr int kGranuleBytes = 4;
  static constexpr int kGranuleK = 2;
  static constexpr bool kSubtractsSurplus = false;
  static constexpr int64_t kSourceRowBytes = int64_t{kVectors} * kLanes;
  static constexpr int64_t kColumnBytes = int64_t{kLanes} * kGranuleK;
  static constexpr int kColumnRows = kRows;

  static Acc zero() { return _mm256_setzero_si256(); }
  static Acc load_acc(const char* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Vec load_b(const char* p) { return load_acc(p); }
  static Vec broadcast_a(const char* p) {
    return _mm256_set1_epi32(read_one(reinterpret_cast<const int32_t*>(p)));
  }
  static Acc multiply_add(Acc acc, Vec a, Vec b) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
  }
  static void store_acc(char* p, Acc acc) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), acc);
  }
  static void store_past_cache(char* p, Acc acc) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), acc);
  }
  static void finish_past_cache() { _mm_sfence(); }
  static void load_source(const char* row, int64_t k_bytes, Vec (&b)[kVectors]) {
    const Vec even = load_column(row), odd = load_column(row + k_bytes);
    const Vec low = _mm256_unpacklo_epi16(even, odd);  // columns 0 to 3 and 8 to 11
    const Vec high = _mm256_unpackhi_epi16(even, odd);
    b[0] = _mm256_permute2x128_si256(low, high, 0x20);
    b[1] = _mm256_permute2x128_si256(low, high, 0x31);
  }
  static void store_b(char* p, Vec b) { store_acc(p, b); }
  static Vec load_column(const char* p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static void transpose(Vec (&block)[kLanes]) { transpose_lanes(block); }
};

}  // namespace

const GemmKernel kGemmAvx2F32 = vector_kernel<OpF32, SourceF32<Bf16>, SourceF32<F16>, OpF32>(
    {.name = "avx2_f32",
     .acc_dtype = DType::kF32,
     .source_dtype = DType::kF32,
     .pack_a = &pack_a_widen<VecF32>,
     .pack_b = &pack_b_widen<VecF32, kNrF32>,
     .epilogue = &epilogue_float<VecF32, float, kNrF32>,

     .activated = &activated_f32_avx2,
     .add_scaled = &add_scaled_sums<VecF32, kNrF32>});

const GemmKernel kGemmAvx2F64 =
    vector_kernel<OpF64, OpF64>({.name = "avx2_f64",
                                 .acc_dtype = DType::kF64,
                                 .source_dtype = DType::kF64,
                                 .tuning = {.streams_in_order = true},
                                 .pack_a = &pack_a_widen<VecF64>,
                                 .pack_b = &pack_b_widen<VecF64, kNrF64>,
                                 .epilogue = &epilogue_float<VecF64, double, kNrF64>,
                                 .activated = &activated_f64_avx2});

const GemmKernel kGemmAvx2Int8 =
    vector_kernel<OpInt8, OpInt8>({.name = "avx2_int8",
                                   .acc_dtype = DType::kI32,
                                   .source_dtype = DType::kI8,
                                   .tuning = {.streams_in_order = true},
                                   .pack_a = &pack_a_from<PairLoaderInt8>,
                                   .pack_b = &pack_b_from<PairLoaderInt8, kNrF32>,
                                   .epilogue = &epilogue_int32<VecF64, kNrF32>,
                                   .activated = &activated_int32_avx2});

}  // namespace cadre::cpu
