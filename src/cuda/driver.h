// The driver's own functions, called without the runtime where that takes a fraction of the time.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace cadre::cuda {

/// Null where the driver has no such function.
template <typename Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  auto found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<Function>(function);
}

}  // namespace cadre::cuda
