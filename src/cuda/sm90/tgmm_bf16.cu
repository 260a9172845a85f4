// The bf16 instantiations of the tgmm kernel.
#include "cuda/sm90/tgmm_instances.cuh"

namespace cadre::sm90 {

std::span<const TgmmInstance> tgmm_instances_bf16() { return tgmm_instances<__nv_bfloat16>(); }

}  // namespace cadre::sm90
