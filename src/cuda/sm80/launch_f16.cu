// f16 products on the tensor cores.
#include "cuda/sm80/launch_mma.cuh"

namespace cadre::sm80 {

Status launch_f16(const ProductLaunch& product) { return launch_mma_shape<__half>(product); }

}  // namespace cadre::sm80
