// The table: each instruction set overrides what it does better than the one before.
#include "cpu/kernel_table.h"

#include "cpu/kernels/kernel_list.h"

namespace cadre::cpu {
namespace {

struct KernelSet {
  const GemmKernel* f32;   ///< anything that widens to f32
  const GemmKernel* f64;   ///< anything that widens to f64
  const GemmKernel* int8;  ///< int8 x int8
  const GemmKernel* bf16;  ///< bf16 x bf16
};

KernelSet kernels_of(Isa isa) {
  KernelSet set{&kGemmScalarF32, &kGemmScalarF64, &kGemmScalarInt8, &kGemmScalarF32};
#if defined(CADRE_HAVE_AVX2)
  if (isa >= Isa::kAvx2) set = {&kGemmAvx2F32, &kGemmAvx2F64, &kGemmAvx2Int8, &kGemmAvx2F32};
#endif
#if defined(CADRE_HAVE_AVX512)
  if (isa >= Isa::kAvx512)
    set = {&kGemmAvx512F32, &kGemmAvx512F64, &kGemmAvx512Int8, &kGemmAvx512F32};
#endif
#if defined(CADRE_HAVE_AVX512_VNNI)
  if (isa >= Isa::kAvx512Vnni) set.int8 = &kGemmVnniInt8;
#endif
#if defined(CADRE_HAVE_AVX512_BF16)
  if (isa >= Isa::kAvx512Bf16) set.bf16 = &kGemmAvx512Bf16;
#endif
#if defined(CADRE_HAVE_AMX)
  if (isa >= Isa::kAmx) {
    set.bf16 = &kGemmAmxBf16;
    set.int8 = &kGemmAmxInt8;
    set.f32 = &kGemmAmxF32;
  }
#endif
  return set;
}

}  // namespace

const GemmKernel* find_kernel(Isa isa, DType a, DType b, DType compute) {
  const KernelSet set = kernels_of(isa);
  if (compute == DType::kF64) return set.f64;
  if (compute == DType::kI32) return set.int8;
  return a == DType::kBF16 && b == DType::kBF16 ? set.bf16 : set.f32;
}

}  // namespace cadre::cpu
