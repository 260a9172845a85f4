// The x86 instruction sets this backend has kernels for, which of them this machine can run, and
// the choice by name.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cadre/status.h"

namespace cadre::cpu {

/// Ordered: each one includes all before it.
enum class Isa : int {
  kScalar,      ///< portable C++, on every processor
  kAvx2,        ///< AVX2, FMA and F16C
  kAvx512,      ///< AVX-512 F, BW, VL and DQ
  kAvx512Vnni,  ///< and VNNI: int8
  kAvx512Bf16,  ///< and BF16: bf16 x bf16
  kAmx,         ///< and AMX tiles for bf16 and int8
};
inline constexpr size_t kIsas = static_cast<size_t>(Isa::kAmx) + 1;

/// "scalar", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx"
std::string_view name_of(Isa isa);

/// AVX512_VBMI beside an instruction set from kAvx512Bf16 on, and kernels for both in this build:
/// all processors with AVX512_BF16 but one family have it.
bool has_vbmi();

/// What this build and this machine (processor and operating system) both have, in ascending order.
/// Never empty.
const std::vector<Isa>& available_isas();

/// The best available, or the one called `name` if that isn't empty; an unknown or missing one is
/// an error that lists what there is.
Status resolve_isa(std::string_view name, Isa* isa);

}  // namespace cadre::cpu
