// int8 products on the tensor cores, summed in int32 that wraps.
#include "cuda/sm80/launch_mma.cuh"

namespace cadre::sm80 {

Status launch_int8(const ProductLaunch& product) {
  return launch_mma<MmaTraits<int8_t, true, true, SmallShape>>(product);
}

}  // namespace cadre::sm80
