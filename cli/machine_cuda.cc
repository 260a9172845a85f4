// CUDA devices and their memory, in builds with the CUDA backend.
#include <cuda_runtime_api.h>

#include "core/text.h"
#include "machine.h"

namespace cadre::cli {
namespace {

Status status_of(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return {};
  return Status::internal(text(call, ": ", cudaGetErrorString(error)));
}

}  // namespace

bool built_with_cuda() { return true; }

std::vector<CudaDeviceInfo> cuda_devices() {
  std::vector<CudaDeviceInfo> devices;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return devices;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) continue;
    devices.push_back({.index = index,
                       .name = properties.name,
                       .compute_major = properties.major,
                       .compute_minor = properties.minor,
                       .sm_count = properties.multiProcessorCount,
                       .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem)});
  }
  return devices;
}

Status cuda_allocate(Device device, size_t size_bytes, void** pointer) {
  if (Status status = status_of("cudaSetDevice", cudaSetDevice(device.index)); !status.ok()) {
    return status;
  }
  return status_of("cudaMalloc", cudaMalloc(pointer, size_bytes));
}

void cuda_release(Device device, void* pointer) {
  if (cudaSetDevice(device.index) == cudaSuccess) static_cast<void>(cudaFree(pointer));
}

Status cuda_copy_in(void* device_pointer, const void* host, size_t size_bytes) {
  return status_of("cudaMemcpy",
                   cudaMemcpy(device_pointer, host, size_bytes, cudaMemcpyHostToDevice));
}

Status cuda_copy_out(void* host, const void* device_pointer, size_t size_bytes) {
  return status_of("cudaMemcpy",
                   cudaMemcpy(host, device_pointer, size_bytes, cudaMemcpyDeviceToHost));
}

Status cuda_synchronize() { return status_of("cudaDeviceSynchronize", cudaDeviceSynchronize()); }

}  // namespace cadre::cli
