// The promises of tgmm.
#include "bench/shapes/shapes.h"
#include "tests/contract/contract.h"

namespace cadre::contract::tgmm {

using verify::COperand;
using verify::Scalars;

Case basic(const DTypes& types) {
  Case c{.op = verify::Op::kTgmm, .seed = 12};
  c.lhs = types.lhs;
  c.rhs = types.rhs;
  c.out = types.out;
  c.c_dtype = types.out;
  c.k = 19;
  c.n = 23;
  return with_sizes(c, uneven_sizes(), 4);
}

Failures right_at_tile_edges(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (int64_t edge : {63, 64, 65, 127, 128, 129, 255, 256, 257}) {
    Case wide = with_sizes(basic(types), {3, 0, 2}, 1);
    wide.n = edge;
    wide.k = 6;
    Case tall = wide;
    tall.k = edge;
    tall.n = 5;
    Case deep = with_sizes(basic(types), {1, edge, 0, edge + 1}, 2);
    deep.k = 7;
    deep.n = 9;
    cases.insert(cases.end(), {wide, tall, deep});
  }
  return check_all(subject, cases);
}

Failures right_for_every_partition(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
           {31}, {0, 31, 0}, std::vector<int64_t>(31, 1), {1, 0, 2, 0, 3, 0, 4, 21}, {13, 7, 11}}) {
    for (int64_t tail : {0, 1, 40}) cases.push_back(with_sizes(basic(types), sizes, tail));
  }
  return check_all(subject, cases);
}

Failures empty_groups_give_beta_c(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (COperand where : {COperand::kAbsent, COperand::kSeparate}) {
    Case c = with_sizes(basic(types), {0, 3, 0, 0, 2, 0}, 1);
    c.c = where;
    cases.push_back(c);  // zeros
    c.accumulate = true;
    cases.push_back(c);  // C itself
    if (!scales(types)) continue;
    c.accumulate = false;
    c.beta = Scalars::kPerGroup;
    cases.push_back(c);
    c.out_layout.form = Placement::kList;
    cases.push_back(c);
  }
  return check_all(subject, cases);
}

Failures group_offset(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (int64_t offset : {0, 1, 3, 6}) {
    for (int64_t local : {0, 1, 3}) {
      if (offset + local > 6) continue;
      Case c = basic(types);
      c.group_offset = offset;
      c.num_local_groups = local;
      if (scales(types)) c.alpha = Scalars::kPerGroup;
      cases.push_back(c);
    }
  }
  return check_all(subject, cases);
}

Failures alpha_beta_and_c(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (COperand where : {COperand::kAbsent, COperand::kOutput, COperand::kSeparate}) {
    Case c = basic(types);
    c.c = where;
    cases.push_back(c);  // C is poison, and not read
    c.accumulate = true;
    cases.push_back(c);
    if (!scales(types)) continue;
    c.accumulate = false;
    c.alpha = Scalars::kUniform;
    c.beta = Scalars::kUniform;
    cases.push_back(c);
    c.alpha = Scalars::kPerGroup;
    c.beta = Scalars::kPerGroup;
    c.vector_stride = 2;
    cases.push_back(c);
  }
  return check_all(subject, cases);
}

Failures accumulates_in_main_grad(const Subject& subject, const DTypes& types) {
  // One f32 gradient for each expert, whatever the activations are.
  Case c = basic({types.lhs, types.rhs, DType::kF32});
  c.accumulate = true;
  c.out_layout = {.form = Placement::kList, .gap_elements = 7};
  Case padded = c;
  padded.out_layout.row_padding = 4;
  return check_all(subject, {c, padded});
}

Failures any_strides(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (const Layout& layout : odd_layouts(Placement::kRows)) {
    Case c = basic(types);
    c.lhs_layout = layout;
    cases.push_back(c);
    c = basic(types);
    c.rhs_layout = layout;
    cases.push_back(c);
  }
  for (const Layout& layout : odd_layouts(Placement::kStacked)) {
    Case c = basic(types);
    c.out_layout = layout;
    cases.push_back(c);
    c.c = COperand::kSeparate;
    c.c_layout = layout;
    c.out_layout = {};
    c.accumulate = true;
    cases.push_back(c);
  }
  return check_all(subject, cases);
}

Failures pointer_lists(const Subject& subject, const DTypes& types) {
  Case c = basic(types);
  c.out_layout = {.form = Placement::kList, .gap_elements = 5};
  Case accumulated = c;
  accumulated.accumulate = true;
  Case mixed = accumulated;
  mixed.c = COperand::kSeparate;
  Case sharded = c;
  sharded.group_offset = 2;
  sharded.num_local_groups = 3;
  return check_all(subject, {c, accumulated, mixed, sharded});
}

Failures rows_by_index(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (bool lhs : {false, true}) {
    for (bool rhs : {false, true}) {
      if (!lhs && !rhs) continue;
      Case c = basic(types);
      if (lhs) c.lhs_rows = 11;
      if (rhs) c.rhs_rows = 40;
      cases.push_back(c);
      c.rows_dtype = DType::kI64;
      c.accumulate = true;
      c.group_offset = 1;
      c.num_local_groups = 4;
      cases.push_back(c);
      c = with_sizes(basic(types), {3, 300, 0, 70}, 5);
      if (lhs) c.lhs_rows = 64;
      if (rhs) c.rhs_rows = 500;
      c.k = 136;
      c.n = 144;
      cases.push_back(c);
      if (!lhs || !rhs) continue;
      c.vector_stride = 3;  // of the index, too
      c.rows_dtype = DType::kI64;
      c.k = 132;  // rows of 264 bytes in 16 bits
      c.n = 147;
      cases.push_back(c);
      c.lhs_layout.row_padding = 4;  // of whole 16 bytes again, and an edge within them
      c.rhs_layout.row_padding = 5;
      cases.push_back(c);
    }
  }
  for (const Layout& layout : odd_layouts(Placement::kRows)) {
    Case c = basic(types);
    c.lhs_rows = c.rhs_rows = 20;
    c.lhs_layout = c.rhs_layout = layout;
    cases.push_back(c);
  }
  return check_all(subject, cases);
}

Failures sizes_of_every_type(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (DType dtype : verify::kIndexTypes) {
    Case c = basic(types);
    c.sizes_dtype = dtype;
    cases.push_back(c);
    c.ends = true;
    cases.push_back(c);
    c.sizes_on_device = true;
    c.group_offset = 1;
    c.num_local_groups = 4;
    cases.push_back(c);
    c.ends = false;
    cases.push_back(c);
  }
  return check_all(subject, cases);
}

Failures nan_stays_in_its_group(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases = {basic(types)};
  if (is_float(types.lhs)) {
    for (int64_t group = 0; group < 6; ++group) {
      Case c = with_sizes(basic(types), {5, 0, 1, 67, 3, 8}, 3);
      c.nan_group = group;
      cases.push_back(c);
    }
  }
  return check_all(subject, cases);
}

Failures empty_things(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  const Case none = with_sizes(basic(types), {}, 0);
  const Case no_groups = with_sizes(basic(types), {}, 6);
  const Case no_rows = with_sizes(basic(types), {0, 0, 0}, 0);
  const Case only_tail = with_sizes(basic(types), {0, 0, 0}, 5);
  Case no_k = basic(types);
  no_k.k = 0;
  Case no_n = basic(types);
  no_n.n = 0;
  for (Case c : {none, no_groups, no_rows, only_tail, no_k, no_n}) {
    cases.push_back(c);
    c.accumulate = true;
    cases.push_back(c);
    c.out_layout.form = Placement::kList;
    cases.push_back(c);
  }
  return check_all(subject, cases);
}

Failures any_number_of_groups(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (int64_t groups : {1, 8, 64, 65, 128, 4096}) {
    std::vector<int64_t> sizes(static_cast<size_t>(groups), 0);
    for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = static_cast<int64_t>(i * i % 3);
    Case c = with_sizes(basic(types), sizes, 1);
    c.k = 3;
    c.n = 2;
    cases.push_back(c);
    c.out_layout.form = Placement::kList;
    c.group_offset = groups / 2;
    c.num_local_groups = groups - groups / 2;
    cases.push_back(c);
  }
  return check_all(subject, cases);
}

Failures int8_sums_are_exact(const Subject& subject, const DTypes& types) {
  Case c = with_sizes(basic(types), {2, 0, 1500}, 1);
  c.k = 3;
  c.n = 4;
  c.large_values = true;
  return check_all(subject, {c});
}

Failures model_shapes(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  const int64_t smaller = has_given_isa(subject) ? 2 : 1;
  for (const shapes::Shape& full : shapes::tagged("train")) {
    const shapes::Shape shape = shapes::scaled_down(full, smaller * 256);
    for (double skew : {0.0, 1.0}) {
      Case c = basic(types);
      c.k = shape.k;
      c.n = shape.n;
      cases.push_back(
          with_sizes(c, shapes::router_group_sizes(shape.num_groups, shape.m(), skew, 6), 2));
    }
  }
  return check_all(subject, cases);
}

}  // namespace cadre::contract::tgmm
