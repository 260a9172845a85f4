// The answer of `cadre bench --device cuda` and `cadre schedule --record` in a build without the
// CUDA backend.
#include "bench/cuda/runner.h"
#include "bench/cuda/tile_recording.h"

namespace cadre::bench {

Status CudaRunner::make(std::unique_ptr<CudaRunner>* /*runner*/) {
  return Status::unsupported(
      "--device = cuda, but this build has no CUDA backend; configure with the preset cuda, or "
      "with -DCADRE_CUDA=ON");
}

Status record_tiles(const shapes::Shape& /*shape*/, double /*skew*/, Pass /*pass*/, DType /*dtype*/,
                    TileRecording* /*recording*/) {
  return Status::unsupported(
      "--record, but this build has no CUDA backend; configure with -DCADRE_CUDA=ON "
      "-DCADRE_CUDA_RECORD=ON");
}

}  // namespace cadre::bench
