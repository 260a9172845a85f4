// The epilogue with an activation, on the vectors of simd_scalar.h.
#include "cpu/kernels/simd_scalar.h"
// The generic parts come after the vectors they are instantiated with.
#include "cpu/kernels/activated.h"
#include "cpu/kernels/kernel_list.h"

namespace cadre::cpu {

void activated_f32_scalar(const EpilogueArgs& args) { activated<VecF32, float, 8>(args); }
void activated_f64_scalar(const EpilogueArgs& args) { activated<VecF64, double, 4>(args); }
void activated_int32_scalar(const EpilogueArgs& args) { activated<VecF64, int32_t, 8>(args); }

}  // namespace cadre::cpu
