// Host side of the Hopper gmm kernel: operands in, launches out. No allocation, no synchronisation.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "cadre/status.h"
#include "cuda/launch.h"
#include "cuda/sm90/gmm_arguments.h"
#include "cuda/sm90/heuristic.h"

namespace cadre::sm90 {

/// Names of the kernels, in the order of GmmShapeKind.
inline constexpr std::array<std::string_view, 5> kGmmKernels = {
    "sm90/gmm_256x192", "sm90/gmm_128x192", "sm90/gmm_128x192_c", "sm90/gmm_128x256",
    "sm90/gmm_128x64"};

/// A checked call; strides in elements, rows contiguous. Every base and stride is a multiple of 16
/// bytes.
struct GmmCall {
  ElementKind element = ElementKind::kBf16;  ///< of lhs and rhs: kBf16 or kF16
  bool transposed_rhs = true;                ///< rhs is [g, n, k], else [g, k, n]
  int64_t m = 0;
  int64_t n = 0;
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
  int64_t list_rows = INT32_MAX;  ///< rows that every matrix of the lists of out and C holds
  cuda::GroupInputs groups;
  bool zero_other_rows = true;
  uint32_t* tile_counter = nullptr;  ///< 0 before and after; null: a fixed order of tiles
  EpilogueArguments epilogue;        ///< has_factors, has_row_factors: set by launch_gmm
};

/// Scratch of a call with that many lists among rhs, out and C.
size_t gmm_scratch_bytes(int64_t lists, int64_t num_local);

/// The word in the scratch that is not 0 when a list's pointer is unaligned: then the kernel has
/// done nothing.
uint32_t* list_verdict(const cuda::Launch& launch);

Status launch_gmm(const cuda::Launch& launch, const GmmCall& call, const GmmConfig& config);

}  // namespace cadre::sm90
