// Operands with strides of 0: one row, one column or one matrix that stands for all of them.
#include <numeric>

#include "tests/contract/contract.h"

namespace cadre::contract::broadcast {
namespace {

using verify::COperand;
using verify::Presence;
using verify::Scalars;

/// Multiples of 16 bytes: every kernel would take them, but for the strides.
constexpr int64_t kEvenK = 64;
constexpr int64_t kEvenN = 136;

std::vector<Layout> broadcast_layouts(Placement form) {
  std::vector<Layout> layouts = {{.form = form, .broadcast_rows = true},
                                 {.form = form, .broadcast_cols = true},
                                 {.form = form, .broadcast_rows = true, .broadcast_cols = true}};
  if (form == Placement::kStacked) layouts.push_back({.form = form, .broadcast_groups = true});
  return layouts;
}

/// The case as it is, and in even dims; in turn with sizes and lists on the host and on the device.
void add(Case c, std::vector<Case>* cases) {
  c.sizes_on_device = cases->size() % 4 >= 2;
  cases->push_back(c);
  if (c.op == verify::Op::kGroupedGemm) return;  // its dims are in Case::dims
  if (c.op != verify::Op::kBiasGrad) c.k = kEvenK;
  c.n = kEvenN;
  c.sizes_on_device = !c.sizes_on_device;
  cases->push_back(c);
}

}  // namespace

Failures gmm_operands(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (const Layout& layout : broadcast_layouts(Placement::kRows)) {
    Case c = gmm::basic(types);
    c.lhs_layout = layout;
    add(c, &cases);
    c = gmm::basic(types);
    c.c = COperand::kSeparate;
    c.accumulate = true;
    c.c_layout = layout;
    add(c, &cases);
  }
  for (const Placement form : {Placement::kStacked, Placement::kList}) {
    for (const Layout& layout : broadcast_layouts(form)) {
      for (const bool transposed : {false, true}) {
        Case c = gmm::basic(types);
        c.rhs_layout = layout;
        c.transpose_rhs = transposed;
        add(c, &cases);
      }
    }
  }
  if (types.out == DType::kI32) return check_all(subject, cases);
  Case factors = gmm::basic(types);
  factors.bias = Presence::kTensor;
  factors.bias_layout.broadcast_groups = true;
  factors.bias_scale = factors.row_scale = true;
  factors.alpha = Scalars::kPerGroup;
  factors.vector_stride = 0;
  add(factors, &cases);
  factors.bias_layout = {.broadcast_cols = true};
  add(factors, &cases);
  return check_all(subject, cases);
}

Failures tgmm_operands(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (const Layout& layout : broadcast_layouts(Placement::kRows)) {
    for (const bool left : {false, true}) {
      Case c = tgmm::basic(types);
      (left ? c.lhs_layout : c.rhs_layout) = layout;
      add(c, &cases);
    }
  }
  for (const Placement form : {Placement::kStacked, Placement::kList}) {
    for (const Layout& layout : broadcast_layouts(form)) {
      Case c = tgmm::basic(types);
      c.c = COperand::kSeparate;
      c.accumulate = true;
      c.c_layout = layout;
      add(c, &cases);
    }
  }
  return check_all(subject, cases);
}

Failures grouped_gemm_operands(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (const Placement form : {Placement::kStacked, Placement::kList, Placement::kPacked}) {
    for (const Layout& layout : broadcast_layouts(form)) {
      for (int operand = 0; operand < 3; ++operand) {
        Case c = grouped_gemm::basic(types);
        if (form == Placement::kStacked) {
          c.dims = {{9, 16, 24}, {9, 16, 24}, {9, 16, 24}};
          c.lhs_layout.form = c.rhs_layout.form = c.out_layout.form = c.c_layout.form = form;
        }
        c.c = COperand::kSeparate;
        c.accumulate = true;
        (operand == 0 ? c.lhs_layout : operand == 1 ? c.rhs_layout : c.c_layout) = layout;
        add(c, &cases);
      }
    }
  }
  return check_all(subject, cases);
}

Failures bias_grad_operands(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (const Layout& layout : broadcast_layouts(Placement::kRows)) {
    Case c = bias_grad::basic(types);
    c.lhs_layout = layout;
    add(c, &cases);
  }
  Case c = bias_grad::basic(types);
  c.bias = Presence::kTensor;
  c.dbias_scale = true;
  c.bias_layout.broadcast_groups = true;
  add(c, &cases);
  c.bias_layout = {.broadcast_cols = true};
  add(c, &cases);
  return check_all(subject, cases);
}

}  // namespace cadre::contract::broadcast
