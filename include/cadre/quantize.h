// quantize, dequantize, amax: between bf16, f16 or f32 and FP8 data with scales. Layouts, modes and
// capacities are those of scaled_tensor.h; docs/fp8.md says how scales are chosen.
#pragma once

#include "cadre/activation.h"
#include "cadre/context.h"
#include "cadre/scaled_tensor.h"

namespace cadre {

/// Quantises rows [m, k] or weights [g, n, k], in one or both arrangements. Row r is
///     row_scale[r] * activation(x[source_row[r]])
/// in f32, and a code is that times 1 / scale, rounded to the type.
///
/// A scale is amax / largest number of the type (448 or 57344), where amax is the largest magnitude
/// of the finite values that share it, or amax_floor if that is larger. Values that are all zero
/// have scale 1. With power_of_two, and always in scales of e8m0, it is rounded up to a power of
/// two. Blocks begin at each group's first row. NaN stays NaN; infinity becomes what the type has
/// for it (NaN in e4m3) and leaves the other values of its block as they are.
///
/// Rows behind the last group aren't read: they become zeros of scale 1 in `rows`, and have no
/// place in `columns`.
struct QuantizeArgs {
  TensorView x{};            ///< [t, w]: w is k, or 2k with a gate; or weights [g, n, k]
  TensorView source_row{};   ///< rows alone: [m] of i32 or i64, -1 for a row of zeros; default: x's
  TensorView row_scale{};    ///< rows alone: [m] of f32, bf16 or f16; default 1
  Activation activation{};   ///< rows alone
  GroupSizes group_sizes{};  ///< rows alone; default: one group of all rows
  bool power_of_two = false;  ///< scales of f32 that are powers of two
  double amax_floor = 0;

  /// out, either may be missing: [m, k] of e4m3 or e5m2 with scales along k; of weights [g, n, k].
  ScaledTensor rows{};
  /// out: the transposed copy, [k, capacity] (ScaledTensor::column_wise) with scales along m; of
  /// weights [g, k, n] with scales along n, which is weights once more. The mode is that of `rows`.
  ScaledTensor columns{};
  CallOptions options{};
};

CADRE_API Status quantize(Context& context, const QuantizeArgs& args);
CADRE_API Status quantize_workspace_size(Context& context, const QuantizeArgs& args,
                                         size_t* size_bytes);

/// out = code * scale, in f32, rounded to out's type. Rows behind the last group become zeros.
struct DequantizeArgs {
  ScaledTensor x{};          ///< [m, k], weights [g, n, k], or a column-wise copy [k, capacity]
  GroupSizes group_sizes{};  ///< rows alone; default: one group of all rows
  TensorView out{};          ///< [m, k] or [g, n, k] of f32, bf16 or f16
  CallOptions options{};
};

CADRE_API Status dequantize(Context& context, const DequantizeArgs& args);
CADRE_API Status dequantize_workspace_size(Context& context, const DequantizeArgs& args,
                                           size_t* size_bytes);

/// The largest magnitude of the finite values that would share a scale; 0 where there are none.
struct AmaxArgs {
  TensorView x{};                     ///< [m, k] or weights [g, n, k] of f32, bf16 or f16
  GroupSizes group_sizes{};           ///< rows alone: what lies behind the last group isn't read
  ScaleMode mode = ScaleMode::kNone;  ///< says the shape of `out`: that of the mode's scales
  TensorView out{};                   ///< f32
  CallOptions options{};
};

CADRE_API Status amax(Context& context, const AmaxArgs& args);
CADRE_API Status amax_workspace_size(Context& context, const AmaxArgs& args, size_t* size_bytes);

}  // namespace cadre
