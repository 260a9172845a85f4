// A tensor that owns its memory on a device, with a copy on the host to fill and to check. On the
// CPU the two are one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "cadre/status.h"
#include "cadre/tensor.h"

namespace cadre::cli {

enum class Side { kHost, kDevice };

/// Pages of host memory that the system is asked for: what it likes, or huge ones for large
/// tensors.
enum class Pages { kAny, kHuge };

class OwnedTensor {
 public:
  OwnedTensor() = default;
  ~OwnedTensor();
  OwnedTensor(const OwnedTensor&) = delete;
  OwnedTensor& operator=(const OwnedTensor&) = delete;

  Status make(DType dtype, std::initializer_list<int64_t> shape, Device device,
              Pages pages = Pages::kAny);

  TensorView view(Side side) const;
  DType dtype() const { return host_.dtype; }
  int64_t size() const { return elements_; }

  double get(int64_t index) const;
  void set(int64_t index, double value);
  /// Host copy: uniform in [-scale, scale), a function of seed and index alone.
  void fill_random(uint64_t seed, double scale);
  /// Host copy: every bit set, a NaN in each floating-point type.
  void fill_nan(int64_t first = 0);

  Status upload();
  Status download();

 private:
  size_t size_bytes() const { return static_cast<size_t>(elements_) * size_of(host_.dtype); }

  TensorView host_{};
  Device device_{};
  void* device_data_ = nullptr;
  int64_t elements_ = 0;
};

}  // namespace cadre::cli
