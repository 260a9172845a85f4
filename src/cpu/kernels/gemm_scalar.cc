// Portable kernels for every machine: f32 and everything that widens to it, f64, and int8 as int32.
#include "cpu/kernels/simd_scalar.h"
// The generic parts come after the vectors they are instantiated with.
#include "cpu/kernels/epilogue.h"
#include "cpu/kernels/kernel_list.h"
#include "cpu/kernels/pack.h"
#include "cpu/kernels/widened_op.h"

namespace cadre::cpu {
namespace {

// 6 x 2 vectors of 128 bits: 12 accumulators of the 16 registers of SSE2, the smallest file there
// is.
constexpr int kRows = 6;
constexpr int kVectors = 2;
using VecU32 = VecOf<uint32_t, 4>;
using OpF32 = WidenedOp<VecF32, kRows, kVectors>;
using OpF64 = WidenedOp<VecF64, kRows, kVectors>;
using OpInt8 = WidenedOp<VecU32, kRows, kVectors>;
constexpr int kNr32 = kVectors * VecF32::kLanes;
constexpr int kNr64 = kVectors * VecF64::kLanes;

// int8 as a 32-bit number modulo 2^32: unsigned, so that overflow wraps by definition.
struct LoaderInt8 {
  using Elem = int8_t;
  using Reg = VecU32::Reg;
  static constexpr int kLanes = VecU32::kLanes;
  static constexpr int kGranuleK = 1;
  static constexpr int kGranuleBytes = 4;

  static Reg zero() { return VecU32::zero(); }
  static Reg along(const int8_t* p, int64_t count) {
    Reg r = {};
    for (int64_t i = 0; i < (count < kLanes ? count : kLanes); ++i)
      r.lane[i] = static_cast<uint32_t>(int32_t{p[i]});
    return r;
  }
  static Reg across(const int8_t* p, int64_t, int64_t, int64_t lanes) { return along(p, lanes); }
  static void store(void* p, Reg x) { VecU32::store(static_cast<uint32_t*>(p), x); }
  static void transpose(Reg (&r)[kLanes]) { VecU32::transpose(r); }
};

}  // namespace

const GemmKernel kGemmScalarF32 =
    vector_kernel<OpF32, OpF32>({.name = "scalar_f32",
                                 .acc_dtype = DType::kF32,
                                 .source_dtype = DType::kF32,
                                 .tuning = {.pack_cost = 5},
                                 .pack_a = &pack_a_widen<VecF32>,
                                 .pack_b = &pack_b_widen<VecF32, kNr32>,
                                 .epilogue = &epilogue_float<VecF32, float, kNr32>,

                                 .activated = &activated_f32_scalar,
                                 .add_scaled = &add_scaled_sums<VecF32, kNr32>});

const GemmKernel kGemmScalarF64 =
    vector_kernel<OpF64>({.name = "scalar_f64",
                          .acc_dtype = DType::kF64,
                          .pack_a = &pack_a_widen<VecF64>,
                          .pack_b = &pack_b_widen<VecF64, kNr64>,
                          .epilogue = &epilogue_float<VecF64, double, kNr64>,
                          .activated = &activated_f64_scalar});

const GemmKernel kGemmScalarInt8 =
    vector_kernel<OpInt8>({.name = "scalar_int8",
                           .acc_dtype = DType::kI32,
                           .pack_a = &pack_a_from<LoaderInt8>,
                           .pack_b = &pack_b_from<LoaderInt8, kNr32>,
                           .epilogue = &epilogue_int32<VecF64, kNr32>,
                           .activated = &activated_int32_scalar});

}  // namespace cadre::cpu
