// The f16 instantiations of the tgmm kernel.
#include "cuda/sm90/tgmm_instances.cuh"

namespace cadre::sm90 {

std::span<const TgmmInstance> tgmm_instances_f16() { return tgmm_instances<__half>(); }

}  // namespace cadre::sm90
