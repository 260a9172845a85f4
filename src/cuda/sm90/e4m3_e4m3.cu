// The Hopper kernels' instantiations for e4m3 x e4m3.
#include "cuda/sm90/instances.cuh"

namespace cadre::sm90 {

GmmInstance gmm_instance_e4m3_e4m3(GmmShapeKind shape) {
  return fp8_gmm_instance_of<__nv_fp8_e4m3, __nv_fp8_e4m3>(shape);
}

GroupedInstance grouped_instance_e4m3_e4m3(GroupedShapeKind shape) {
  return fp8_grouped_instance_of<__nv_fp8_e4m3, __nv_fp8_e4m3>(shape);
}

}  // namespace cadre::sm90
