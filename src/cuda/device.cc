// CUDA devices: cached properties, the current device, streams, errors with names.
#include "cuda/device.h"

#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "core/text.h"

namespace cadre::cuda {
namespace {

std::string describe(cudaError_t error) {
  return text(cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
}

struct CachedDevice {
  Status status;
  DeviceProperties properties;
};

CachedDevice read_device(int32_t index) {
  CachedDevice device;
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    cudaGetLastError();
    device.status = Status::unsupported(text("no usable CUDA driver: ", describe(error)));
    return device;
  }
  if (index < 0 || index >= count) {
    device.status =
        Status::unsupported(text("there is no cuda:", index, ", only ", count, " CUDA device(s)"));
    return device;
  }
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess) {
    cudaGetLastError();
    device.status = Status::unsupported(text("cuda:", index, " can't be used: ", describe(error)));
    return device;
  }
  device.properties = {
      .name = properties.name,
      .index = index,
      .major = properties.major,
      .minor = properties.minor,
      .sm_count = properties.multiProcessorCount,
      .max_shared_bytes = static_cast<int32_t>(properties.sharedMemPerBlockOptin),
      .shared_bytes_per_sm = static_cast<int32_t>(properties.sharedMemPerMultiprocessor),
      .reads_host_memory = properties.pageableMemoryAccess != 0};
  return device;
}

}  // namespace

Status device_properties(int32_t index, const DeviceProperties** properties) {
  static std::mutex mutex;
  static std::vector<std::unique_ptr<CachedDevice>> devices;
  constexpr int32_t kMaxDevices = 1024;
  if (index < 0 || index >= kMaxDevices) {
    return Status::unsupported(text("there is no cuda:", index));
  }
  const std::scoped_lock lock(mutex);
  const auto slot = static_cast<size_t>(index);
  if (devices.size() <= slot) devices.resize(slot + 1);
  if (!devices[slot]) devices[slot] = std::make_unique<CachedDevice>(read_device(index));
  *properties = &devices[slot]->properties;
  return devices[slot]->status;
}

Status cuda_failure(std::string_view what, cudaError_t error) {
  cudaGetLastError();
  return Status::internal(text(what, ": ", describe(error)));
}

cudaError_t load_kernel(const void* kernel) {
  static std::mutex mutex;
  static std::set<std::pair<int, const void*>> loaded;
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  const std::scoped_lock lock(mutex);
  if (loaded.contains({device, kernel})) return cudaSuccess;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (const cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode); error) return error;
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  cudaThreadExchangeStreamCaptureMode(&mode);
  if (error == cudaSuccess) loaded.insert({device, kernel});
  return error;
}

DeviceGuard::DeviceGuard(int32_t index) : index_(index) {
  error_ = cudaGetDevice(&previous_);
  if (error_ == cudaSuccess && previous_ != index_) error_ = cudaSetDevice(index_);
}

DeviceGuard::~DeviceGuard() {
  if (error_ == cudaSuccess && previous_ != index_) cudaSetDevice(previous_);
}

Status check_stream(std::string_view op, cudaStream_t stream, int32_t device_index) {
  // The default streams follow the current device.
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) return {};
  int owner = device_index;
  if (cudaStreamGetDevice(stream, &owner) != cudaSuccess) {
    cudaGetLastError();  // a driver without this query: the launch itself will tell
    return {};
  }
  if (owner == device_index) return {};
  return Status::invalid(text(op, ": options.stream belongs to cuda:", owner,
                              ", expected a stream of cuda:", device_index));
}

Status is_capturing(std::string_view op, cudaStream_t stream, bool* capturing) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (const cudaError_t error = cudaStreamIsCapturing(stream, &status); error != cudaSuccess) {
    return cuda_failure(text(op, ": options.stream can't be used"), error);
  }
  *capturing = status != cudaStreamCaptureStatusNone;
  return {};
}

Status check_pointer(std::string_view op, std::string_view argument, const void* pointer,
                     const DeviceProperties& device) {
  if (pointer == nullptr) return {};
  cudaPointerAttributes attributes{};
  if (const cudaError_t error = cudaPointerGetAttributes(&attributes, pointer);
      error != cudaSuccess) {
    return cuda_failure(text(op, ": ", argument, ": its pointer can't be looked up"), error);
  }
  switch (attributes.type) {
    case cudaMemoryTypeDevice:
      if (attributes.device == device.index) return {};
      return Status::invalid(text(op, ": ", argument, ".data lies on cuda:", attributes.device,
                                  ", expected memory of cuda:", device.index));
    case cudaMemoryTypeUnregistered:
      if (device.reads_host_memory) return {};
      return Status::invalid(text(
          op, ": ", argument, ".data is a host pointer, expected memory of cuda:", device.index));
    default:  // managed memory, and page-locked host memory that the device can reach
      if (attributes.devicePointer != nullptr) return {};
      return Status::invalid(text(
          op, ": ", argument, ".data is a host pointer, expected memory of cuda:", device.index));
  }
}

}  // namespace cadre::cuda
