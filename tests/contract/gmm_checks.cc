// The promises of gmm.
#include "bench/shapes/shapes.h"
#include "tests/contract/contract.h"

namespace cadre::contract::gmm {

using verify::COperand;
using verify::Presence;
using verify::Scalars;

Case basic(const DTypes& types) {
  Case c{.op = verify::Op::kGmm, .seed = 11};
  c.lhs = types.lhs;
  c.rhs = types.rhs;
  c.out = types.out;
  c.c_dtype = types.out;
  c.k = 19;
  c.n = 23;
  c.lhs_layout.form = c.out_layout.form = c.c_layout.form = Placement::kRows;
  return with_sizes(c, uneven_sizes(), 4);
}

Failures right_at_tile_edges(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (int64_t edge : {63, 64, 65, 127, 128, 129, 255, 256, 257}) {
    Case wide = with_sizes(basic(types), {3, 0, 2}, 1);
    wide.n = edge;
    Case deep = wide;
    deep.k = edge;
    deep.n = 5;
    Case tall = with_sizes(basic(types), {1, edge, 0}, 0);
    tall.k = 7;
    tall.n = 9;
    Case tall_between = with_sizes(tall, {edge, 0, 1, edge + 1}, 2);
    tall_between.transpose_rhs = true;
    cases.insert(cases.end(), {wide, deep, tall, tall_between});
  }
  return check_all(subject, cases);
}

Failures right_for_every_partition(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (const std::vector<int64_t>& sizes :
       std::vector<std::vector<int64_t>>{{31},
                                         {0, 31, 0},
                                         {31, 0, 0},
                                         {0, 0, 31},
                                         std::vector<int64_t>(31, 1),
                                         {1, 0, 2, 0, 3, 0, 4, 21},
                                         {13, 7, 11}}) {
    for (int64_t tail : {0, 1, 40}) cases.push_back(with_sizes(basic(types), sizes, tail));
  }
  return check_all(subject, cases);
}

Failures transposed_weights(const Subject& subject, const DTypes& types) {
  Case c = basic(types);
  c.transpose_rhs = true;
  Case tall = c;
  tall.k = 65;
  tall.n = 6;
  Case wide = c;
  wide.k = 4;
  wide.n = 70;
  return check_all(subject, {c, tall, wide});
}

Failures tail_rows(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (Tail tail : {Tail::kZero, Tail::kUntouched}) {
    for (int64_t rows : {0, 1, 129}) {
      Case c = with_sizes(basic(types), uneven_sizes(), rows);
      c.tail = tail;
      cases.push_back(c);
      c.accumulate = true;  // kept, whatever `tail` says
      cases.push_back(c);
    }
    Case all_tail = with_sizes(basic(types), {0, 0}, 9);
    all_tail.tail = tail;
    cases.push_back(all_tail);
  }
  Case forbid = with_sizes(basic(types), uneven_sizes(), 0);
  forbid.tail = Tail::kForbid;
  cases.push_back(forbid);
  Case padded = basic(types);
  padded.out_layout.row_padding = 3;
  cases.push_back(padded);
  return check_all(subject, cases);
}

Failures group_offset(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (int64_t offset : {0, 1, 2, 4, 6}) {
    for (int64_t local : {0, 1, 2}) {
      if (offset + local > 6) continue;
      Case c = basic(types);
      c.group_offset = offset;
      c.num_local_groups = local;
      if (scales(types)) {
        c.alpha = Scalars::kPerGroup;  // indexed by local group, as is the bias
        c.bias = Presence::kTensor;
      }
      cases.push_back(c);
      c.tail = Tail::kUntouched;
      cases.push_back(c);
      c.tail = Tail::kZero;
      c.accumulate = true;
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
    c.accumulate = true;
    cases.push_back(c);
    c.accumulate = false;
    c.beta = Scalars::kUniform;
    cases.push_back(c);
    if (!scales(types)) continue;
    c.alpha = Scalars::kUniform;
    cases.push_back(c);
    c.alpha = Scalars::kPerGroup;
    c.beta = Scalars::kPerGroup;
    c.vector_stride = -2;
    cases.push_back(c);
    c.c_dtype = types.out == DType::kF32 ? DType::kBF16 : DType::kF32;
    cases.push_back(c);
  }
  if (scales(types)) {
    Case c = basic(types);
    c.alpha = Scalars::kUniform;
    cases.push_back(c);
  }
  return check_all(subject, cases);
}

Failures c_is_not_read_without_beta(const Subject& subject, const DTypes& types) {
  // What isn't read is poison: NaN in a C of its own, in the output, and where one group's beta is
  // 0.
  Case c = basic(types);
  c.c = COperand::kSeparate;
  Case per_group = c;
  if (scales(types)) per_group.beta = Scalars::kPerGroup;
  return check_all(subject, {basic(types), c, per_group});
}

Failures bias_and_scales(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (Presence bias : {Presence::kAbsent, Presence::kTensor, Presence::kList}) {
    for (bool bias_scale : {false, true}) {
      for (bool row_scale : {false, true}) {
        if (bias_scale && bias == Presence::kAbsent) continue;
        Case c = basic(types);
        c.bias = bias;
        c.bias_dtype = is_float(types.rhs) ? types.rhs : DType::kF32;
        c.bias_scale = bias_scale;
        c.row_scale = row_scale;
        cases.push_back(c);
        c.alpha = Scalars::kPerGroup;
        c.beta = Scalars::kUniform;
        c.scale_dtype = DType::kBF16;
        c.vector_stride = 3;
        c.bias_layout.col_stride = 2;
        cases.push_back(c);
      }
    }
  }
  if (scales(types)) return check_all(subject, cases);
  cases.erase(cases.begin());  // the one without any
  return check_refused(subject, cases, "because out.dtype = i32");
}

Failures any_strides(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (const Layout& layout : odd_layouts(Placement::kRows)) {
    Case c = basic(types);
    c.lhs_layout = layout;
    cases.push_back(c);
    c = basic(types);
    c.out_layout = layout;
    c.accumulate = true;
    cases.push_back(c);
    c.accumulate = false;
    c.c = COperand::kSeparate;
    c.beta = Scalars::kUniform;
    c.out_layout = {.form = Placement::kRows};
    c.c_layout = layout;
    cases.push_back(c);
  }
  for (const Layout& layout : odd_layouts(Placement::kStacked)) {
    Case c = basic(types);
    c.rhs_layout = layout;
    cases.push_back(c);
    c.transpose_rhs = true;
    cases.push_back(c);
  }
  return check_all(subject, cases);
}

Failures pointer_lists(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (bool weights : {false, true}) {
    for (bool results : {false, true}) {
      if (!weights && !results) continue;
      Case c = basic(types);
      if (weights) c.rhs_layout = {.form = Placement::kList, .gap_elements = 5};
      if (results) c.out_layout.form = c.c_layout.form = Placement::kList;
      cases.push_back(c);
      c.transpose_rhs = true;
      c.accumulate = true;
      c.c = COperand::kSeparate;
      cases.push_back(c);
      c.group_offset = 2;
      c.num_local_groups = 3;
      cases.push_back(c);
    }
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
  // NaN stands in every row outside the local groups, in weights of empty groups and in padding of
  // every case; here one live group holds it, too.
  std::vector<Case> cases = {basic(types)};
  if (is_float(types.lhs)) {
    for (int64_t group = 0; group < 6; ++group) {
      Case c = with_sizes(basic(types), {5, 0, 1, 67, 3, 8}, 3);
      c.nan_group = group;
      cases.push_back(c);
      c.transpose_rhs = true;
      c.k = 33;
      cases.push_back(c);
    }
  }
  return check_all(subject, cases);
}

Failures empty_things(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  const Case none = with_sizes(basic(types), {}, 0);
  const Case no_groups = with_sizes(basic(types), {}, 6);
  const Case all_empty = with_sizes(basic(types), {0, 0, 0}, 0);
  const Case only_tail = with_sizes(basic(types), {0, 0, 0}, 5);
  Case no_k = basic(types);
  no_k.k = 0;
  Case no_n = basic(types);
  no_n.n = 0;
  for (Case c : {none, no_groups, all_empty, only_tail, no_k, no_n}) {
    cases.push_back(c);
    c.transpose_rhs = true;
    c.accumulate = true;
    cases.push_back(c);
    if (!scales(types)) continue;
    c.accumulate = false;
    c.bias = Presence::kTensor;
    c.row_scale = true;
    cases.push_back(c);
    c.rhs_layout.form = Placement::kList;
    c.bias = Presence::kList;
    cases.push_back(c);
  }
  return check_all(subject, cases);
}

Failures packed_weights(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (bool transposed : {false, true}) {
    for (const Layout& layout : odd_layouts(Placement::kStacked)) {
      Case c = basic(types);
      c.packed_weights = true;
      c.transpose_rhs = transposed;
      c.rhs_layout = layout;
      cases.push_back(c);
    }
    Case list = basic(types);
    list.packed_weights = true;
    list.transpose_rhs = transposed;
    list.rhs_layout.form = Placement::kList;
    list.k = 129;
    list.n = 65;
    Case sharded = list;
    sharded.group_offset = 2;
    sharded.num_local_groups = 3;
    cases.insert(cases.end(), {list, sharded});
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
    c.rhs_layout.form = Placement::kList;
    c.group_offset = groups / 2;
    c.num_local_groups = groups - groups / 2;
    cases.push_back(c);
  }
  return check_all(subject, cases);
}

Failures int8_sums_are_exact(const Subject& subject, const DTypes& types) {
  Case past_24_bits = with_sizes(basic(types), {2, 0, 1}, 1);
  past_24_bits.k = 1500;
  past_24_bits.n = 3;
  past_24_bits.large_values = true;
  Case wraps = past_24_bits;
  wraps.k = 150000;  // 150000 * 120^2 is above 2^31
  wraps.accumulate = true;
  return check_all(subject, {past_24_bits, wraps});
}

Failures model_shapes(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  const int64_t smaller = has_given_isa(subject) ? 2 : 1;
  for (const shapes::Shape& full : shapes::all()) {
    const shapes::Shape shape =
        shapes::scaled_down(full, smaller * (full.tag == "train" ? 128 : 64));
    for (double skew : {0.0, 1.0}) {
      Case c = basic(types);
      c.k = shape.k;
      c.n = shape.n;
      c = with_sizes(c, shapes::router_group_sizes(shape.num_groups, shape.m(), skew, 5), 2);
      c.transpose_rhs = skew > 0;
      cases.push_back(c);
    }
  }
  return check_all(subject, cases);
}

}  // namespace cadre::contract::gmm
