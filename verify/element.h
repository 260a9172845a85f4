// Elements of any type by index, as double.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/convert.h"

namespace cadre::verify {

inline double load_element(const void* data, DType dtype, int64_t index) {
  return load_as_double(data, dtype, index);
}

/// Integers must be in range; floating-point types round once.
inline void store_element(void* data, DType dtype, int64_t index, double value) {
  char* at = static_cast<char*>(data) + index * static_cast<int64_t>(size_of(dtype));
  if (dtype == DType::kI8) {
    const auto stored = static_cast<int8_t>(value);
    std::memcpy(at, &stored, sizeof(stored));
  } else if (dtype == DType::kI32) {
    const auto stored = static_cast<int32_t>(value);
    std::memcpy(at, &stored, sizeof(stored));
  } else {
    store_rounded(data, dtype, index, value);
  }
}

}  // namespace cadre::verify
