// f32, and everything that widens to it, on CPUs that have AMX: AVX-512 products in few
// instructions.
//
// Such a core issues six instructions and two multiply-adds a cycle, and where a second thread runs
// on it, three and two. The tile of 14 x 2 vectors (gemm_avx512.cc) takes 44 instructions for 28
// multiply-adds and is held up by that: to 60 % of the peak on 16 virtual CPUs. Here 9 x 3 vectors
// take 33 for 27: three rows of A are broadcast for three multiply-adds each, the broadcasts of the
// other six are part of theirs. More of those would need more than the two loads that a cycle has.
// The sums are the same multiply-adds in the same order, so they have the same bits.
#include "cpu/kernels/epilogue.h"
#include "cpu/kernels/folded_avx512.h"
#include "cpu/kernels/kernel_list.h"
#include "cpu/kernels/pack.h"

namespace cadre::cpu {
namespace {

constexpr int kRows = 9;
constexpr int kVectors = 3;
constexpr int kNr = kVectors * VecF32::kLanes;

using OpFolded = FoldedOpF32<kRows, kVectors, 3>;
template <class T>
using SourceF32 = HalfSource<VecF32, T, kVectors>;

}  // namespace

const GemmKernel kGemmAmxF32 = {
    .name = "amx_f32",
    .acc_dtype = DType::kF32,
    .mr = kRows,
    .nr = kNr,
    .granule_k = 1,
    .granule_bytes = 4,
    .k_step = 1,
    .subtracts_surplus = false,
    .source_dtype = DType::kF32,
    .widened_dtypes = kHalfDTypes,
    .column_rows = OpFolded::kColumnRows,
    .column_k = 2 * VecF32::kLanes,
    .streams_in_order = true,
    .rows_in_order = false,
    .pack_a = &pack_a_widen<VecF32>,
    .pack_b = &pack_b_widen<VecF32, kNr>,
    .multiply = &multiply<OpFolded, SourceF32<Bf16>, SourceF32<F16>, OpFolded>,
    .epilogue = &epilogue_float<VecF32, float, kNr>};

}  // namespace cadre::cpu
