// What a kernel family gets for one call besides Problem, Config and Operands; and the one way to
// launch a kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

#include "core/text.h"
#include "cuda/device.h"
#include "cuda/workspace.h"

namespace cadre::cuda {

struct Launch {
  std::string_view op;  ///< "gmm", ...: the first word of every message
  cudaStream_t stream = nullptr;
  const DeviceProperties* device = nullptr;
  int32_t sm_count = 0;      ///< multiprocessors this call may occupy
  int32_t* fault = nullptr;  ///< status word: kernels call report_fault (status_word.cuh)
  /// A word of the stream that is 0 between kernels: whoever counts with it leaves it so. Launches
  /// that are captured must not use it: a graph may run beside the stream.
  uint32_t* tile_counter = nullptr;
  /// A word on the device that earlier kernels of the call write: while it is 0 the kernels of the
  /// portable family do nothing, since others have done the work. Null: they always work.
  const uint32_t* only_if = nullptr;
  Workspace workspace;
};

struct GridShape {
  unsigned blocks = 1;
  unsigned threads = 1;
  unsigned shared_bytes = 0;
  unsigned cluster = 1;
  bool after_prologue = false;  ///< programmatic dependent launch on the kernel before it
};

/// Launches `kernel` (a __global__ function whose parameters are exactly `arguments`). A failure is
/// reported with the kernel's name by the call that caused it.
template <typename... Parameters, typename... Arguments>
Status launch_kernel(const Launch& launch, std::string_view name, void (*kernel)(Parameters...),
                     const GridShape& shape, const Arguments&... arguments) {
  const auto fail = [&](cudaError_t error) {
    return cuda_failure(text(launch.op, ": kernel ", name, " failed to launch"), error);
  };
  const auto* code = reinterpret_cast<const void*>(kernel);
  if (const cudaError_t error = load_kernel(code); error != cudaSuccess) return fail(error);
  if (shape.shared_bytes > 48u * 1024u) {
    // Cheap, and needed once in each device context: so it is done every time rather than
    // remembered.
    const cudaError_t error = cudaFuncSetAttribute(
        code, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes));
    if (error != cudaSuccess) return fail(error);
  }
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {shape.cluster, 1, 1};
  }
  if (shape.after_prologue) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.blocks);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = launch.stream;
  config.attrs = attributes;
  config.numAttrs = count;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
  return error == cudaSuccess ? Status{} : fail(error);
}

}  // namespace cadre::cuda
