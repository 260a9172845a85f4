// The bf16 instantiations of the kernels with the gradient of an activation.
#include "cuda/sm90/instances.cuh"

namespace cadre::sm90 {

GmmInstance gradient_instance_bf16(bool transposed_rhs, GmmShapeKind shape) {
  return gradient_instance_of<__nv_bfloat16>(transposed_rhs, shape);
}

}  // namespace cadre::sm90
