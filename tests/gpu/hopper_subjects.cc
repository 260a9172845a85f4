// See hopper_subjects.h.
#include "tests/gpu/hopper_subjects.h"

#include <algorithm>
#include <numeric>

namespace cadre::tests {
namespace {

using verify::Case;
using verify::COperand;
using verify::Layout;
using verify::Op;

constexpr int64_t kVector = 8;  // elements: 16 bytes of a 16-bit type, 32 of f32
/// Makes the 31 rows of most cases 403: several tiles in a group, and no tile full.
constexpr int64_t kMoreRows = 13;
constexpr int64_t kFewRows = 64;

/// Distances between rows, matrices and bases become multiples of 16 bytes.
bool fit_layout(int64_t row_elements, Layout* layout) {
  if (layout->col_stride != 1 || layout->reverse_rows || layout->reverse_cols ||
      layout->broadcast_rows || layout->broadcast_cols || layout->broadcast_groups) {
    return false;
  }
  layout->row_padding *= kVector;
  layout->offset_elements *= kVector;
  layout->gap_elements *= kVector;
  // A matrix ends with its last element, so the gap behind it pads its last row.
  const int64_t missing = (kVector - row_elements % kVector) % kVector;
  layout->row_padding += missing;
  layout->gap_elements += missing;
  return true;
}

void widen(Case* c) {
  if (c->k % kVector == 0 && c->n % kVector == 0) return;
  c->k *= kVector;
  c->n *= kVector;
}

/// Every group's extents become multiples of 8, but for k where only strides have to be.
bool fit_grouped(const HopperSubject& subject, Case* c) {
  bool any = false;
  for (verify::GemmDims& dims : c->dims) {
    dims.m *= kVector;
    dims.k *= kVector;
    dims.n *= kVector;
    if (subject.fit == HopperFit::kRagged && dims.k > 0) dims.k -= 3;
    any = any || (dims.m > 0 && dims.k > 0 && dims.n > 0);
  }
  if (subject.fit == HopperFit::kRagged) c->sizes_on_device = true;
  if (!any || (c->c == COperand::kSeparate && c->c_dtype != c->out)) return false;
  for (const Layout* layout : {&c->lhs_layout, &c->rhs_layout, &c->out_layout, &c->c_layout}) {
    if (layout->column_major) return false;
  }
  const int64_t k = c->dims.front().k;  // all leave the same rest
  return fit_layout(c->transpose_lhs ? kVector : k, &c->lhs_layout) &&
         fit_layout(c->transpose_rhs ? k : kVector, &c->rhs_layout) &&
         fit_layout(kVector, &c->out_layout) && fit_layout(kVector, &c->c_layout);
}

void add_rows(Case* c) {
  if (c->m > kFewRows) return;
  const int64_t tail =
      c->m - std::accumulate(c->group_sizes.begin(), c->group_sizes.end(), int64_t{0});
  for (int64_t& size : c->group_sizes) size *= kMoreRows;
  // 17 rows become 221.
  if (c->sizes_dtype == DType::kI8) c->sizes_dtype = DType::kU8;
  c->m = std::accumulate(c->group_sizes.begin(), c->group_sizes.end(), tail);
}

}  // namespace

const std::vector<HopperSubject>& hopper_subjects() {
  constexpr HopperFit kRagged = HopperFit::kRagged;
  static const std::vector<HopperSubject> subjects = {
      {.name = "sm90"},
      {.name = "sm90_ragged", .fit = kRagged, .sm_count = 3},
      {.name = "sm90_192x256",
       .kernel = "sm90/gmm_192x256",
       .sm_count = 2,
       .f32_out = false,
       .c = false},
      {.name = "sm90_192x128",
       .kernel = "sm90/gmm_192x128",
       .fit = kRagged,
       .sm_count = 2,
       .c = false},
      {.name = "sm90_192x128_c", .kernel = "sm90/gmm_192x128_c", .sm_count = 2},
      {.name = "sm90_256x128", .kernel = "sm90/gmm_256x128", .fit = kRagged, .sm_count = 2},
      {.name = "sm90_64x128", .kernel = "sm90/gmm_64x128", .sm_count = 5},
  };
  return subjects;
}

const HopperSubject* find_hopper_subject(const std::string& name) {
  const auto& all = hopper_subjects();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const HopperSubject& each) { return each.name == name; });
  return found == all.end() ? nullptr : &*found;
}

bool fit_to_hopper(const HopperSubject& subject, Case* c) {
  if (c->op == Op::kGroupedGemm) return fit_grouped(subject, c);
  const bool is_gmm = c->op == Op::kGmm;
  if (c->k == 0 || c->n == 0 || (is_gmm && (c->m == 0 || c->local_groups() == 0))) return false;
  if (c->has_beta() && !subject.c) return false;
  if (c->c == COperand::kSeparate && c->c_dtype != c->out) return false;
  if (c->lhs_layout.column_major || c->out_layout.column_major || c->c_layout.column_major ||
      (!is_gmm && c->rhs_layout.column_major)) {
    return false;  // the kernels take weights of either order, everything else by rows
  }
  widen(c);
  add_rows(c);
  c->packed_weights = false;
  if (subject.fit == HopperFit::kRagged) {
    c->k -= 3;
    // Between the matrices of gmm's list one without rows may lie, and no padding of rows aligns
    // it.
    if (!is_gmm || c->out_layout.form != Placement::kList) c->n -= c->activation.gated() ? 6 : 5;
    c->sizes_on_device = true;
  }
  const bool deep_weights = is_gmm && c->transpose_rhs != c->rhs_layout.column_major;
  return fit_layout(c->k, &c->lhs_layout) &&
         fit_layout(deep_weights ? c->k : c->n, &c->rhs_layout) &&
         fit_layout(c->out_cols(), &c->out_layout) && fit_layout(c->n, &c->c_layout);
}

}  // namespace cadre::tests
