// AVX-512 kernels without the later extensions: f32 and everything that widens to it, f64, and int8
// through 16-bit pairs (vpmaddwd).
//
// The tile is 14 x 2 vectors: 28 accumulators, 2 registers of B, and the broadcast of A, of 32
// registers. A step of k issues 28 multiply-adds for 16 loads, so two loads a cycle keep up with
// two multiply-adds a cycle. In f32 the broadcasts of ten rows are part of their multiply-adds: 34
// instructions instead of 44, where another thread on the core takes its share of them, for 26
// loads.
#include "cpu/kernels/epilogue.h"
#include "cpu/kernels/folded_avx512.h"
#include "cpu/kernels/granule_avx512.h"
#include "cpu/kernels/kernel_list.h"
#include "cpu/kernels/pack.h"
#include "cpu/kernels/widened_op.h"

namespace cadre::cpu {
namespace {

constexpr int kRows = 14;
constexpr int kVectors = 2;
struct OpF32 : FoldedOpF32<kRows, kVectors, 4> {
  static constexpr uint32_t kSourceFlip = 0;
};
template <class T>
using SourceF32 = HalfSource<VecF32, T, kVectors>;
using OpF64 = WidenedOp<VecF64, kRows, kVectors>;
constexpr int kNrF32 = kVectors * VecF32::kLanes;
constexpr int kNrF64 = kVectors * VecF64::kLanes;

// Products of two int8 and their sum in pairs are exact in int32; the additions wrap.
struct OpInt8 : DwordOp<kRows, kVectors> {
  static constexpr int kGranuleK = 2;
  static constexpr bool kSubtractsSurplus = false;
  static constexpr int64_t kSourceRowBytes = int64_t{kVectors} * kLanes;
  // Columns are packed: two instructions a product leave no time for transposing beside them.
  static constexpr int kColumnRows = 0;
  static Acc multiply_add(Acc acc, Vec a, Vec b) {
    return _mm512_add_epi32(acc, _mm512_madd_epi16(a, b));
  }
  static void load_source(const char* row, int64_t k_bytes, Vec (&b)[kVectors]) {
    byte_pairs_of_rows(row, k_bytes, b);
  }
  static void store_b(char* p, Vec b) { _mm512_storeu_si512(p, b); }
};

constexpr GemmKernel f32_kernel(const char* name, const Tuning& tuning) {
  return vector_kernel<OpF32, SourceF32<Bf16>, SourceF32<F16>, OpF32>(
      {.name = name,
       .acc_dtype = DType::kF32,
       .source_dtype = DType::kF32,
       .tuning = tuning,
       .pack_a = &pack_a_widen<VecF32, true>,
       .pack_b = &pack_b_widen<VecF32, kNrF32>,
       .epilogue = &epilogue_float<VecF32, float, kNrF32>,

       .activated = &activated_f32_avx512,
       .add_scaled = &add_scaled_sums<VecF32, kNrF32>});
}

}  // namespace

const GemmKernel kGemmAvx512F32 =
    f32_kernel("avx512_f32", {.packs_beside = true, .streams_in_order = true});
// CPUs with AMX were measured where most cores have a second thread that is somebody else's, which
// takes half of the instructions.
const GemmKernel kGemmAmxF32 =
    f32_kernel("amx_f32", {.streams_in_order = true, .rows_in_order = false});

const GemmKernel kGemmAvx512F64 =
    vector_kernel<OpF64, OpF64>({.name = "avx512_f64",
                                 .acc_dtype = DType::kF64,
                                 .source_dtype = DType::kF64,
                                 .tuning = {.streams_in_order = true},
                                 .pack_a = &pack_a_widen<VecF64>,
                                 .pack_b = &pack_b_widen<VecF64, kNrF64>,
                                 .epilogue = &epilogue_float<VecF64, double, kNrF64>,
                                 .activated = &activated_f64_avx512});

const GemmKernel kGemmAvx512Int8 =
    vector_kernel<OpInt8, OpInt8>({.name = "avx512_int8",
                                   .acc_dtype = DType::kI32,
                                   .source_dtype = DType::kI8,
                                   .pack_a = &pack_a_from<PairLoaderInt8>,
                                   .pack_b = &pack_b_from<PairLoaderInt8, kNrF32>,
                                   .epilogue = &epilogue_int32<VecF64, kNrF32>,
                                   .activated = &activated_int32_avx512});

}  // namespace cadre::cpu
