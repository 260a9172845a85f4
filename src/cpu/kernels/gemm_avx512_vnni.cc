// int8 with AVX512_VNNI. vpdpbusd multiplies unsigned by signed bytes, so B is packed as b + 128
// and the surplus 128 * sum_k a[i][k], which packing computes and keeps behind each row of A, is
// subtracted once for each packed stretch. All sums are modulo 2^32, so the result is exactly the
// wrapping int32 sum.
#include "cpu/kernels/epilogue.h"
#include "cpu/kernels/granule_avx512.h"
#include "cpu/kernels/kernel_list.h"
#include "cpu/kernels/pack.h"
#include "cpu/kernels/tile.h"

namespace cadre::cpu {
namespace {

constexpr int kRows = 14;
constexpr int kVectors = 2;
constexpr int kNr = kVectors * 16;
constexpr int kOffset = 0x80;

struct OpVnni : DwordOp<kRows, kVectors> {
  static constexpr int kGranuleK = 4;
  static constexpr bool kSubtractsSurplus = true;
  static constexpr uint32_t kSourceFlip = 0x80808080;
  static constexpr int64_t kSourceRowBytes = kNr;
  static constexpr int kColumnRows = kMaxColumnRows;

  // As in folded_avx512.h.
  static constexpr int kFirstFoldedRow = 4;
  static Acc multiply_add(Acc acc, Vec a, Vec b) {
    __asm__("vpdpbusd %1, %2, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
  }
  static Acc multiply_add_folded(Acc acc, const char* a, Vec b) {
    __asm__("vpdpbusd %1%{1to16%}, %2, %0"
            : "+v"(acc)
            : "m"(*reinterpret_cast<const int*>(a)), "v"(b));
    return acc;
  }
  static Acc subtract_surplus(Acc acc, const char* surplus) {
    return _mm512_sub_epi32(acc, broadcast_a(surplus));
  }
  static void load_source(const char* row, int64_t k_bytes, Vec (&b)[kVectors]) {
    quads_of_rows(row, k_bytes, b);
    for (Vec& v : b) v = shifted(v);
  }
  static void store_b(char* p, Vec b) { _mm512_storeu_si512(p, b); }
  static Vec load_column(const char* p) { return shifted(_mm512_loadu_si512(p)); }
  static void transpose(Vec (&block)[kLanes]) { transpose_lanes(block); }

 private:
  static Vec shifted(Vec b) {
    return _mm512_xor_si512(b, _mm512_set1_epi8(static_cast<char>(kOffset)));
  }
};

// The loaders leave whole vectors, zero behind the last k.
void pack_a(const MatrixRef& a, int64_t rows, int64_t k, void* dst) {
  pack_a_from<QuadLoaderInt8<0>>(a, rows, k, dst);
  const int64_t vectors = divide_up(divide_up(k, 4), 16);
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(kOffset));
  for (int64_t r = 0; r < rows; ++r) {
    char* row = static_cast<char*>(dst) + r * kPackedRowStride * 4;
    __m512i sum = _mm512_setzero_si512();
    for (int64_t v = 0; v < vectors; ++v)
      sum = _mm512_dpbusd_epi32(sum, offset, _mm512_loadu_si512(row + v * 64));
    const int surplus = _mm512_reduce_add_epi32(sum);
    std::memcpy(row + kSurplusGranule * 4, &surplus, sizeof(surplus));
  }
}

}  // namespace

const GemmKernel kGemmVnniInt8 =
    vector_kernel<OpVnni, OpVnni>({.name = "avx512_vnni_int8",
                                   .acc_dtype = DType::kI32,
                                   .source_dtype = DType::kI8,
                                   .tuning = {.packs_beside = true, .streams_in_order = true},
                                   .pack_a = &pack_a,
                                   .pack_b = &pack_b_from<QuadLoaderInt8<kOffset>, kNr>,
                                   .epilogue = &epilogue_int32<VecF64, kNr>,
                                   .activated = &activated_int32_avx512});

}  // namespace cadre::cpu
