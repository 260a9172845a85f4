// Host side of the Hopper kernels: checked operands in, launches out. No allocation, no
// synchronisation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cadre/dtype.h"
#include "cadre/status.h"
#include "cadre/tensor.h"
#include "cuda/launch.h"
#include "cuda/sm90/arguments.h"
#include "cuda/sm90/heuristic.h"

namespace cadre::sm90 {

constexpr ElementKind kind_of(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return ElementKind::kBf16;
    case DType::kF16:
      return ElementKind::kF16;
    case DType::kF64:
      return ElementKind::kF64;
    case DType::kE4M3:
      return ElementKind::kE4M3;
    case DType::kE5M2:
      return ElementKind::kE5M2;
    default:
      return ElementKind::kF32;
  }
}

constexpr bool is_fp8(ElementKind kind) {
  return kind == ElementKind::kE4M3 || kind == ElementKind::kE5M2;
}

/// Of an operand: FP8 or 16 bits.
constexpr int64_t operand_size(ElementKind kind) { return is_fp8(kind) ? 1 : 2; }

constexpr CUtensorMapDataType map_type(ElementKind kind) {
  switch (kind) {
    case ElementKind::kBf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case ElementKind::kF16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case ElementKind::kE4M3:
    case ElementKind::kE5M2:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    default:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  }
}

inline FactorVector factor_vector(const TensorView& view) {
  if (!view.given()) return {};
  return {.data = view.data, .kind = kind_of(view.dtype), .stride = view.strides[0]};
}

inline GroupFactor group_factor(const GroupScalars& scalars) {
  GroupFactor factor{.value = static_cast<float>(scalars.uniform)};
  if (scalars.varies()) factor.per_group = factor_vector(scalars.per_group);
  return factor;
}

/// A checked call; strides in elements, rows contiguous. Every base and stride is a multiple of 16
/// bytes.
struct GmmCall {
  ElementKind element = ElementKind::kBf16;      ///< of lhs: of 16 bits or FP8
  ElementKind rhs_element = ElementKind::kBf16;  ///< the same, or another FP8 type
  bool transposed_rhs = true;                    ///< rhs is [g, n, k], else [g, k, n]
  int64_t m = 0;
  int64_t n = 0;  ///< columns of out; rhs has twice as many with a gate
  int64_t k = 0;
  const void* lhs = nullptr;
  int64_t lhs_stride = 0;
  const void* rhs = nullptr;
  int64_t rhs_group_stride = 0;
  int64_t rhs_row_stride = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
  const void* c = nullptr;  ///< with epilogue.has_c: read where beta is not 0
  int64_t c_stride = 0;
  /// Device arrays of num_local pointers, in place of the base above. Unaligned ones are found on
  /// the device (list_verdict).
  void* const* rhs_list = nullptr;
  void* const* out_list = nullptr;
  void* const* c_list = nullptr;
  /// With epilogue.activation.writes_input, as wide as rhs; or that of epilogue.gradient.
  void* preactivation = nullptr;
  int64_t preactivation_stride = 0;
  void* d_preactivation = nullptr;  ///< with epilogue.gradient.writes_d_preact
  int64_t d_preactivation_stride = 0;
  int64_t list_rows = INT32_MAX;  ///< rows that every matrix of the lists of out and C holds
  cuda::GroupInputs groups;
  bool zero_other_rows = true;
  uint32_t* tile_counter = nullptr;  ///< 0 before and after; null: a fixed order of tiles
  EpilogueArguments epilogue;        ///< has_factors, has_row_factors: set by launch_gmm
  BlockScales block_scales;          ///< of kBlock128
};

/// Scratch of a call with that many lists among rhs, out and C.
size_t gmm_scratch_bytes(int64_t lists, int64_t num_local);

/// The word in the scratch that is not 0 when a list's pointer is unaligned: then the kernel has
/// done nothing.
uint32_t* list_verdict(const cuda::Launch& launch);

Status launch_gmm(const cuda::Launch& launch, const GmmCall& call, const GmmConfig& config);

// The matrices of out or C; strides in elements. `base` is the first matrix or, with `pointers` (on
// the device), at most the lowest of them.
struct TgmmResult {
  const void* base = nullptr;
  void* const* pointers = nullptr;
  int64_t group_stride = 0;
  int64_t row_stride = 0;
};

// A checked call: lhs [m, k], rhs [m, n], rows contiguous.
struct TgmmCall {
  ElementKind element = ElementKind::kBf16;  // of lhs and rhs
  ElementKind output = ElementKind::kBf16;   // of out and C
  int64_t k = 0;
  int64_t n = 0;
  const void* lhs = nullptr;
  int64_t lhs_stride = 0;
  const void* rhs = nullptr;
  int64_t rhs_stride = 0;
  TgmmResult out;
  TgmmResult c;              // used by the shape that reads it
  cuda::GroupInputs groups;  // m and the number of groups are here
  GroupFactor alpha{};
  GroupFactor beta{.value = 0.0f};
};

constexpr size_t tgmm_plan_bytes(int64_t num_local) {
  return sizeof(TgmmPlan) + static_cast<size_t>(num_local) * sizeof(TgmmGroup);
}

// Device memory of one call.
struct TgmmWorkspace {
  int64_t* offsets = nullptr;        // num_local + 1
  TgmmPlan* plan = nullptr;          // tgmm_plan_bytes(num_local)
  uint32_t* tile_counter = nullptr;  // 0 before and after; null: a fixed order of tiles
};

/// By kTgmmShapes[reads_c].
Status launch_tgmm(const cuda::Launch& launch, const TgmmCall& call, bool reads_c,
                   const TgmmWorkspace& workspace);

}  // namespace cadre::sm90
