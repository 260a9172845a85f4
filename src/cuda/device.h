// CUDA devices as the backend sees them: cached properties, the device a call runs on, and errors
// with names.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "cadre/status.h"
#include "cadre/tensor.h"

namespace cadre::cuda {

struct DeviceProperties {
  std::string name;
  int32_t index = 0;
  int32_t major = 0;  ///< compute capability
  int32_t minor = 0;
  int32_t sm_count = 0;
  int32_t max_shared_bytes = 0;  ///< that one block may ask for
  int32_t shared_bytes_per_sm = 0;
  bool reads_host_memory = false;  ///< kernels may follow any host pointer
};

/// Read once for each device. kUnsupported with the reason where there is no driver or no such
/// device.
Status device_properties(int32_t index, const DeviceProperties** properties);

/// "what: invalid argument (cudaErrorInvalidValue)"; clears the runtime's last error.
Status cuda_failure(std::string_view what, cudaError_t error);

/// Loads a kernel's code into the current context and lets it have `shared_bytes` of dynamic shared
/// memory; `function` is how the driver calls it there. Remembered. The driver would load it at the
/// first launch, but not in the middle of a capture: that would invalidate it.
cudaError_t prepare_kernel(const void* kernel, unsigned shared_bytes, cudaFunction_t* function);

/// Makes a device current while it lives.
class DeviceGuard {
 public:
  explicit DeviceGuard(int32_t index);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  cudaError_t error() const { return error_; }

 private:
  int previous_ = 0;
  int index_ = 0;
  cudaError_t error_ = cudaSuccess;
};

/// Fails with kInvalid when the stream belongs to another device. The device must be current.
Status check_stream(std::string_view op, cudaStream_t stream, int32_t device_index);

/// What no other stream of the process has or had; 0 where it can't be told.
unsigned long long stream_id(cudaStream_t stream);

/// True while the stream's work is being captured into a graph.
Status is_capturing(std::string_view op, cudaStream_t stream, bool* capturing);

/// Fails with kInvalid when `pointer` (not null) is host memory or another device's.
Status check_pointer(std::string_view op, std::string_view argument, const void* pointer,
                     const DeviceProperties& device);

}  // namespace cadre::cuda
