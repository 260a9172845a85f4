// gmm and tgmm for torch, in all their forms.
#pragma once

#include <tuple>
#include <utility>

#include "grouped_view.h"
#include "scales_view.h"
#include "views.h"

namespace cadre_torch {

// What several schemas share.
#define CADRE_TORCH_GROUPS "Tensor? group_offset_tensor, int group_offset"
#define CADRE_TORCH_BIASES \
  "Tensor? alpha, Tensor[] bias, Tensor? bias_scale, Tensor? row_scale, Tensor? lhs_rows"
#define CADRE_TORCH_OPTIONS "bool transpose_rhs, float alpha_value, int tail, int precision"
#define CADRE_TORCH_LISTED_SCALES \
  "Tensor? lhs_scales, int lhs_mode, Tensor[] rhs_scales, int rhs_mode, bool fast_accumulation"
#define CADRE_TORCH_COLUMNS                                                                \
  "Tensor? lhs_scales, int lhs_mode, bool lhs_columns, Tensor? rhs_scales, int rhs_mode, " \
  "bool rhs_columns, bool fast_accumulation"

/// slot_row: where rows that were taken by an index lie, for gradients alone.
constexpr const char* kProductSchemas[] = {
    "gmm(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, Tensor? alpha, Tensor? bias, "
    "Tensor? bias_scale, Tensor? row_scale, Tensor? lhs_rows, Tensor? slot_row, " CADRE_TORCH_GROUPS
    ", " CADRE_TORCH_OPTIONS
    ", Tensor? lhs_scales, int lhs_mode, Tensor? rhs_scales, int rhs_mode, "
    "bool fast_accumulation, int packed_rhs, ScalarType? out_dtype) -> Tensor",
    "gmm_list(Tensor lhs, Tensor[] rhs, Tensor group_sizes, bool ends, " CADRE_TORCH_BIASES
    ", Tensor? slot_row, " CADRE_TORCH_GROUPS ", " CADRE_TORCH_OPTIONS
    ", " CADRE_TORCH_LISTED_SCALES ", int packed_rhs, ScalarType? out_dtype) -> Tensor",
    "gmm_out(Tensor lhs, Tensor[] rhs, Tensor group_sizes, bool ends, " CADRE_TORCH_BIASES
    ", " CADRE_TORCH_GROUPS ", " CADRE_TORCH_OPTIONS ", " CADRE_TORCH_LISTED_SCALES
    ", int packed_rhs, Tensor[] c, Tensor? beta, float beta_value, bool c_is_list, "
    "bool out_is_list, Tensor(a!)[] out) -> ()",
    "gmm_activated(Tensor lhs, Tensor[] rhs, Tensor group_sizes, bool ends, " CADRE_TORCH_BIASES
    ", Tensor? slot_row, " CADRE_TORCH_GROUPS ", " CADRE_TORCH_OPTIONS
    ", int packed_rhs, int activation, bool interleaved, float[] clamp, bool keeps_preact, "
    "ScalarType? out_dtype) -> (Tensor, Tensor)",
    "tgmm(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, Tensor? alpha, Tensor? lhs_rows, "
    "Tensor? rhs_rows, Tensor? slot_row, " CADRE_TORCH_GROUPS
    ", SymInt num_groups, float alpha_value, int precision, " CADRE_TORCH_COLUMNS
    ", ScalarType? out_dtype) -> Tensor",
    "tgmm_out(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, Tensor? alpha, "
    "Tensor? lhs_rows, Tensor? rhs_rows, " CADRE_TORCH_GROUPS
    ", float alpha_value, int precision, " CADRE_TORCH_COLUMNS
    ", Tensor[] c, Tensor? beta, float beta_value, Tensor(a!)[] out) -> ()",
    "gmm_plain(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, bool transpose_rhs) -> "
    "Tensor",
    "tgmm_plain(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, SymInt num_groups) -> "
    "Tensor",
};

#undef CADRE_TORCH_GROUPS
#undef CADRE_TORCH_BIASES
#undef CADRE_TORCH_OPTIONS
#undef CADRE_TORCH_LISTED_SCALES
#undef CADRE_TORCH_COLUMNS

/// Whether weights are one matrix for each group and not one stack.
inline bool is_list(const std::vector<Tensor>& weights) {
  return weights.size() != 1 || weights[0].dim() == 2;
}

/// What gmm's forms share besides lhs, rhs, bias and out.
struct GmmExtras {
  Groups groups;
  const OptionalTensor& alpha;
  const OptionalTensor& bias_scale;
  const OptionalTensor& row_scale;
  const OptionalTensor& lhs_rows;
  bool transpose_rhs;
  double alpha_value;
  int64_t tail;
  int64_t precision;
  const ScalesView& lhs_scales;
  const ScalesView& rhs_scales;
  bool fast_accumulation;
  int64_t packed_rhs;  ///< the address of packed weights, or 0
};

/// Rows of a product: of its lhs, or of the index into it.
inline int64_t rows_of(const char* op, const Tensor& lhs, const OptionalTensor& lhs_rows) {
  if (!lhs_rows) return lhs.size(0);
  expect_rank(op, "lhs_rows", *lhs_rows, 1);
  return lhs_rows->size(0);
}

inline void run_gmm(const Tensor& lhs, const GroupedView& rhs, const GroupedView& bias,
                    const GmmExtras& extras, const GroupedView& out, cadre_gmm_args& args) {
  const cadre_tensor lhs_view = view(lhs);
  const SizesView sizes("gmm", "group_sizes", extras.groups.sizes, kind_of(extras.groups));
  const OptionalView alpha(extras.alpha);
  const OptionalView bias_scale(extras.bias_scale);
  const OptionalView row_scale(extras.row_scale);
  const OptionalView lhs_rows(extras.lhs_rows);
  args.lhs = &lhs_view;
  args.rhs = rhs.get();
  args.group_sizes = sizes.get();
  args.out = out.get();
  args.transpose_rhs = extras.transpose_rhs;
  args.tail = static_cast<int32_t>(extras.tail);
  args.alpha = extras.alpha_value;
  args.alpha_per_group = alpha.get();
  args.bias = bias.get();
  args.bias_scale = bias_scale.get();
  args.row_scale = row_scale.get();
  args.lhs_rows = lhs_rows.get();
  args.packed_rhs = reinterpret_cast<const cadre_packed_weights*>(extras.packed_rhs);
  args.lhs_scales = extras.lhs_scales.get();
  args.rhs_scales = extras.rhs_scales.get();
  set_group_offset(args, "gmm", extras.groups);
  run(cadre_gmm, cadre_gmm_workspace_size, args, lhs, extras.precision, extras.fast_accumulation);
}

inline Tensor gmm(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, OptionalTensor alpha,
                  OptionalTensor bias, OptionalTensor bias_scale, OptionalTensor row_scale,
                  OptionalTensor lhs_rows, OptionalTensor /*slot_row*/,
                  OptionalTensor group_offset_tensor, int64_t group_offset, bool transpose_rhs,
                  double alpha_value, int64_t tail, int64_t precision, OptionalTensor lhs_scales,
                  int64_t lhs_mode, OptionalTensor rhs_scales, int64_t rhs_mode,
                  bool fast_accumulation, int64_t packed_rhs, std::optional<ScalarType> out_dtype) {
  expect_rank("gmm", "lhs", lhs, 2);
  expect_rank("gmm", "rhs", rhs, 3);
  if (bias) expect_vectors("gmm", "bias", *bias);
  const int64_t n = rhs.size(transpose_rhs ? 1 : 2);
  const ScalarType dtype = out_dtype ? *out_dtype : default_output("gmm", lhs, rhs);
  Tensor out = empty(lhs, {rows_of("gmm", lhs, lhs_rows), n}, dtype);
  cadre_gmm_args args;
  cadre_gmm_args_init(&args, sizeof(args));
  const GroupedView bias_view = bias ? GroupedView(*bias, kVectors) : GroupedView();
  run_gmm(lhs, GroupedView(rhs, kMatrices), bias_view,
          {{group_sizes, ends, group_offset_tensor, group_offset},
           alpha,
           bias_scale,
           row_scale,
           lhs_rows,
           transpose_rhs,
           alpha_value,
           tail,
           precision,
           {lhs_scales, lhs_mode},
           {rhs_scales, rhs_mode},
           fast_accumulation,
           packed_rhs},
          GroupedView(out, kMatrices), args);
  return out;
}

/// gmm with nothing but the product. Each argument of an operator costs a call time, so the common
/// one has few.
inline Tensor gmm_plain(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, bool transpose_rhs) {
  constexpr std::nullopt_t kNone = std::nullopt;
  return gmm(std::move(lhs), std::move(rhs), std::move(group_sizes), ends, kNone, kNone, kNone,
             kNone, kNone, kNone, kNone, 0, transpose_rhs, 1.0, CADRE_TAIL_ZERO,
             CADRE_PRECISION_DEFAULT, kNone, CADRE_SCALE_NONE, kNone, CADRE_SCALE_NONE, false, 0,
             kNone);
}

inline Tensor gmm_list(Tensor lhs, std::vector<Tensor> rhs, Tensor group_sizes, bool ends,
                       OptionalTensor alpha, std::vector<Tensor> bias, OptionalTensor bias_scale,
                       OptionalTensor row_scale, OptionalTensor lhs_rows,
                       OptionalTensor /*slot_row*/, OptionalTensor group_offset_tensor,
                       int64_t group_offset, bool transpose_rhs, double alpha_value, int64_t tail,
                       int64_t precision, OptionalTensor lhs_scales, int64_t lhs_mode,
                       std::vector<Tensor> rhs_scales, int64_t rhs_mode, bool fast_accumulation,
                       int64_t packed_rhs, std::optional<ScalarType> out_dtype) {
  expect_rank("gmm", "lhs", lhs, 2);
  if (rhs.empty()) fail(CADRE_INVALID, "gmm: len(rhs) = 0, expected at least 1");
  const GroupedView rhs_view("gmm", "rhs", rhs, kMatrices);
  const int64_t n = transpose_rhs ? (*rhs_view).rows.uniform : (*rhs_view).cols.uniform;
  const ScalarType dtype = out_dtype ? *out_dtype : default_output("gmm", lhs, rhs[0]);
  Tensor out = empty(lhs, {rows_of("gmm", lhs, lhs_rows), n}, dtype);
  cadre_gmm_args args;
  cadre_gmm_args_init(&args, sizeof(args));
  run_gmm(lhs, rhs_view, GroupedView("gmm", "bias", bias, kVectors),
          {{group_sizes, ends, group_offset_tensor, group_offset},
           alpha,
           bias_scale,
           row_scale,
           lhs_rows,
           transpose_rhs,
           alpha_value,
           tail,
           precision,
           {lhs_scales, lhs_mode},
           {"gmm", "rhs.scales", rhs_scales, rhs_mode, is_list(rhs)},
           fast_accumulation,
           packed_rhs},
          GroupedView(out, kMatrices), args);
  return out;
}

/// gmm with an activation: its result, and the pre-activation where it is kept.
inline std::tuple<Tensor, Tensor> gmm_activated(
    Tensor lhs, std::vector<Tensor> rhs, Tensor group_sizes, bool ends, OptionalTensor alpha,
    std::vector<Tensor> bias, OptionalTensor bias_scale, OptionalTensor row_scale,
    OptionalTensor lhs_rows, OptionalTensor /*slot_row*/, OptionalTensor group_offset_tensor,
    int64_t group_offset, bool transpose_rhs, double alpha_value, int64_t tail, int64_t precision,
    int64_t packed_rhs, int64_t activation, bool interleaved, std::vector<double> clamp,
    bool keeps_preact, std::optional<ScalarType> out_dtype) {
  expect_rank("gmm", "lhs", lhs, 2);
  if (rhs.empty()) fail(CADRE_INVALID, "gmm: len(rhs) = 0, expected at least 1");
  const GroupedView rhs_view("gmm", "rhs", rhs, kMatrices);
  const int64_t n = transpose_rhs ? (*rhs_view).rows.uniform : (*rhs_view).cols.uniform;
  const int64_t m = rows_of("gmm", lhs, lhs_rows);
  const ScalarType dtype = out_dtype ? *out_dtype : default_output("gmm", lhs, rhs[0]);
  cadre_gmm_args args;
  cadre_gmm_args_init(&args, sizeof(args));
  args.activation = activation_of(activation, interleaved, clamp);
  Tensor out = empty(lhs, {m, activation >= CADRE_ACTIVATION_SWIGLU ? n / 2 : n}, dtype);
  Tensor preact = empty(lhs, {keeps_preact ? m : 0, n}, dtype);
  const cadre_tensor preact_view = view(preact);
  if (keeps_preact) args.preactivation = &preact_view;
  run_gmm(lhs, rhs_view, GroupedView("gmm", "bias", bias, kVectors),
          {{group_sizes, ends, group_offset_tensor, group_offset},
           alpha,
           bias_scale,
           row_scale,
           lhs_rows,
           transpose_rhs,
           alpha_value,
           tail,
           precision,
           {std::nullopt, CADRE_SCALE_NONE},
           {std::nullopt, CADRE_SCALE_NONE},
           false,
           packed_rhs},
          GroupedView(out, kMatrices), args);
  return {out, preact};
}

/// gmm's out or c: the rows of all groups in one tensor, or a list of those of each.
inline GroupedView rows_or_list(const char* argument, const std::vector<Tensor>& tensors,
                                bool is_list, const LocalRows& rows) {
  if (is_list || tensors.empty()) return GroupedView::results("gmm", argument, tensors, rows);
  expect_rank("gmm", argument, tensors[0], 2);
  return GroupedView(tensors[0], kMatrices);
}

inline void gmm_out(Tensor lhs, std::vector<Tensor> rhs, Tensor group_sizes, bool ends,
                    OptionalTensor alpha, std::vector<Tensor> bias, OptionalTensor bias_scale,
                    OptionalTensor row_scale, OptionalTensor lhs_rows,
                    OptionalTensor group_offset_tensor, int64_t group_offset, bool transpose_rhs,
                    double alpha_value, int64_t tail, int64_t precision, OptionalTensor lhs_scales,
                    int64_t lhs_mode, std::vector<Tensor> rhs_scales, int64_t rhs_mode,
                    bool fast_accumulation, int64_t packed_rhs, std::vector<Tensor> c,
                    OptionalTensor beta, double beta_value, bool c_is_list, bool out_is_list,
                    std::vector<Tensor> out) {
  cadre_gmm_args args;
  cadre_gmm_args_init(&args, sizeof(args));
  const Groups groups{group_sizes, ends, group_offset_tensor, group_offset};
  const LocalRows rows(groups);
  const GroupedView c_view = rows_or_list("c", c, c_is_list, rows);
  const OptionalView beta_view(beta);
  args.c = c_view.get();
  args.beta = beta_value;
  args.beta_per_group = beta_view.get();
  run_gmm(lhs, GroupedView("gmm", "rhs", rhs, kMatrices),
          GroupedView("gmm", "bias", bias, kVectors),
          {groups,
           alpha,
           bias_scale,
           row_scale,
           lhs_rows,
           transpose_rhs,
           alpha_value,
           tail,
           precision,
           {lhs_scales, lhs_mode},
           {"gmm", "rhs.scales", rhs_scales, rhs_mode, is_list(rhs)},
           fast_accumulation,
           packed_rhs},
          rows_or_list("out", out, out_is_list, rows), args);
}

/// One FP8 operand of tgmm.
struct TgmmScales {
  const OptionalTensor& scales;
  int64_t mode;
  bool columns;
};

struct TgmmExtras {
  Groups groups;
  const OptionalTensor& alpha;
  const OptionalTensor& lhs_rows;
  const OptionalTensor& rhs_rows;
  double alpha_value;
  int64_t precision;
  TgmmScales lhs;
  TgmmScales rhs;
  bool fast_accumulation;
};

inline void run_tgmm(const Tensor& lhs, const Tensor& rhs, const TgmmExtras& extras,
                     const GroupedView& out, cadre_tgmm_args& args) {
  const cadre_tensor lhs_view = view(lhs);
  const cadre_tensor rhs_view = view(rhs);
  const SizesView sizes("tgmm", "group_sizes", extras.groups.sizes, kind_of(extras.groups));
  const OptionalView alpha(extras.alpha);
  args.lhs = &lhs_view;
  args.rhs = &rhs_view;
  args.group_sizes = sizes.get();
  args.out = out.get();
  args.alpha = extras.alpha_value;
  args.alpha_per_group = alpha.get();
  const ScalesView lhs_scales(extras.lhs.scales, extras.lhs.mode);
  const ScalesView rhs_scales(extras.rhs.scales, extras.rhs.mode);
  const OptionalView lhs_rows(extras.lhs_rows);
  const OptionalView rhs_rows(extras.rhs_rows);
  args.lhs_rows = lhs_rows.get();
  args.rhs_rows = rhs_rows.get();
  args.lhs_scales = lhs_scales.get();
  args.rhs_scales = rhs_scales.get();
  args.lhs_columns = extras.lhs.columns;
  args.rhs_columns = extras.rhs.columns;
  set_group_offset(args, "tgmm", extras.groups);
  run(cadre_tgmm, cadre_tgmm_workspace_size, args, lhs, extras.precision, extras.fast_accumulation);
}

inline Tensor tgmm(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, OptionalTensor alpha,
                   OptionalTensor lhs_rows, OptionalTensor rhs_rows, OptionalTensor /*slot_row*/,
                   OptionalTensor group_offset_tensor, int64_t group_offset, int64_t num_groups,
                   double alpha_value, int64_t precision, OptionalTensor lhs_scales,
                   int64_t lhs_mode, bool lhs_columns, OptionalTensor rhs_scales, int64_t rhs_mode,
                   bool rhs_columns, bool fast_accumulation, std::optional<ScalarType> out_dtype) {
  expect_rank("tgmm", "lhs", lhs, 2);
  expect_rank("tgmm", "rhs", rhs, 2);
  expect_groups("tgmm", num_groups);
  const ScalarType dtype = out_dtype ? *out_dtype : default_output("tgmm", lhs, rhs);
  Tensor out =
      empty(lhs, {num_groups, lhs.size(lhs_columns ? 0 : 1), rhs.size(rhs_columns ? 0 : 1)}, dtype);
  cadre_tgmm_args args;
  cadre_tgmm_args_init(&args, sizeof(args));
  run_tgmm(lhs, rhs,
           {{group_sizes, ends, group_offset_tensor, group_offset},
            alpha,
            lhs_rows,
            rhs_rows,
            alpha_value,
            precision,
            {lhs_scales, lhs_mode, lhs_columns},
            {rhs_scales, rhs_mode, rhs_columns},
            fast_accumulation},
           GroupedView(out, kMatrices), args);
  return out;
}

/// tgmm with nothing but the product, see gmm_plain.
inline Tensor tgmm_plain(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends,
                         int64_t num_groups) {
  constexpr std::nullopt_t kNone = std::nullopt;
  return tgmm(std::move(lhs), std::move(rhs), std::move(group_sizes), ends, kNone, kNone, kNone,
              kNone, kNone, 0, num_groups, 1.0, CADRE_PRECISION_DEFAULT, kNone, CADRE_SCALE_NONE,
              false, kNone, CADRE_SCALE_NONE, false, false, kNone);
}

inline void tgmm_out(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, OptionalTensor alpha,
                     OptionalTensor lhs_rows, OptionalTensor rhs_rows,
                     OptionalTensor group_offset_tensor, int64_t group_offset, double alpha_value,
                     int64_t precision, OptionalTensor lhs_scales, int64_t lhs_mode,
                     bool lhs_columns, OptionalTensor rhs_scales, int64_t rhs_mode,
                     bool rhs_columns, bool fast_accumulation, std::vector<Tensor> c,
                     OptionalTensor beta, double beta_value, std::vector<Tensor> out) {
  cadre_tgmm_args args;
  cadre_tgmm_args_init(&args, sizeof(args));
  const GroupedView c_view("tgmm", "c", c, kMatrices);
  const OptionalView beta_view(beta);
  args.c = c_view.get();
  args.beta = beta_value;
  args.beta_per_group = beta_view.get();
  run_tgmm(lhs, rhs,
           {{group_sizes, ends, group_offset_tensor, group_offset},
            alpha,
            lhs_rows,
            rhs_rows,
            alpha_value,
            precision,
            {lhs_scales, lhs_mode, lhs_columns},
            {rhs_scales, rhs_mode, rhs_columns},
            fast_accumulation},
           GroupedView("tgmm", "out", out, kMatrices), args);
}

}  // namespace cadre_torch
