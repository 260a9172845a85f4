// The bf16 instantiations of grouped_gemm.
#include "cuda/sm90/instances.cuh"

namespace cadre::sm90 {

GroupedInstance grouped_instance_bf16(const GroupedOrder& order, bool reads_c) {
  return grouped_instance_of<__nv_bfloat16>(order, reads_c);
}

}  // namespace cadre::sm90
