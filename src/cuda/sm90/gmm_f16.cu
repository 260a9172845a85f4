// The f16 instantiations of the gmm kernel.
#include "cuda/sm90/gmm_instances.cuh"

namespace cadre::sm90 {

GmmInstance gmm_instance_f16(bool transposed_rhs, const GmmConfig& config) {
  return instance_for<__half>(transposed_rhs, config);
}

}  // namespace cadre::sm90
