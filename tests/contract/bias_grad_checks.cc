// The promises of bias_grad.
#include "tests/contract/contract.h"

namespace cadre::contract::bias_grad {
namespace {

using verify::Presence;

Case with_scale_gradient(Case c) {
  c.bias = Presence::kTensor;
  c.dbias_scale = true;
  return c;
}

}  // namespace

Case basic(const DTypes& types) {
  Case c{.op = verify::Op::kBiasGrad, .seed = 14};
  c.lhs = types.lhs;
  c.bias_dtype = types.rhs;
  c.out = types.out;
  c.scale_dtype = types.out;
  c.n = 23;
  return with_sizes(c, uneven_sizes(), 4);
}

Failures sums_rows_of_each_group(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases = {basic(types)};
  for (int64_t edge : {63, 64, 65, 127, 128, 129, 255, 256, 257}) {
    Case wide = basic(types);
    wide.n = edge;
    Case tall = with_sizes(basic(types), {1, edge, 0, edge + 1}, 2);
    tall.bias_scale = true;
    cases.insert(cases.end(), {wide, tall});
  }
  Case scaled = basic(types);
  scaled.bias_scale = true;
  scaled.scale_dtype = DType::kBF16;
  scaled.vector_stride = 2;
  Case list = scaled;
  list.out_layout.form = Placement::kList;
  Case ends = scaled;
  ends.ends = true;
  Case ends_on_device = ends;
  ends_on_device.sizes_on_device = true;
  ends_on_device.group_offset = 1;
  ends_on_device.num_local_groups = 3;
  cases.insert(cases.end(), {scaled, list, ends, ends_on_device});
  return check_all(subject, cases);
}

Failures gradient_of_bias_scale(const Subject& subject, const DTypes& types) {
  Case both = with_scale_gradient(basic(types));
  Case alone = both;
  alone.dbias = false;
  Case list = both;
  list.bias = Presence::kList;
  list.bias_scale = true;
  list.vector_stride = -1;
  Case wide = both;
  wide.n = 257;
  return check_all(subject, {both, alone, list, wide});
}

Failures accumulates(const Subject& subject, const DTypes& types) {
  Case c = basic(types);
  c.accumulate = true;  // empty groups keep what they hold
  Case both = with_scale_gradient(c);
  return check_all(subject, {c, both});
}

Failures group_offset_and_tail(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (int64_t offset : {0, 1, 3, 6}) {
    for (int64_t local : {0, 1, 3}) {
      if (offset + local > 6) continue;
      Case c = with_scale_gradient(basic(types));
      c.group_offset = offset;
      c.num_local_groups = local;
      cases.push_back(c);
    }
  }
  return check_all(subject, cases);
}

Failures any_strides(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (const Layout& layout : odd_layouts(Placement::kRows)) {
    Case c = with_scale_gradient(basic(types));
    c.lhs_layout = layout;
    cases.push_back(c);
  }
  for (Layout layout : odd_layouts(Placement::kStacked)) {
    if (layout.column_major) continue;
    Case c = with_scale_gradient(basic(types));
    c.out_layout = layout;
    c.bias_layout = layout;
    cases.push_back(c);
  }
  return check_all(subject, cases);
}

Failures nan_stays_in_its_group(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (int64_t group = 0; group < 6; ++group) {
    Case c = with_scale_gradient(basic(types));
    c.nan_group = group;
    cases.push_back(c);
  }
  return check_all(subject, cases);
}

Failures empty_things(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  Case no_n = basic(types);
  no_n.n = 0;
  for (const Case& c :
       {with_sizes(basic(types), {}, 0), with_sizes(basic(types), {}, 6),
        with_sizes(basic(types), {0, 0}, 0), with_sizes(basic(types), {0, 0}, 5), no_n}) {
    cases.push_back(c);
    cases.push_back(with_scale_gradient(c));
  }
  return check_all(subject, cases);
}

}  // namespace cadre::contract::bias_grad
