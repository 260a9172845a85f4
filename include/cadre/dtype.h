// Element types, their sizes and names, and the default output type of a product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cadre/export.h"

namespace cadre {

/// Element types. The values are part of the C ABI (`cadre_dtype`) and never change.
enum class DType : int32_t {
  kInvalid = 0,
  kF64 = 1,
  kF32 = 2,
  kBF16 = 3,
  kF16 = 4,
  kI8 = 5,
  kI32 = 6,
  kI64 = 7,
  kU32 = 8,
  kE4M3 = 9,   ///< FP8 with 4 exponent bits (OCP "fn": no infinities)
  kE5M2 = 10,  ///< FP8 with 5 exponent bits
  kE8M0 = 11,  ///< power-of-two scales of the `mx` mode
  kI16 = 12,   ///< from here on: types of group sizes and offsets alone
  kU8 = 13,
  kU16 = 14,
  kU64 = 15,
};

/// Bytes of one element; 0 for a value outside the enumeration.
CADRE_API size_t size_of(DType dtype);

/// "f32", "bf16", ...; "invalid" for a value outside the enumeration.
CADRE_API std::string_view name_of(DType dtype);

/// The inverse of name_of; DType::kInvalid when no type has this name.
CADRE_API DType dtype_from_name(std::string_view name);

/// f64, f32, bf16 or f16.
CADRE_API bool is_float(DType dtype);

/// Signed and unsigned integers of 8 to 64 bits: what group sizes, offsets and extents may be.
CADRE_API bool is_integer(DType dtype);

/// e4m3 or e5m2.
CADRE_API bool is_fp8(DType dtype);

/// What a product of these two gives unless the caller asks for something else: the promoted
/// type; int8 x int8 gives int32; two FP8 types, at least one of them e4m3, give bf16. kInvalid
/// when the pair has no product.
CADRE_API DType default_output_dtype(DType lhs, DType rhs);

}  // namespace cadre
