// How the scales of an operand lie, by their roles in the product: the outer dim is the one that
// the result keeps, the inner one is summed over. What a choice depends on; the pointers are in
// Operands.
#pragma once

#include <cstdint>

#include "cadre/scaled_tensor.h"
#include "core/host_device.h"

namespace cadre::plan {

struct ScaleForm {
  ScaleMode mode = ScaleMode::kNone;
  DType dtype = DType::kInvalid;  ///< of the scales: f32 or e8m0
  /// Strides in elements, 0 where one scale serves all. Of rows that are gmm's lhs there is one
  /// group; a column-wise copy has its blocks in lines, which follow each other through all groups.
  int64_t group_stride = 0;
  int64_t outer_stride = 0;
  int64_t inner_stride = 0;     ///< from one block of inner values to the next
  int32_t outer_block = 1;      ///< outer indices that share a scale: 128 of kBlock128 weights
  bool columns = false;         ///< the data are a column-wise copy
  bool list = false;            ///< one pointer for each group
  int64_t lines = 0;            ///< of a column-wise copy: how many lines of blocks have memory
  int32_t alignment_bytes = 1;  ///< as in OperandLayout

  bool given() const { return mode != ScaleMode::kNone; }
  /// One factor for a whole row or column of the result: an epilogue can apply it.
  bool in_epilogue() const { return mode == ScaleMode::kTensor || mode == ScaleMode::kRow; }
  friend bool operator==(const ScaleForm&, const ScaleForm&) = default;
};

/// Inner values that share a scale; 0 where all do.
CADRE_HOST_DEVICE int32_t inner_block_of(ScaleMode mode) {
  return mode == ScaleMode::kBlock128 ? 128 : mode == ScaleMode::kMx ? 32 : 0;
}

}  // namespace cadre::plan
