// int8 with AVX512_VNNI. vpdpbusd multiplies unsigned by signed bytes, so A is packed as a + 128
// and the surplus 128 * sum_k b[k][j], which packing computes and stores behind each panel, is
// subtracted once for the panel. All sums are modulo 2^32, so the result is exactly the wrapping
// int32 sum.
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
  static constexpr bool kSubtractsPanelExtra = true;
  static Acc multiply_add(Acc acc, Vec a, Vec b) { return _mm512_dpbusd_epi32(acc, a, b); }
};

void pack_b(const MatrixRef& b, int64_t k, int64_t cols, void* dst) {
  pack_b_from<QuadLoaderInt8<0>, kNr>(b, k, cols, dst);
  const int64_t granules = divide_up(k, 4);
  char* panel = static_cast<char*>(dst);
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(kOffset));
  __m512i surplus[kVectors] = {};
  for (int64_t g = 0; g < granules; ++g)
    for (int64_t v = 0; v < kVectors; ++v)
      surplus[v] = _mm512_dpbusd_epi32(surplus[v], offset,
                                       _mm512_loadu_si512(panel + (g * kNr + v * 16) * 4));
  for (int64_t v = 0; v < kVectors; ++v)
    _mm512_storeu_si512(panel + (granules * kNr + v * 16) * 4, surplus[v]);
}

}  // namespace

const GemmKernel kGemmVnniInt8 = {.name = "avx512_vnni_int8",
                                  .acc_dtype = DType::kI32,
                                  .mr = kRows,
                                  .nr = kNr,
                                  .granule_k = 4,
                                  .granule_bytes = 4,
                                  .k_step = 4,
                                  .panel_extra_bytes = kNr * 4,
                                  .reads_unpacked_f32 = false,
                                  .pack_a = &pack_a_from<QuadLoaderInt8<kOffset>>,
                                  .pack_b = &pack_b,
                                  .multiply = &multiply<OpVnni>,
                                  .epilogue = &epilogue_int32<VecF64, kNr>};

}  // namespace cadre::cpu
