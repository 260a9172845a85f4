// Row kernels for AVX-512.
#include "cpu/kernels/simd_avx512.h"
// The generic parts come after the vectors they are instantiated with.
#include "cpu/kernels/activation_rows.h"
#include "cpu/kernels/quantize_stripe.h"
#include "cpu/kernels/rows.h"

namespace cadre::cpu {

const RowKernel kRowsAvx512 = {.weighted_sum = &weighted_sum<VecF32, VecF64>,
                               .dot = &dot<VecF32, VecF64>,
                               .activate = &activate_row<VecF32, VecF64>,
                               .activate_grad = &activate_grad_row<VecF32, VecF64>,
                               .stripe = kStripe<VecF32>};

}  // namespace cadre::cpu
