// Host side of the status word.
#include "cuda/status_word.h"

#include <string_view>

#include "core/text.h"
#include "cuda/device.h"
#include "cuda/workspace.h"
#include "plan/device_fault.h"

namespace cadre::cuda {
namespace {

std::string_view describe(plan::DeviceFault fault) {
  switch (fault) {
    case plan::DeviceFault::kNone:
      return "";
    case plan::DeviceFault::kNegativeSize:
      return "a group size was negative or above 2^63 - 1, or a group end below the one before; "
             "groups from it on counted as tail";
    case plan::DeviceFault::kSumAboveRows:
      return "the sum of the group sizes, or a group end, was above m; groups from the first one "
             "beyond m on counted as tail";
    case plan::DeviceFault::kGroupOffset:
      return "group_offset was outside 0 .. num_groups - local groups; every row counted as "
             "foreign";
    case plan::DeviceFault::kSumNotRows:
      return "the sum of the group sizes was not m, as tail = forbid demands";
    case plan::DeviceFault::kExtent:
      return "a per-group dimension or offset was out of range or didn't match; its group was left "
             "out";
    case plan::DeviceFault::kRowIndex:
      return "a row index was neither -1 nor the index of a row; it counted as -1";
  }
  return "an unknown fault was reported";
}

}  // namespace

Status check_status_word(detail::ContextState& context, int32_t device_index, cudaStream_t stream) {
  const DeviceProperties* device = nullptr;
  if (Status status = device_properties(device_index, &device); !status.ok()) return status;
  const DeviceGuard guard(device_index);
  if (guard.error() != cudaSuccess) return cuda_failure("check", guard.error());
  bool capturing = false;
  if (Status status = is_capturing("check", stream, &capturing); !status.ok()) return status;
  if (capturing) {
    return Status::invalid(
        "check: the stream is being captured, expected one that can be waited for");
  }
  // Frameworks launch on streams of their own, captured ones among them: no stream means all.
  if (stream == nullptr) {
    if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) {
      return cuda_failure("check: waiting for the device", error);
    }
  }
  int32_t* word = find_fault_word(context, device_index);
  auto fault = plan::DeviceFault::kNone;
  cudaError_t error = cudaSuccess;
  if (word != nullptr) {
    error = cudaMemcpyAsync(&fault, word, sizeof(fault), cudaMemcpyDeviceToHost, stream);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) return cuda_failure("check: waiting for the stream", error);
  if (fault == plan::DeviceFault::kNone) return {};
  error = cudaMemsetAsync(word, 0, sizeof(fault), stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) return cuda_failure("check: clearing the status word", error);
  return Status::invalid(text("check: on cuda:", device_index, " ", describe(fault)));
}

}  // namespace cadre::cuda
