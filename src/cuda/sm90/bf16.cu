// The bf16 instantiations of the Hopper kernels.
#include "cuda/sm90/instances.cuh"

namespace cadre::sm90 {

GmmInstance gmm_instance_bf16(bool transposed_rhs, GmmShapeKind shape) {
  return gmm_instance_of<__nv_bfloat16>(transposed_rhs, shape);
}

TgmmInstance tgmm_instance_bf16(bool reads_c) { return tgmm_instance_of<__nv_bfloat16>(reads_c); }

}  // namespace cadre::sm90
