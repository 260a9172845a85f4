// int8 products on the tensor cores, summed in int32 that wraps.
#include "cuda/sm80/launch_mma.cuh"

namespace cadre::sm80 {

Status launch_int8(const ProductLaunch& product) {
  switch (product.args.by_index()) {
    case ByIndex::kRowsOfA:
      return launch_mma<MmaTraits<int8_t, true, true, SmallShape, ByIndex::kRowsOfA>>(product);
    case ByIndex::kRowsAlongK:
      return launch_mma<MmaTraits<int8_t, true, true, SmallShape, ByIndex::kRowsAlongK>>(product);
    default:
      return launch_mma<MmaTraits<int8_t, true, true, SmallShape>>(product);
  }
}

}  // namespace cadre::sm80
