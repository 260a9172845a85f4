// The one way to launch a kernel.
#include "cuda/launch.h"

#include "core/text.h"
#include "cuda/driver.h"

namespace cadre::cuda {

Status launch_code(const Launch& launch, std::string_view name, const void* kernel,
                   const GridShape& shape, void* const* parameters) {
  const auto fail = [&](cudaError_t error) {
    return cuda_failure(text(launch.op, ": kernel ", name, " failed to launch"), error);
  };
  cudaFunction_t function = nullptr;
  if (const cudaError_t error = prepare_kernel(kernel, shape.shared_bytes, &function);
      error != cudaSuccess) {
    return fail(error);
  }
  // Without the runtime a launch takes an eighth less of the host's time. Streams, functions and
  // errors are the same in both.
  using LaunchKernel = CUresult (*)(const CUlaunchConfig*, CUfunction, void**, void**);
  static const auto launch_kernel = driver_function<LaunchKernel>("cuLaunchKernelEx");
  if (launch_kernel == nullptr) return fail(cudaErrorCallRequiresNewerDriver);
  CUlaunchConfig config{};
  config.gridDimX = shape.blocks;
  config.gridDimY = shape.rows;
  config.gridDimZ = shape.layers;
  config.blockDimX = shape.threads;
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = shape.shared_bytes;
  config.hStream = launch.stream;
  CUlaunchAttribute attributes[2]{};
  config.attrs = attributes;
  // Elsewhere a kernel may run from PTX of an older target, which knows nothing to wait with.
  if (shape.after_prologue && launch.device->major == 9) {
    CUlaunchAttribute& dependent = attributes[config.numAttrs++];
    dependent.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    dependent.value.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    CUlaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster.value.clusterDim = {shape.cluster, 1, 1};
  }
  const CUresult result = launch_kernel(&config, function, const_cast<void**>(parameters), nullptr);
  return result == CUDA_SUCCESS ? Status{} : fail(static_cast<cudaError_t>(result));
}

}  // namespace cadre::cuda
