// The f16 instantiations of the kernels with the gradient of an activation.
#include "cuda/sm90/instances.cuh"

namespace cadre::sm90 {

GmmInstance gradient_instance_f16(bool transposed_rhs, GmmShapeKind shape) {
  return gradient_instance_of<__half>(transposed_rhs, shape);
}

}  // namespace cadre::sm90
