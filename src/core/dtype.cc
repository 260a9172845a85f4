// Names, sizes and promotion of element types.
#include "cadre/dtype.h"

#include <algorithm>
#include <array>

namespace cadre {
namespace {

struct Entry {
  DType dtype;
  std::string_view name;
  size_t size_bytes;
};

// In the order of the enumeration, from 1 on.
constexpr std::array kEntries = {
    Entry{DType::kF64, "f64", 8},   Entry{DType::kF32, "f32", 4},   Entry{DType::kBF16, "bf16", 2},
    Entry{DType::kF16, "f16", 2},   Entry{DType::kI8, "i8", 1},     Entry{DType::kI32, "i32", 4},
    Entry{DType::kI64, "i64", 8},   Entry{DType::kU32, "u32", 4},   Entry{DType::kE4M3, "e4m3", 1},
    Entry{DType::kE5M2, "e5m2", 1}, Entry{DType::kE8M0, "e8m0", 1}, Entry{DType::kI16, "i16", 2},
    Entry{DType::kU8, "u8", 1},     Entry{DType::kU16, "u16", 2},   Entry{DType::kU64, "u64", 8},
};

constexpr bool in_order() {
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (static_cast<size_t>(kEntries[i].dtype) != i + 1) return false;
  }
  return true;
}
static_assert(in_order());

/// Null for a value outside the enumeration.
const Entry* find(DType dtype) {
  const auto index = static_cast<size_t>(static_cast<int32_t>(dtype)) - 1;
  return index < kEntries.size() ? &kEntries[index] : nullptr;
}

}  // namespace

size_t size_of(DType dtype) {
  const Entry* entry = find(dtype);
  return entry ? entry->size_bytes : 0;
}

std::string_view name_of(DType dtype) {
  const Entry* entry = find(dtype);
  return entry ? entry->name : "invalid";
}

DType dtype_from_name(std::string_view name) {
  const auto* entry = std::find_if(kEntries.begin(), kEntries.end(),
                                   [&](const Entry& each) { return each.name == name; });
  return entry == kEntries.end() ? DType::kInvalid : entry->dtype;
}

bool is_float(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16 ||
         dtype == DType::kF16;
}

bool is_integer(DType dtype) {
  switch (dtype) {
    case DType::kI8:
    case DType::kU8:
    case DType::kI16:
    case DType::kU16:
    case DType::kI32:
    case DType::kU32:
    case DType::kI64:
    case DType::kU64:
      return true;
    default:
      return false;
  }
}

bool is_fp8(DType dtype) { return dtype == DType::kE4M3 || dtype == DType::kE5M2; }

DType default_output_dtype(DType lhs, DType rhs) {
  if (is_fp8(lhs) && is_fp8(rhs)) {
    return lhs == DType::kE4M3 || rhs == DType::kE4M3 ? DType::kBF16 : DType::kInvalid;
  }
  if (lhs == DType::kI8 && rhs == DType::kI8) return DType::kI32;
  if (lhs == DType::kI8 && is_float(rhs)) return rhs;
  if (rhs == DType::kI8 && is_float(lhs)) return lhs;
  if (!is_float(lhs) || !is_float(rhs)) return DType::kInvalid;
  if (lhs == rhs) return lhs;
  // bf16 and f16 have no common 16-bit type; every other unequal pair holds the wider one already.
  return lhs == DType::kF64 || rhs == DType::kF64 ? DType::kF64 : DType::kF32;
}

}  // namespace cadre
