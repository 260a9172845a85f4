// What the Hopper gmm kernel is told: one plain struct that travels as a kernel parameter, so that
// a captured graph stays right. Shapes in elements; every pointer is a device pointer.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/group_inputs.h"

namespace cadre::sm90 {

enum class ElementKind : int { kBf16, kF16, kF32, kF64 };

/// A vector of any float type; absent without data.
struct FactorVector {
  const void* data = nullptr;
  ElementKind kind = ElementKind::kF32;
  int64_t stride = 1;
};

/// out[r] = row_scale[r] * (alpha_g * acc + bias_scale[r] * bias_g) + beta_g * C[r]; an absent
/// vector leaves its factor out.
struct EpilogueArguments {
  ElementKind out = ElementKind::kBf16;
  bool has_factors = false;  ///< anything but a rounding of the accumulator; set by the launcher
  bool has_row_factors = false;  ///< those of a group's rows differ; set by the launcher
  bool has_c = false;            ///< C is read through GmmArguments::c_map, in out's type
  float alpha_value = 1.0f;      ///< used when alpha is absent
  float beta_value = 0.0f;       ///< used when beta is absent
  FactorVector alpha{};          ///< [num_local]
  FactorVector beta{};           ///< [num_local]
  FactorVector bias{};           ///< [num_local, n]: group g begins at g * bias_group_stride
  int64_t bias_group_stride = 0;
  void* const* bias_list = nullptr;  ///< or at bias_list[g]; bias.data is then not used
  FactorVector row_scale{};          ///< [m]
  FactorVector bias_scale{};         ///< [m]
};

struct GmmArguments {
  CUtensorMap tokens_map;           ///< lhs, 2-D {k, m}, boxes of Traits::kTokenBox rows
  CUtensorMap tokens_rest_maps[3];  ///< the same with boxes of 16, 32 and 48 rows
  CUtensorMap weights_map;          ///< rhs, 3-D {k, n, g} or {n, k, g}
  CUtensorMap out_map;              ///< out, ragged 4-D
  CUtensorMap c_map;                ///< C, ragged 4-D; only with has_c
  /// Lists: a map for each local group in device memory, instead of the one above.
  const CUtensorMap* weights_maps = nullptr;
  const CUtensorMap* out_maps = nullptr;
  const CUtensorMap* c_maps = nullptr;
  /// Columns from whole_columns on are no whole 16 bytes of out and are stored by address.
  int whole_columns = 0;
  void* out = nullptr;
  void* const* out_list = nullptr;
  int64_t out_stride = 0;
  int m = 0;
  int n = 0;
  int k = 0;
  uint32_t* tile_counter = nullptr;   ///< 0 before and after; null: tile t goes to CTA t mod grid
  int list_rows = INT32_MAX;          ///< a group with more of them is a fault (lists of out and C)
  const uint32_t* skip_if = nullptr;  ///< not 0: an unaligned list, nothing is done
  bool zero_other_rows = true;        ///< tail and foreign rows: written with zeros, or left alone
  cuda::GroupInputs groups;
  EpilogueArguments epilogue;
};

}  // namespace cadre::sm90
