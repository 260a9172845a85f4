// bf16 x bf16 with AVX512_BF16.
#include "cpu/kernels/bf16_op.h"
#include "cpu/kernels/kernel_list.h"
#include "cpu/kernels/pack.h"

namespace cadre::cpu {

const GemmKernel kGemmAvx512Bf16 =
    vector_kernel<OpBf16, OpBf16>({.name = "avx512_bf16",
                                   .acc_dtype = DType::kF32,
                                   .source_dtype = DType::kBF16,
                                   .rounded_dtype = DType::kBF16,
                                   .tuning = {.packs_beside = true, .streams_in_order = true},
                                   .pack_a = &pack_a_from<PairLoaderBf16>,
                                   .pack_b = &pack_b_from<PairLoaderBf16, kBf16Nr>,
                                   .epilogue = &epilogue_float<VecF32, float, kBf16Nr>,
                                   .activated = &activated_f32_avx512});

}  // namespace cadre::cpu
