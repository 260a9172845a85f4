// The f16 instantiations of grouped_gemm.
#include "cuda/sm90/instances.cuh"

namespace cadre::sm90 {

GroupedInstance grouped_instance_f16(const GroupedOrder& order, bool reads_c) {
  return grouped_instance_of<__half>(order, reads_c);
}

}  // namespace cadre::sm90
