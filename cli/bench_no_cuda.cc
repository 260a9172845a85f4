// The answer of `cadre bench --device cuda` in a build without the CUDA backend.
#include "bench/cuda/runner.h"

namespace cadre::bench {

Status CudaRunner::make(std::unique_ptr<CudaRunner>* /*runner*/) {
  return Status::unsupported(
      "--device = cuda, but this build has no CUDA backend; configure with the preset cuda, or "
      "with -DCADRE_CUDA=ON");
}

}  // namespace cadre::bench
