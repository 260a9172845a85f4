// The promises of grouped_gemm.
#include "tests/contract/contract.h"

namespace cadre::contract::grouped_gemm {
namespace {

using verify::COperand;
using verify::Scalars;

void set_forms(Case* c, Placement form) {
  for (Layout* layout : {&c->lhs_layout, &c->rhs_layout, &c->out_layout, &c->c_layout}) {
    *layout = {.form = form};
  }
}

Case uniform(const DTypes& types) {
  Case c = basic(types);
  c.dims = {{7, 5, 9}, {7, 5, 9}, {7, 5, 9}};
  set_forms(&c, Placement::kStacked);
  return c;
}

}  // namespace

Case basic(const DTypes& types) {
  Case c{.op = verify::Op::kGroupedGemm, .seed = 13};
  c.lhs = types.lhs;
  c.rhs = types.rhs;
  c.out = types.out;
  c.c_dtype = types.out;
  c.dims = {{5, 7, 3}, {0, 4, 6}, {1, 1, 1}, {17, 33, 12}, {4, 0, 5}, {2, 9, 40}};
  set_forms(&c, Placement::kList);
  return c;
}

Failures every_group_has_its_own_dims(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases = {basic(types)};
  for (int64_t edge : {63, 64, 65, 127, 128, 129, 255, 256, 257}) {
    Case c = basic(types);
    c.dims = {{edge, 3, 5}, {4, edge, 6}, {5, 2, edge}};
    cases.push_back(c);
  }
  return check_all(subject, cases);
}

Failures any_number_of_groups(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (int64_t groups : {1, 64, 65, 4096}) {
    Case c = basic(types);
    c.dims.clear();
    for (int64_t i = 0; i < groups; ++i) c.dims.push_back({i * i % 3, 1 + i % 2, 1 + i % 4});
    cases.push_back(c);
    set_forms(&c, Placement::kPacked);
    cases.push_back(c);
  }
  return check_all(subject, cases);
}

Failures transposes(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (bool lhs : {false, true}) {
    for (bool rhs : {false, true}) {
      for (Case c : {basic(types), uniform(types)}) {
        c.transpose_lhs = lhs;
        c.transpose_rhs = rhs;
        cases.push_back(c);
      }
    }
  }
  return check_all(subject, cases);
}

Failures alpha_beta_and_c(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (COperand where : {COperand::kAbsent, COperand::kOutput, COperand::kSeparate}) {
    Case c = basic(types);
    c.c = where;
    cases.push_back(c);
    c.accumulate = true;
    cases.push_back(c);
    if (!scales(types)) continue;
    c.accumulate = false;
    c.alpha = Scalars::kPerGroup;
    c.beta = Scalars::kPerGroup;
    cases.push_back(c);
    c.alpha = Scalars::kUniform;
    c.beta = Scalars::kUniform;
    cases.push_back(c);
  }
  return check_all(subject, cases);
}

Failures every_form_of_tensor(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  constexpr Placement kForms[] = {Placement::kStacked, Placement::kList, Placement::kPacked};
  for (Placement a : kForms) {
    for (Placement b : kForms) {
      for (Placement d : kForms) {
        Case c = uniform(types);
        c.lhs_layout.form = a;
        c.rhs_layout.form = b;
        c.out_layout.form = d;
        c.c_layout.form = a;
        c.c = COperand::kSeparate;
        c.accumulate = true;
        cases.push_back(c);
      }
    }
  }
  Case packed = basic(types);
  set_forms(&packed, Placement::kPacked);
  cases.push_back(packed);
  for (Layout* layout : {&packed.lhs_layout, &packed.rhs_layout, &packed.out_layout}) {
    layout->explicit_offsets = true;
    layout->gap_elements = 3;
    layout->offset_elements = 5;
    cases.push_back(packed);
  }
  return check_all(subject, cases);
}

Failures any_strides(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (Placement form : {Placement::kStacked, Placement::kList}) {
    for (const Layout& layout : odd_layouts(form)) {
      for (int operand = 0; operand < 3; ++operand) {
        Case c = form == Placement::kStacked ? uniform(types) : basic(types);
        (operand == 0 ? c.lhs_layout : operand == 1 ? c.rhs_layout : c.out_layout) = layout;
        cases.push_back(c);
      }
    }
  }
  return check_all(subject, cases);
}

Failures nan_stays_in_its_group(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (int64_t group = 0; group < 6; ++group) {
    Case c = basic(types);
    if (is_float(types.lhs)) c.nan_group = group;
    set_forms(&c, group % 2 ? Placement::kPacked : Placement::kList);
    cases.push_back(c);
  }
  return check_all(subject, cases);
}

Failures empty_things(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (const auto& dims : std::vector<std::vector<verify::GemmDims>>{
           {},
           {{0, 3, 4}},
           {{3, 0, 4}},
           {{3, 4, 0}},
           {{0, 0, 0}, {0, 0, 0}},
           {{3, 5, 4}, {0, 3, 4}, {3, 0, 4}, {3, 4, 0}, {0, 0, 0}, {2, 5, 7}}}) {
    for (Placement form : {Placement::kStacked, Placement::kList, Placement::kPacked}) {
      if (form == Placement::kStacked && dims.size() > 2) continue;  // of one shape
      Case c = basic(types);
      c.dims = dims;
      set_forms(&c, form);
      cases.push_back(c);
      c.accumulate = true;
      cases.push_back(c);
    }
  }
  return check_all(subject, cases);
}

}  // namespace cadre::contract::grouped_gemm
