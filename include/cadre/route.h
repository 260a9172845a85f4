// route: sorts tokens by expert. What the router chose becomes group sizes and row indices.
#pragma once

#include "cadre/context.h"
#include "cadre/tensor.h"

namespace cadre {

/// A slot is one choice of one token: slot (t, j) sends token t to expert expert_ids[t, j]. Rows
/// are the slots sorted by expert; slots of one expert keep their order (token by token, then j).
/// An id outside [0, num_experts) is dropped: it gets no row. Rows from sum(group_sizes) on belong
/// to nobody.
struct RouteArgs {
  TensorView expert_ids{};   ///< [t, top_k] of any integer type
  TensorView group_sizes{};  ///< out: [num_experts] of i32 or i64, the rows of each expert
  TensorView source_row{};   ///< out: [t * top_k] of i32 or i64, the token of each row; -1: none
  TensorView slot_row{};     ///< out: [t, top_k] of i32 or i64, the row of each slot; -1: dropped
  CallOptions options{};
};

CADRE_API Status route(Context& context, const RouteArgs& args);
CADRE_API Status route_workspace_size(Context& context, const RouteArgs& args, size_t* size_bytes);

}  // namespace cadre
