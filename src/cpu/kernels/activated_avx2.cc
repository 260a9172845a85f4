// The epilogue with an activation, on the vectors of simd_avx2.h.
#include "cpu/kernels/simd_avx2.h"
// The generic parts come after the vectors they are instantiated with.
#include "cpu/kernels/activated.h"
#include "cpu/kernels/kernel_list.h"

namespace cadre::cpu {

void activated_f32_avx2(const EpilogueArgs& args) { activated<VecF32, float, 16>(args); }
void activated_f64_avx2(const EpilogueArgs& args) { activated<VecF64, double, 8>(args); }
void activated_int32_avx2(const EpilogueArgs& args) { activated<VecF64, int32_t, 16>(args); }

}  // namespace cadre::cpu
