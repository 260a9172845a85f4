// The table: each instruction set overrides what it does better than the one before.
#include "cpu/kernel_table.h"

#include <array>

#include "core/text.h"
#include "cpu/cache.h"
#include "cpu/kernels/kernel_list.h"

namespace cadre::cpu {
namespace {

struct KernelSet {
  const GemmKernel* f32;   ///< anything that widens to f32
  const GemmKernel* f64;   ///< anything that widens to f64
  const GemmKernel* int8;  ///< int8 x int8
  const GemmKernel* bf16;  ///< bf16 x bf16
  const GemmKernel* fp8;   ///< FP8 x FP8
};

KernelSet kernels_of(Isa isa) {
  KernelSet set{&kGemmScalarF32, &kGemmScalarF64, &kGemmScalarInt8, &kGemmScalarF32,
                &kGemmScalarF32};
#if defined(CADRE_HAVE_AVX2)
  if (isa >= Isa::kAvx2) {
    set = {&kGemmAvx2F32, &kGemmAvx2F64, &kGemmAvx2Int8, &kGemmAvx2F32, &kGemmAvx2F32};
  }
#endif
#if defined(CADRE_HAVE_AVX512)
  if (isa >= Isa::kAvx512) {
    set = {&kGemmAvx512F32, &kGemmAvx512F64, &kGemmAvx512Int8, &kGemmAvx512F32, &kGemmAvx512F32};
  }
#endif
#if defined(CADRE_HAVE_AVX512_VNNI)
  if (isa >= Isa::kAvx512Vnni) set.int8 = &kGemmVnniInt8;
#endif
#if defined(CADRE_HAVE_AVX512_BF16)
  if (isa >= Isa::kAvx512Bf16) set.bf16 = &kGemmAvx512Bf16;
#endif
#if defined(CADRE_HAVE_AVX512_FP8)
  if (isa >= Isa::kAvx512Bf16 && has_vbmi()) set.fp8 = &kGemmAvx512Fp8;
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

/// Which of a KernelSet.
enum Slot { kF32, kF64, kInt8, kBf16, kFp8, kSlots };

Slot slot_of(DType a, DType b, DType compute) {
  if (compute == DType::kF64) return kF64;
  if (compute == DType::kI32) return kInt8;
  if (is_fp8(a) && is_fp8(b)) return kFp8;
  return a == DType::kBF16 && b == DType::kBF16 ? kBf16 : kF32;
}

using KernelRow = std::array<CpuKernel, kSlots>;

std::array<KernelRow, kIsas> make_rows() {
  std::array<KernelRow, kIsas> rows;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto isa = static_cast<Isa>(i);
    const KernelSet set = kernels_of(isa);
    const std::array<const GemmKernel*, kSlots> kernels = {set.f32, set.f64, set.int8, set.bf16,
                                                           set.fp8};
    for (size_t slot = 0; slot < kSlots; ++slot) {
      rows[i][slot] = {{},
                       text("cpu/", name_of(isa)),
                       isa,
                       kernels[slot],
                       make_blocking(*kernels[slot], cache_sizes())};
    }
  }
  return rows;
}

}  // namespace

const CpuKernel& choose_kernel(Isa isa, DType a, DType b, DType compute) {
  static const std::array<KernelRow, kIsas> rows = make_rows();
  return rows[static_cast<size_t>(isa)][slot_of(a, b, compute)];
}

const GemmKernel* find_kernel(Isa isa, DType a, DType b, DType compute) {
  return choose_kernel(isa, a, b, compute).gemm;
}

}  // namespace cadre::cpu
