// The promises of gmm beyond the product: rows by index, and activations of the result.
#include "tests/contract/contract.h"

namespace cadre::contract::gmm {

using verify::Presence;
using verify::Scalars;

Failures rows_by_index(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (DType dtype : {DType::kI32, DType::kI64}) {
    for (int64_t rows : {1, 7, 300}) {
      Case c = basic(types);
      c.lhs_rows = rows;
      c.rows_dtype = dtype;
      c.vector_stride = dtype == DType::kI64 ? 3 : 1;
      cases.push_back(c);
      c.transpose_rhs = true;
      c.accumulate = true;
      c.k = 130;
      cases.push_back(c);
    }
  }
  for (const Layout& layout : odd_layouts(Placement::kRows)) {
    Case c = basic(types);
    c.lhs_rows = 20;
    c.lhs_layout = layout;
    cases.push_back(c);
  }
  Case sharded = basic(types);
  sharded.lhs_rows = 9;
  sharded.group_offset = 2;
  sharded.num_local_groups = 3;
  Case wide = with_sizes(basic(types), {3, 300, 0, 70}, 5);
  wide.lhs_rows = 64;
  wide.k = 136;
  wide.n = 144;
  Case packed = wide;
  packed.packed_weights = true;
  Case few = with_sizes(basic(types), {1, 0, 2, 1}, 0);
  few.lhs_rows = 3;
  few.n = 200;
  cases.insert(cases.end(), {sharded, wide, packed, few});
  return check_all(subject, cases);
}

Failures activations(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (int32_t kind = 1; kind <= 8; ++kind) {
    Case c = basic(types);
    if (!is_float(c.out)) c.out = c.c_dtype = DType::kF32;
    c.activation.kind = static_cast<ActivationKind>(kind);
    c.n = 2 * 23;
    c.preactivation = kind % 2 == 0;
    for (GateLayout layout : {GateLayout::kConcatenated, GateLayout::kInterleaved}) {
      c.activation.layout = layout;
      cases.push_back(c);
      if (!c.activation.gated()) break;
    }
    c.activation.limit = 0.75;  // so that some values are beyond it
    c.transpose_rhs = true;
    c.preactivation = !c.preactivation;
    c.bias = Presence::kTensor;
    c.row_scale = c.bias_scale = kind > 4;
    c.alpha = Scalars::kPerGroup;
    cases.push_back(c);
    // Wide enough for several tiles, odd and even halves.
    if (kind != 2 && kind != 5 && kind != 8) continue;
    for (int64_t half : {136, 129}) {
      Case wide = with_sizes(c, {3, 70, 0, 20}, 5);
      wide.k = 40;
      wide.n = 2 * half;
      wide.transpose_rhs = kind % 2 == 0;
      wide.activation.layout = kind % 3 == 0 ? GateLayout::kInterleaved : GateLayout::kConcatenated;
      cases.push_back(wide);
      wide.bias = Presence::kAbsent;
      wide.row_scale = wide.bias_scale = false;
      wide.alpha = Scalars::kDefault;
      wide.transpose_rhs = !wide.transpose_rhs;
      wide.lhs_rows = 50;
      cases.push_back(wide);
    }
  }
  Case sharded = cases.back();
  sharded.group_offset = 1;
  sharded.num_local_groups = 2;
  cases.push_back(sharded);
  return check_all(subject, cases);
}

}  // namespace cadre::contract::gmm
