// What a kernel family gets for one call besides Problem, Config and Operands; and the one way to
// launch a kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>
#include <type_traits>

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
  /// A word that is 0 between kernels: whoever counts with it leaves it so. The stream's, or where
  /// it is being captured one that belongs to the graph, which may run beside the stream; null
  /// where there is none.
  uint32_t* tile_counter = nullptr;
  /// A word on the device that earlier kernels of the call write: while it is 0 the kernels of the
  /// portable family do nothing, since others have done the work. Null: they always work.
  const uint32_t* only_if = nullptr;
  Workspace workspace;
};

struct GridShape {
  unsigned blocks = 1;
  unsigned rows = 1;    ///< of so many blocks: blockIdx.y
  unsigned layers = 1;  ///< of so many rows: blockIdx.z
  unsigned threads = 1;
  unsigned shared_bytes = 0;
  /// Programmatic dependent launch on the kernel before it (ptx/pdl.cuh), on Hopper.
  bool after_prologue = false;
  unsigned cluster = 1;  ///< blocks of a cluster
};

/// Launches the __global__ function `kernel`; `parameters` are the addresses of its parameters. A
/// failure is reported with the kernel's name by the call that caused it.
Status launch_code(const Launch& launch, std::string_view name, const void* kernel,
                   const GridShape& shape, void* const* parameters);

/// The same for a kernel whose parameters are exactly `arguments`.
template <typename... Parameters, typename... Arguments>
Status launch_kernel(const Launch& launch, std::string_view name, void (*kernel)(Parameters...),
                     const GridShape& shape, const Arguments&... arguments) {
  static_assert((std::is_same_v<Parameters, Arguments> && ...),
                "the driver copies them as they are");
  void* const parameters[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  return launch_code(launch, name, reinterpret_cast<const void*>(kernel), shape, parameters);
}

}  // namespace cadre::cuda
