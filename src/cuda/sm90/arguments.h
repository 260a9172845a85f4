// What the Hopper kernels are told: plain structs that travel as kernel parameters, so that a
// captured graph stays right. Shapes in elements; every pointer is a device pointer.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cadre/activation.h"
#include "cuda/group_inputs.h"
#include "cuda/sm80/arguments.h"
#include "cuda/sm80/group_entry.h"
#include "cuda/sm90/schedule/tile_records.h"

namespace cadre::sm90 {

enum class ElementKind : int { kBf16, kF16, kF32, kF64, kE4M3, kE5M2 };

/// A vector of any float type; absent without data.
struct FactorVector {
  const void* data = nullptr;
  ElementKind kind = ElementKind::kF32;
  int64_t stride = 1;
};

/// One factor for all groups, or one for each.
struct GroupFactor {
  float value = 1.0f;        ///< used when there is no vector
  FactorVector per_group{};  ///< [num_local]
};

enum class ActivationFunction : int { kSigmoid, kNormal, kSquare };

/// An activation of gate g and up part u; without a gate g is the sum, and u is 1. kSigmoid: both
/// are clamped (g from above alone), then g * sigmoid(g * (linear + cubic * g^2)) * (u +
/// up_offset); x + -0 is x for every x. kNormal: g * (the normal distribution at g) * u. kSquare:
/// max(g, 0)^2.
struct ActivationArguments {
  ActivationFunction function = ActivationFunction::kSigmoid;
  float limit = 0.0f;
  float linear = 1.0f;
  float cubic = 0.0f;
  float up_offset = -0.0f;
  bool is_cubic = false;
  bool writes_input = false;  ///< the pre-activation, through GmmArguments::input_maps
};

/// The gradient of an activation (core/activation_math.h). The sums are the gradient of the
/// activation's results, EpilogueArguments::row_scale multiplies what was activated.
struct GradientArguments {
  Activation activation{};
  bool writes_d_preact = false;  ///< through GmmArguments::input_maps
  /// [16 features of out][m]: what each 16 features of a row add to its dot product; may be null.
  float* dots = nullptr;
};

/// out[r] = row_scale[r] * (alpha_g * acc + bias_scale[r] * bias_g) + beta_g * C[r]; an absent
/// vector leaves its factor out.
struct EpilogueArguments {
  ElementKind out = ElementKind::kBf16;
  bool has_factors = false;  ///< anything but a rounding of the accumulator; set by the launcher
  bool has_row_factors = false;  ///< those of a group's rows differ; set by the launcher
  bool has_c = false;            ///< C is read through GmmArguments::c_map, in out's type
  GroupFactor alpha{};
  GroupFactor beta{.value = 0.0f};
  FactorVector bias{};  ///< [num_local, n]: group g begins at g * bias_group_stride
  int64_t bias_group_stride = 0;
  void* const* bias_list = nullptr;  ///< or at bias_list[g]; bias.data is then not used
  FactorVector row_scale{};          ///< [m]
  FactorVector bias_scale{};         ///< [m]
  FactorVector lhs_scale{};          ///< [m], of FP8: two more factors of a sum
  FactorVector rhs_scale{};          ///< [num_local, n], laid out as bias
  int64_t rhs_scale_group_stride = 0;
  void* const* rhs_scale_list = nullptr;
  ActivationArguments activation{};  ///< of kernels with one
  GradientArguments gradient{};      ///< of kernels with that of one
};

/// Scales of FP8 operands for blocks of 128 of K; strides in elements.
struct ScaleBlocks {
  const void* data = nullptr;
  bool is_e8m0 = false;         ///< bytes: powers of two; else f32
  int64_t group_stride = 0;     ///< of weights
  void* const* list = nullptr;  ///< or those of group g are at list[g]
  int64_t outer_stride = 0;     ///< from a token, or 128 features, to the next
  int64_t inner_stride = 0;     ///< from 128 of K to the next
};
struct BlockScales {
  ScaleBlocks tokens;
  ScaleBlocks weights;
};

struct GmmArguments {
  CUtensorMap tokens_map;           ///< lhs, 2-D {k, m}, boxes of kTokenBox rows
  CUtensorMap tokens_rest_maps[3];  ///< the same with boxes of 16, 32 and 48 rows
  /// rhs, 3-D {k, n, g} or {n, k, g}; gates and up parts half a row apart: 4-D {k, n, 2, g} or
  /// {n, k, 2, g}.
  CUtensorMap weights_map;
  CUtensorMap out_map;  ///< out, ragged 4-D
  CUtensorMap c_map;    ///< C, ragged 4-D; only with has_c
  /// The pre-activation, ragged 4-D: all of it, or where they are half a row apart gates and up
  /// parts.
  CUtensorMap input_maps[2];
  /// A saved pre-activation, laid out in the same way; then input_maps are those of its gradient.
  CUtensorMap saved_maps[2];
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
  BlockScales block_scales;  ///< of kernels that scale what they promote
  [[no_unique_address]] TileRecorder recorder;
};

// A group as the plan (schedule/tgmm_tiles.cuh) leaves it: rows clamped to the operands.
struct TgmmGroup {
  int row;    // first row of lhs and rhs
  int rows;   // 0 for an empty group
  int group;  // local index: of out, C, alpha and beta
  int unused;
};

// The groups, longest first.
struct TgmmPlan {
  unsigned unaligned;  // a matrix of a list that the copy engine can't take: nothing is done
  unsigned unused[3];
  TgmmGroup groups[1];  // num_local of them
};

// Where the [k, n] matrices of out or C lie: pointers[group], or base + group * stride. The tensor
// map that goes with it spans the address space from `map_base` on (launch_tgmm.cc), so that one
// map serves every matrix, however they were allocated.
struct TgmmMatrices {
  const uint64_t* pointers = nullptr;
  uint64_t base = 0;
  int64_t group_stride_bytes = 0;
  uint64_t map_base = 0;
};

// An address in such a map: 16-byte steps in the third coordinate, what is left in the fourth.
inline constexpr int kTgmmLowBits = 28;

struct TgmmArguments {
  CUtensorMap lhs_map;  // ragged 4-D, boxes of 64 columns x 64 rows
  CUtensorMap rhs_map;
  CUtensorMap out_map;  // boxes of 128 bytes x 64 rows
  CUtensorMap c_map;    // kReadsC alone; C has out's type and is read where beta is not 0
  TgmmMatrices out;
  TgmmMatrices c;
  cuda::GroupInputs groups;
  int64_t* offsets = nullptr;        // room for num_local + 1
  TgmmPlan* plan = nullptr;          // room for num_local groups
  uint32_t* tile_counter = nullptr;  // 0 before and after; null: tile t goes to CTA t mod grid
  int num_local = 0;
  GroupFactor alpha{};
  GroupFactor beta{.value = 0.0f};
  int k = 0;
  int n = 0;
  int whole_columns = 0;  // later ones are no whole 16 bytes of out and are stored by address
  int64_t out_row_stride = 0;
  ElementKind output = ElementKind::kBf16;
  int band = 1;  // height of the bands of tiles
  [[no_unique_address]] TileRecorder recorder;
};

// grouped_gemm: the maps of a group's matrices, made on the device (grouped_maps.cu).
struct GroupedMaps {
  CUtensorMap a, b, out, c;
};

// What grouped_maps.cu finds out about all groups.
struct GroupedVerdict {
  uint32_t unfit;  // a matrix that the copy engine can't take: nothing is done
  uint32_t tiles;  // of all groups; 0 when one is unfit
};

struct GroupedArguments {
  const GroupedVerdict* verdict = nullptr;
  const GroupedMaps* maps = nullptr;  // of each group
  sm80::GroupEntries table{};         // made by sm80/prepare_kernel.cu for tiles of this shape
  sm80::ScaleArguments a_scales{}, b_scales{};  // of FP8
  uint32_t* tile_counter = nullptr;  // 0 before and after; null: tile t goes to CTA t mod grid
  int num_groups = 0;
  ElementKind output = ElementKind::kBf16;
  [[no_unique_address]] TileRecorder recorder{};
};

}  // namespace cadre::sm90
