// Where the rows of an operand come from. gmm's lhs and tgmm's operands have two numbers of rows:
// those in memory, and those of the product (Problem::m). They differ where rows are taken by
// index.
#pragma once

#include <cstdint>

#include "cadre/dtype.h"

namespace cadre::plan {

struct RowSource {
  int64_t rows = 0;  ///< of the operand in memory
  DType index =
      DType::kInvalid;  ///< type of the row index; kInvalid: row r of the product is row r

  bool by_index() const { return index != DType::kInvalid; }
  friend bool operator==(const RowSource&, const RowSource&) = default;
};

}  // namespace cadre::plan
