// The bf16 instantiations of the gmm kernel.
#include "cuda/sm90/gmm_instances.cuh"

namespace cadre::sm90 {

GmmInstance gmm_instance_bf16(bool transposed_rhs, const GmmConfig& config) {
  return instance_for<__nv_bfloat16>(transposed_rhs, config);
}

}  // namespace cadre::sm90
