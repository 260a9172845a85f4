// The one way to launch a kernel.
#include "cuda/launch.h"

#include "core/text.h"

namespace cadre::cuda {

Status launch_code(const Launch& launch, std::string_view name, const void* kernel,
                   const GridShape& shape, void* const* parameters) {
  const auto fail = [&](cudaError_t error) {
    return cuda_failure(text(launch.op, ": kernel ", name, " failed to launch"), error);
  };
  if (const cudaError_t error = prepare_kernel(kernel, shape.shared_bytes); error != cudaSuccess) {
    return fail(error);
  }
  cudaLaunchAttribute dependent{};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.blocks);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = launch.stream;
  config.attrs = &dependent;
  config.numAttrs = shape.after_prologue ? 1 : 0;
  const cudaError_t error = cudaLaunchKernelExC(&config, kernel, const_cast<void**>(parameters));
  return error == cudaSuccess ? Status{} : fail(error);
}

}  // namespace cadre::cuda
