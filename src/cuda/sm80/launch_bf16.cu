// bf16 products on the tensor cores.
#include "cuda/sm80/launch_mma.cuh"

namespace cadre::sm80 {

Status launch_bf16(const ProductLaunch& product) {
  return launch_mma_shape<__nv_bfloat16>(product);
}

}  // namespace cadre::sm80
