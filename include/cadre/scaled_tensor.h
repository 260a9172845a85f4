// Quantised operands: FP8 data and the scales that belong to it. A value is data * scale.
#pragma once

#include <cstdint>
#include <string_view>

#include "cadre/tensor.h"

namespace cadre {

/// What shares one scale. "Inner" is the dim that a product sums over.
enum class ScaleMode : int32_t {
  kNone = 0,      ///< not quantised
  kTensor = 1,    ///< all rows, or all of one group's weights: f32
  kRow = 2,       ///< one row, or one outer index of a group's weights: f32
  kBlock128 = 3,  ///< 128 inner values of a row, 128 x 128 of weights: f32 or e8m0
  kMx = 4,        ///< 32 inner values of a row or of weights: e8m0
};

/// "none", "tensor", "row", "block_128" or "mx"; "invalid" for a value outside the enumeration.
CADRE_API std::string_view name_of(ScaleMode mode);
/// The inverse of name_of; false when no mode has this name.
CADRE_API bool scale_mode_from_name(std::string_view name, ScaleMode* mode);

/// The scales of an operand, with strides of any value. Their dims follow the data's:
///
///             rows [m, k]        weights [g, n, k]               column-wise copy (see
///             ScaledTensor)
/// kTensor     [1]                [1] or [g]                      [1]
/// kRow        [m]                [g, n]                          [g, k]
/// kBlock128   [m, ceil(k/128)]   [g, ceil(n/128), ceil(k/128)]   [blocks of 128 rows, k]
/// kMx         [m, ceil(k/32)]    [g, n, ceil(k/32)]              [blocks of 32 rows, k]
///
/// Weights that are stored [g, k, n] have the last two dims of kBlock128 and kMx exchanged.
struct CADRE_API Scales {
  ScaleMode mode = ScaleMode::kNone;
  TensorView values{};

  /// Weights in a list: the address of each group's scales. `values` is then without data and
  /// without the leading dim g.
  void* const* pointers = nullptr;
  Device pointers_device{};

  Scales() = default;
  Scales(ScaleMode scale_mode, const TensorView& scale_values)
      : mode(scale_mode), values(scale_values) {}
  /// Scales of weights in a list: each group's lie at pointers[i], in the form of `like`.
  static Scales list(ScaleMode mode, void* const* pointers, const TensorView& like,
                     Device pointers_device = {}) {
    Scales scales(mode, like);
    scales.values.data = nullptr;
    scales.pointers = pointers;
    scales.pointers_device = pointers_device;
    return scales;
  }

  bool given() const { return mode != ScaleMode::kNone; }
};

/// Rows, and their scales if they are quantised. A TensorView converts to one without scales.
///
/// Two arrangements:
/// - row-wise: [m, k], scales along k. What gmm multiplies.
/// - column-wise (`columns`): the transposed copy that quantize writes for tgmm, [k, capacity].
///   Each group's rows lie side by side along the last dim, its first on a multiple of 32, with
///   zeros from its last row up to the next multiple of 32. Groups follow each other without other
///   gaps, so capacity >= column_capacity(m, g) always suffices. Blocks of scales begin at each
///   group's first row and follow each other without gaps, too: group i has ceil(size_i / 128)
///   lines of kBlock128 and ceil(size_i / 32) of kMx.
struct CADRE_API ScaledTensor : TensorView {
  Scales scales{};
  bool columns = false;

  ScaledTensor() = default;
  ScaledTensor(const TensorView& rows) : TensorView(rows) {}  // NOLINT(google-explicit-constructor)
  ScaledTensor(const TensorView& rows, const Scales& row_scales)
      : TensorView(rows), scales(row_scales) {}
  static ScaledTensor column_wise(const TensorView& copy, const Scales& column_scales) {
    ScaledTensor tensor(copy, column_scales);
    tensor.columns = true;
    return tensor;
  }
};

/// Weights, and their scales if they are quantised.
struct CADRE_API ScaledGroups : GroupedTensor {
  Scales scales{};

  ScaledGroups() = default;
  ScaledGroups(const GroupedTensor& groups) : GroupedTensor(groups) {}  // NOLINT
  ScaledGroups(const TensorView& view) : GroupedTensor(view) {}         // NOLINT
  ScaledGroups(const GroupedTensor& groups, const Scales& group_scales)
      : GroupedTensor(groups), scales(group_scales) {}
};

/// Rows of which a column-wise copy makes a whole number for each group.
inline constexpr int64_t kColumnAlignment = 32;

/// The last dim of a column-wise copy that holds m rows in num_groups groups of any sizes.
constexpr int64_t column_capacity(int64_t m, int64_t num_groups) {
  const int64_t groups_with_rows = m < num_groups ? m : num_groups;
  return (m + groups_with_rows * (kColumnAlignment - 1)) / kColumnAlignment * kColumnAlignment;
}

/// Lines of scales that a column-wise copy has at most, for blocks of `block_rows` rows.
constexpr int64_t column_scale_capacity(int64_t m, int64_t num_groups, int64_t block_rows) {
  const int64_t groups_with_rows = m < num_groups ? m : num_groups;
  return (m + groups_with_rows * (block_rows - 1)) / block_rows;
}

}  // namespace cadre
