// Memory of tensors on the host and on a device.
#include "owned_tensor.h"

#include <cstdlib>
#include <cstring>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "core/convert.h"
#include "core/text.h"
#include "cpu/threads.h"
#include "machine.h"

namespace cadre::cli {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

/// splitmix64: a good hash of a counter, so elements can be filled in any order.
uint64_t hash(uint64_t value) {
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

}  // namespace

OwnedTensor::~OwnedTensor() {
  std::free(host_.data);
  if (device_data_ != nullptr) cuda_release(device_, device_data_);
}

Status OwnedTensor::make(DType dtype, std::initializer_list<int64_t> shape, Device device,
                         Pages pages) {
  elements_ = 1;
  for (int64_t dim : shape) elements_ *= dim;
  host_ = TensorView::contiguous(nullptr, dtype, shape);
  device_ = device;
  const bool huge = pages == Pages::kHuge && size_bytes() >= kHugePage;
  const size_t alignment = huge ? kHugePage : kAlignment;
  const size_t padded = (size_bytes() + alignment) / alignment * alignment;
  host_.data = std::aligned_alloc(alignment, padded);
  if (host_.data == nullptr) return Status::internal(text("no memory for ", padded, " bytes"));
#if defined(__linux__)
  if (huge) madvise(host_.data, padded, MADV_HUGEPAGE);  // only a wish
#endif
  if (device.kind == DeviceKind::kCpu) return {};
  return cuda_allocate(device, padded, &device_data_);
}

TensorView OwnedTensor::view(Side side) const {
  TensorView view = host_;
  if (side == Side::kDevice && device_.kind == DeviceKind::kCuda) {
    view.data = device_data_;
    view.device = device_;
  }
  return view;
}

double OwnedTensor::get(int64_t index) const {
  return load_as_double(host_.data, host_.dtype, index);
}

void OwnedTensor::set(int64_t index, double value) {
  if (host_.dtype == DType::kI32) {
    static_cast<int32_t*>(host_.data)[index] = static_cast<int32_t>(value);
    return;
  }
  store_rounded(host_.data, host_.dtype, index, value);
}

void OwnedTensor::fill_random(uint64_t seed, double scale) {
  const uint64_t base = hash(seed);
  cpu::for_each_index(cpu::default_thread_count(), elements_, [&](int64_t i) {
    const auto bits = static_cast<double>(hash(base + static_cast<uint64_t>(i)) >> 11);
    set(i, scale * (bits * 0x1p-52 - 1.0));
  });
}

void OwnedTensor::fill_nan(int64_t first) {
  const size_t skipped = static_cast<size_t>(first) * size_of(host_.dtype);
  std::memset(static_cast<char*>(host_.data) + skipped, 0xff, size_bytes() - skipped);
}

Status OwnedTensor::upload() {
  if (device_.kind == DeviceKind::kCpu) return {};
  return cuda_copy_in(device_data_, host_.data, size_bytes());
}

Status OwnedTensor::download() {
  if (device_.kind == DeviceKind::kCpu) return {};
  return cuda_copy_out(host_.data, device_data_, size_bytes());
}

}  // namespace cadre::cli
