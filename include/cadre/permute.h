// permute: copies rows by index. Its gradient is combine without weights.
#pragma once

#include "cadre/context.h"
#include "cadre/tensor.h"

namespace cadre {

/// out[r] = x[source_row[r]]; zeros where source_row[r] is -1. Any other index outside [0, t) is a
/// fault: the row becomes zero, an error on a CPU, reported by Context::check on a device. The
/// result is the same with slot_row and without; with it a GPU reads every token once.
struct PermuteArgs {
  TensorView x{};           ///< [t, h]
  TensorView source_row{};  ///< [m] of i32 or i64
  TensorView slot_row{};    ///< [t, top_k], as route gives it beside source_row, or not given
  TensorView out{};         ///< [m, h] of x's type
  CallOptions options{};
};

CADRE_API Status permute(Context& context, const PermuteArgs& args);
CADRE_API Status permute_workspace_size(Context& context, const PermuteArgs& args,
                                        size_t* size_bytes);

}  // namespace cadre
