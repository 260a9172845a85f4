// CUDA devices: cached properties, the current device, streams, errors with names.
#include "cuda/device.h"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "core/text.h"
#include "cuda/driver.h"

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

/// Null where the driver can't be asked or the thread has none yet.
CUcontext current_context() {
  using GetCurrent = CUresult (*)(CUcontext*);
  static const auto get_current = driver_function<GetCurrent>("cuCtxGetCurrent");
  CUcontext context = nullptr;
  if (get_current == nullptr || get_current(&context) != CUDA_SUCCESS) return nullptr;
  return context;
}

/// Whether the pointer is known to be the device's own memory. Asks the driver for two attributes,
/// where the runtime's question is one for all of them and takes twice as long.
bool is_memory_of(const void* pointer, const DeviceProperties& device) {
  using GetAttributes = CUresult (*)(unsigned, CUpointer_attribute*, void**, CUdeviceptr);
  static const auto get_attributes = driver_function<GetAttributes>("cuPointerGetAttributes");
  if (get_attributes == nullptr) return false;
  CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  auto type = static_cast<CUmemorytype>(0);
  int ordinal = -1;
  void* answers[] = {&type, &ordinal};
  return get_attributes(2, asked, answers, reinterpret_cast<CUdeviceptr>(pointer)) ==
             CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_DEVICE && ordinal == device.index;
}

}  // namespace

Status device_properties(int32_t index, const DeviceProperties** properties) {
  constexpr int32_t kMaxDevices = 256;
  static std::mutex mutex;
  static std::array<std::unique_ptr<const CachedDevice>, kMaxDevices> devices;
  static std::array<std::atomic<const CachedDevice*>, kMaxDevices> ready;
  if (index < 0 || index >= kMaxDevices) {
    return Status::unsupported(text("there is no cuda:", index));
  }
  const auto slot = static_cast<size_t>(index);
  const CachedDevice* device = ready[slot].load(std::memory_order_acquire);
  if (device == nullptr) {
    const std::scoped_lock lock(mutex);
    if (!devices[slot]) devices[slot] = std::make_unique<const CachedDevice>(read_device(index));
    device = devices[slot].get();
    ready[slot].store(device, std::memory_order_release);
  }
  *properties = &device->properties;
  return device->status;
}

Status cuda_failure(std::string_view what, cudaError_t error) {
  cudaGetLastError();
  return Status::internal(text(what, ": ", describe(error)));
}

cudaError_t prepare_kernel(const void* kernel, unsigned shared_bytes, cudaFunction_t* function) {
  struct Prepared {
    CUcontext context;
    const void* kernel;
    unsigned shared_bytes;
    cudaFunction_t function;
  };
  // Direct mapped, for each thread: a kernel that was pushed out is prepared again.
  thread_local std::array<Prepared, 64> table{};
  Prepared& slot = table[(reinterpret_cast<uintptr_t>(kernel) >> 4) % table.size()];
  const CUcontext context = current_context();
  if (context != nullptr && slot.context == context && slot.kernel == kernel &&
      slot.shared_bytes >= shared_bytes) {
    *function = slot.function;
    return cudaSuccess;
  }
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (const cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode); error) return error;
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  cudaThreadExchangeStreamCaptureMode(&mode);
  if (error == cudaSuccess && shared_bytes > 48u * 1024u) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes));
  }
  if (error == cudaSuccess) error = cudaGetFuncBySymbol(function, kernel);
  // The context that is current now: the first of these calls may have made one.
  if (error == cudaSuccess) slot = {current_context(), kernel, shared_bytes, *function};
  return error;
}

DeviceGuard::DeviceGuard(int32_t index) : index_(index) {
  // The driver answers in a fifth of the time; without a current context the runtime knows.
  using GetDevice = CUresult (*)(CUdevice*);
  static const auto ask_driver = driver_function<GetDevice>("cuCtxGetDevice");
  if (ask_driver == nullptr || ask_driver(&previous_) != CUDA_SUCCESS) {
    error_ = cudaGetDevice(&previous_);
  }
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

unsigned long long stream_id(cudaStream_t stream) {
  using GetId = CUresult (*)(CUstream, unsigned long long*);
  static const auto ask_driver = driver_function<GetId>("cuStreamGetId");
  unsigned long long id = 0;
  if (ask_driver == nullptr || ask_driver(stream, &id) != CUDA_SUCCESS) return 0;
  return id;
}

Status is_capturing(std::string_view op, cudaStream_t stream, bool* capturing) {
  // The driver answers in a third of the time; what it can't answer the runtime words.
  using IsCapturing = CUresult (*)(CUstream, CUstreamCaptureStatus*);
  static const auto ask_driver = driver_function<IsCapturing>("cuStreamIsCapturing");
  auto answer = CU_STREAM_CAPTURE_STATUS_NONE;
  if (ask_driver != nullptr && ask_driver(stream, &answer) == CUDA_SUCCESS) {
    *capturing = answer != CU_STREAM_CAPTURE_STATUS_NONE;
    return {};
  }
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (const cudaError_t error = cudaStreamIsCapturing(stream, &status); error != cudaSuccess) {
    return cuda_failure(text(op, ": options.stream can't be used"), error);
  }
  *capturing = status != cudaStreamCaptureStatusNone;
  return {};
}

Status check_pointer(std::string_view op, std::string_view argument, const void* pointer,
                     const DeviceProperties& device) {
  if (pointer == nullptr || is_memory_of(pointer, device)) return {};
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
