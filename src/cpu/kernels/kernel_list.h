// Every GemmKernel of this build, by instruction set and by what it multiplies. Which of them a
// call uses is decided in cpu/kernel_table.cc.
#pragma once

#include "cpu/kernels/gemm_kernel.h"

namespace cadre::cpu {

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
#if defined(CADRE_HAVE_AMX)
extern const GemmKernel kGemmAmxBf16, kGemmAmxInt8;
#endif

}  // namespace cadre::cpu
