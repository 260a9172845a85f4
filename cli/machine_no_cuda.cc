// The answers about CUDA in a build without the CUDA backend.
#include "machine.h"

namespace cadre::cli {
namespace {

Status absent() { return Status::unsupported("this build has no CUDA backend"); }

}  // namespace

bool built_with_cuda() { return false; }
std::vector<CudaDeviceInfo> cuda_devices() { return {}; }
Status cuda_allocate(Device /*device*/, size_t /*size_bytes*/, void** /*pointer*/) {
  return absent();
}
void cuda_release(Device /*device*/, void* /*pointer*/) {}
Status cuda_copy_in(void* /*device_pointer*/, const void* /*host*/, size_t /*size_bytes*/) {
  return absent();
}
Status cuda_copy_out(void* /*host*/, const void* /*device_pointer*/, size_t /*size_bytes*/) {
  return absent();
}
Status cuda_synchronize() { return absent(); }

}  // namespace cadre::cli
