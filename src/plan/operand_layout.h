// How an operand lies in memory, without its address: what the choice of a kernel depends on.
#pragma once

#include <cstdint>

#include "cadre/tensor.h"

namespace cadre::plan {

struct OperandLayout {
  Placement placement = Placement::kAbsent;
  DType dtype = DType::kInvalid;
  int64_t group_stride = 0;  ///< elements
  int64_t row_stride = 0;    ///< of contiguous matrices of one width: that width
  int64_t col_stride = 1;
  bool contiguous = false;
  /// The largest power of two, at most 128, that divides the base address and, where the operand is
  /// a list on the host, every pointer; 1 for a list on a device, whose pointers nobody has read.
  int32_t alignment_bytes = 1;

  bool given() const { return placement != Placement::kAbsent; }
  friend bool operator==(const OperandLayout&, const OperandLayout&) = default;
};

}  // namespace cadre::plan
