// The f16 instantiations of the Hopper kernels.
#include "cuda/sm90/instances.cuh"

namespace cadre::sm90 {

GmmInstance gmm_instance_f16(bool transposed_rhs, GmmShapeKind shape) {
  return gmm_instance_of<__half>(transposed_rhs, shape);
}

TgmmInstance tgmm_instance_f16(bool reads_c) { return tgmm_instance_of<__half>(reads_c); }

}  // namespace cadre::sm90
