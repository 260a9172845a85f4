// f16 products on the tensor cores.
#include "cuda/sm80/launch_mma.cuh"

namespace cadre::sm80 {

Status launch_f16(const ProductLaunch& product, MmaTile tile) {
  return launch_mma_tile<__half>(product, tile);
}

}  // namespace cadre::sm80
