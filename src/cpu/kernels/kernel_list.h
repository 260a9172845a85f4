// Every GemmKernel of this build, by instruction set and by what it multiplies. Which of them a
// call uses is decided in cpu/kernel_table.cc.
#pragma once

#include "cpu/kernels/gemm_kernel.h"

namespace cadre::cpu {

// Epilogues with an activation for accumulators of each type (activated_<isa>.cc). Panels are as
// wide as those of the kernels that name them: 8 (f64: 4), 16 (8) and 32 (16) columns.
void activated_f32_scalar(const EpilogueArgs& args);
void activated_f64_scalar(const EpilogueArgs& args);
void activated_int32_scalar(const EpilogueArgs& args);
void activated_f32_avx2(const EpilogueArgs& args);
void activated_f64_avx2(const EpilogueArgs& args);
void activated_int32_avx2(const EpilogueArgs& args);
void activated_f32_avx512(const EpilogueArgs& args);
void activated_f64_avx512(const EpilogueArgs& args);
void activated_int32_avx512(const EpilogueArgs& args);

extern const GemmKernel kGemmScalarF32, kGemmScalarF64, kGemmScalarInt8;
#if defined(CADRE_HAVE_AVX2)
extern const GemmKernel kGemmAvx2F32, kGemmAvx2F64, kGemmAvx2Int8;
#endif
#if defined(CADRE_HAVE_AVX512)
extern const GemmKernel kGemmAvx512F32, kGemmAvx512F64, kGemmAvx512Int8;
// Chosen where there is AMX.
extern const GemmKernel kGemmAmxF32;
#endif
#if defined(CADRE_HAVE_AVX512_VNNI)
extern const GemmKernel kGemmVnniInt8;
#endif
#if defined(CADRE_HAVE_AVX512_BF16)
extern const GemmKernel kGemmAvx512Bf16;
#endif
#if defined(CADRE_HAVE_AVX512_FP8)
extern const GemmKernel kGemmAvx512Fp8;
#endif
#if defined(CADRE_HAVE_AMX)
extern const GemmKernel kGemmAmxBf16, kGemmAmxInt8;
#endif

}  // namespace cadre::cpu
