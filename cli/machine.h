// What this machine is: processor, instruction sets, caches, CUDA devices and their memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cadre/status.h"
#include "cadre/tensor.h"

namespace cadre::cli {

struct CpuCache {
  int level;
  std::string type;  ///< "Data", "Instruction", "Unified"
  int64_t size_bytes;
};

struct CpuInfo {
  std::string model;
  int logical_cpus;
  int threads;  ///< threads a Context uses unless told otherwise
  std::vector<std::string> features;
  std::vector<CpuCache> caches;  ///< of the first core
};

CpuInfo cpu_info();

struct CudaDeviceInfo {
  int index;
  std::string name;
  int compute_major;
  int compute_minor;
  int sm_count;
  int64_t memory_bytes;
};

/// True when the CUDA backend is in this build.
bool built_with_cuda();
/// Empty where there is no driver or no device.
std::vector<CudaDeviceInfo> cuda_devices();

/// Memory on a CUDA device; every one of these fails as unsupported in a build without CUDA.
Status cuda_allocate(Device device, size_t size_bytes, void** pointer);
void cuda_release(Device device, void* pointer);
Status cuda_copy_in(void* device_pointer, const void* host, size_t size_bytes);
Status cuda_copy_out(void* host, const void* device_pointer, size_t size_bytes);
Status cuda_synchronize();

}  // namespace cadre::cli
