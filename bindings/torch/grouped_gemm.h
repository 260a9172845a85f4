// grouped_gemm for torch: every group of its own m, n and k. An operand travels as its tensors,
// optional per-group rows, cols and element offsets, and `form`: a list of integers, {placement,
// num_groups, ...} (see FormIndex).
#pragma once

#include "scales_view.h"
#include "views.h"

namespace cadre_torch {

/// form = {placement, num_groups, rows, cols} for a stack and
/// {placement, num_groups, rows, cols, max_rows, max_cols, capacity} for a packed buffer, where
/// rows or cols is -1 when a tensor gives one value for each group; {placement, num_groups, rows_0,
/// cols_0, rows_1, cols_1, ...} for a list.
enum FormIndex : size_t { kPlacement, kNumGroups, kRows, kCols, kMaxRows, kMaxCols, kCapacity };

#define CADRE_TORCH_OPERAND(x) \
  "Tensor? " x "_rows, Tensor? " x "_cols, Tensor? " x "_offsets, int[] " x "_form, "
#define CADRE_TORCH_SCALARS                                                                      \
  "Tensor? alpha, Tensor? beta, float alpha_value, float beta_value, bool transa, bool transb, " \
  "int precision, Tensor[] a_scales, int a_mode, Tensor[] b_scales, int b_mode, "                \
  "bool fast_accumulation"

constexpr const char* kGroupedGemmSchema = "grouped_gemm(Tensor[] a, " CADRE_TORCH_OPERAND(
    "a") "Tensor[] b, " CADRE_TORCH_OPERAND("b") "Tensor[] c, " CADRE_TORCH_OPERAND("c")
    CADRE_TORCH_OPERAND("d") CADRE_TORCH_SCALARS ", ScalarType out_dtype) -> Tensor[]";
constexpr const char* kGroupedGemmOutSchema = "grouped_gemm_out(Tensor[] a, " CADRE_TORCH_OPERAND(
    "a") "Tensor[] b, " CADRE_TORCH_OPERAND("b") "Tensor[] c, " CADRE_TORCH_OPERAND("c")
    CADRE_TORCH_OPERAND("d") CADRE_TORCH_SCALARS ", Tensor(a!)[] d) -> ()";

#undef CADRE_TORCH_OPERAND
#undef CADRE_TORCH_SCALARS

/// The operand's struct and the arrays it points to.
class Operand {
 public:
  Operand(const char* name, const std::vector<Tensor>& tensors, const OptionalTensor& rows,
          const OptionalTensor& cols, const OptionalTensor& offsets,
          const std::vector<int64_t>& form) {
    if (tensors.empty()) return;
    value_.emplace();
    const auto placement = static_cast<cadre_placement>(form.at(kPlacement));
    if (placement == CADRE_STACKED) {
      const cadre_tensor whole = view(tensors[0]);
      *value_ = cadre_grouped_from_tensor(&whole);
    } else if (placement == CADRE_LIST) {
      take_list(name, tensors);
    } else {
      take_packed(name, tensors[0], rows, cols, offsets, form);
    }
  }
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;

  const cadre_grouped_tensor* get() const { return value_ ? &*value_ : nullptr; }

 private:
  void take_list(const char* name, const std::vector<Tensor>& tensors) {
    const cadre_tensor first = view(tensors[0]);
    bool uniform = true;
    bool gapless = true;
    for (size_t i = 0; i < tensors.size(); ++i) {
      expect_rank("grouped_gemm", element_name(name, i), tensors[i], 2);
      const cadre_tensor each = view(tensors[i]);
      if (!same_kind(each, first))
        differs("grouped_gemm", name, {i, each}, {0, first}, {"dtype", "device"});
      uniform = uniform && std::equal(each.shape, each.shape + 2, first.shape) &&
                std::equal(each.strides, each.strides + 2, first.strides);
      const bool empty = each.shape[0] == 0 || each.shape[1] == 0;
      gapless = gapless && (empty || ((each.shape[0] == 1 || each.strides[0] == each.shape[1]) &&
                                      (each.shape[1] == 1 || each.strides[1] == 1)));
      pointers_.push_back(each.data);
      rows_.push_back(each.shape[0]);
      cols_.push_back(each.shape[1]);
    }
    if (!uniform && !gapless) {
      fail(CADRE_INVALID, std::string("grouped_gemm: ") + name +
                              " holds matrices of several shapes with gaps or transposed, expected "
                              "contiguous ones (transa and transb need no copy)");
    }
    const auto count = static_cast<int64_t>(tensors.size());
    *value_ = cadre_grouped_list(pointers_.data(), count, &first, {CADRE_CPU, 0});
    if (uniform) return;
    value_->rows = {0, {rows_.data(), CADRE_I64, {CADRE_CPU, 0}, count, CADRE_SIZES}, 0};
    value_->cols = {0, {cols_.data(), CADRE_I64, {CADRE_CPU, 0}, count, CADRE_SIZES}, 0};
    value_->contiguous = 1;
    value_->col_stride = 1;
  }

  void take_packed(const char* name, const Tensor& buffer, const OptionalTensor& rows,
                   const OptionalTensor& cols, const OptionalTensor& offsets,
                   const std::vector<int64_t>& form) {
    expect_rank("grouped_gemm", name, buffer, 1);
    const cadre_tensor whole = view(buffer);
    if (whole.shape[0] > 1 && whole.strides[0] != 1) {
      fail(CADRE_INVALID, std::string("grouped_gemm: ") + name + ".strides[0] = " +
                              std::to_string(whole.strides[0]) + ", expected 1 in a packed buffer");
    }
    *value_ = {};
    value_->placement = CADRE_PACKED;
    value_->dtype = whole.dtype;
    value_->device = whole.device;
    value_->num_groups = form.at(kNumGroups);
    value_->data = whole.data;
    value_->rows = extent(std::string(name) + ".rows", rows, form.at(kRows), form.at(kMaxRows));
    value_->cols = extent(std::string(name) + ".cols", cols, form.at(kCols), form.at(kMaxCols));
    value_->contiguous = 1;
    value_->col_stride = 1;
    if (offsets)
      value_->offsets = extent(std::string(name) + ".offsets", offsets, 0, whole.shape[0]);
    value_->capacity = whole.shape[0];
  }

  cadre_extent extent(const std::string& name, const OptionalTensor& per_group, int64_t uniform,
                      int64_t max) {
    if (!per_group) return {uniform, {}, 0};
    sizes_.emplace_back("grouped_gemm", name, *per_group);
    return {0, sizes_.back().get(), max};
  }

  std::vector<void*> pointers_;
  std::vector<int64_t> rows_;
  std::vector<int64_t> cols_;
  std::vector<SizesView> sizes_;
  std::optional<cadre_grouped_tensor> value_;
};

inline bool is_list(const std::vector<int64_t>& form) { return form.at(kPlacement) == CADRE_LIST; }

struct GemmScalars {
  const OptionalTensor& alpha;
  const OptionalTensor& beta;
  double alpha_value;
  double beta_value;
  bool transa;
  bool transb;
  int64_t precision;
  const ScalesView& a_scales;
  const ScalesView& b_scales;
  bool fast_accumulation;
};

inline void run_grouped_gemm(const Operand& a, const Operand& b, const Operand& c, const Operand& d,
                             const GemmScalars& scalars, const Tensor& like) {
  cadre_grouped_gemm_args args;
  cadre_grouped_gemm_args_init(&args, sizeof(args));
  const OptionalView alpha(scalars.alpha);
  const OptionalView beta(scalars.beta);
  args.a = a.get();
  args.b = b.get();
  args.c = c.get();
  args.d = d.get();
  args.transa = scalars.transa;
  args.transb = scalars.transb;
  args.alpha = scalars.alpha_value;
  args.beta = scalars.beta_value;
  args.alpha_per_group = alpha.get();
  args.beta_per_group = beta.get();
  args.a_scales = scalars.a_scales.get();
  args.b_scales = scalars.b_scales.get();
  run(cadre_grouped_gemm, cadre_grouped_gemm_workspace_size, args, like, scalars.precision,
      scalars.fast_accumulation);
}

/// Value i of per-group dims on the host, or the uniform one.
inline int64_t host_dim(const OptionalTensor& per_group, int64_t uniform, int64_t i) {
  if (!per_group) return uniform;
  return host_integer(per_group->data_ptr(), dtype_of(per_group->scalar_type()),
                      i * per_group->stride(0));
}

/// True where the matrices are known to fill a packed buffer back to back.
inline bool fills_buffer(const OptionalTensor& rows, const OptionalTensor& cols,
                         const OptionalTensor& offsets, const std::vector<int64_t>& form) {
  if (offsets || (rows && rows->is_cuda()) || (cols && cols->is_cuda())) return false;
  int64_t elements = 0;
  for (int64_t i = 0; i < form.at(kNumGroups); ++i) {
    elements += host_dim(rows, form.at(kRows), i) * host_dim(cols, form.at(kCols), i);
  }
  return elements == form.at(kCapacity);
}

/// A new D as `form` says. What no matrix covers of a packed one is zero.
inline std::vector<Tensor> new_outputs(const Tensor& like, const std::vector<int64_t>& form,
                                       ScalarType dtype, const OptionalTensor& rows,
                                       const OptionalTensor& cols, const OptionalTensor& offsets) {
  const auto placement = static_cast<cadre_placement>(form.at(kPlacement));
  const int64_t groups = form.at(kNumGroups);
  std::vector<Tensor> result;
  if (placement == CADRE_STACKED) {
    result.push_back(empty(like, {groups, form.at(kRows), form.at(kCols)}, dtype));
  } else if (placement == CADRE_PACKED) {
    result.push_back(empty(like, {form.at(kCapacity)}, dtype));
    if (!fills_buffer(rows, cols, offsets, form)) torch::stable::zero_(result[0]);
  } else {
    for (size_t i = 0; i < static_cast<size_t>(groups); ++i) {
      result.push_back(empty(like, {form.at(2 + 2 * i), form.at(3 + 2 * i)}, dtype));
    }
  }
  return result;
}

inline std::vector<Tensor> grouped_gemm(
    std::vector<Tensor> a, OptionalTensor a_rows, OptionalTensor a_cols, OptionalTensor a_offsets,
    std::vector<int64_t> a_form, std::vector<Tensor> b, OptionalTensor b_rows,
    OptionalTensor b_cols, OptionalTensor b_offsets, std::vector<int64_t> b_form,
    std::vector<Tensor> c, OptionalTensor c_rows, OptionalTensor c_cols, OptionalTensor c_offsets,
    std::vector<int64_t> c_form, OptionalTensor d_rows, OptionalTensor d_cols,
    OptionalTensor d_offsets, std::vector<int64_t> d_form, OptionalTensor alpha,
    OptionalTensor beta, double alpha_value, double beta_value, bool transa, bool transb,
    int64_t precision, std::vector<Tensor> a_scales, int64_t a_mode, std::vector<Tensor> b_scales,
    int64_t b_mode, bool fast_accumulation, ScalarType out_dtype) {
  std::vector<Tensor> d = new_outputs(a.at(0), d_form, out_dtype, d_rows, d_cols, d_offsets);
  run_grouped_gemm(
      {"a", a, a_rows, a_cols, a_offsets, a_form}, {"b", b, b_rows, b_cols, b_offsets, b_form},
      {"c", c, c_rows, c_cols, c_offsets, c_form}, {"d", d, d_rows, d_cols, d_offsets, d_form},
      {alpha,
       beta,
       alpha_value,
       beta_value,
       transa,
       transb,
       precision,
       {"grouped_gemm", "a.scales", a_scales, a_mode, is_list(a_form)},
       {"grouped_gemm", "b.scales", b_scales, b_mode, is_list(b_form)},
       fast_accumulation},
      a[0]);
  return d;
}

inline void grouped_gemm_out(std::vector<Tensor> a, OptionalTensor a_rows, OptionalTensor a_cols,
                             OptionalTensor a_offsets, std::vector<int64_t> a_form,
                             std::vector<Tensor> b, OptionalTensor b_rows, OptionalTensor b_cols,
                             OptionalTensor b_offsets, std::vector<int64_t> b_form,
                             std::vector<Tensor> c, OptionalTensor c_rows, OptionalTensor c_cols,
                             OptionalTensor c_offsets, std::vector<int64_t> c_form,
                             OptionalTensor d_rows, OptionalTensor d_cols, OptionalTensor d_offsets,
                             std::vector<int64_t> d_form, OptionalTensor alpha, OptionalTensor beta,
                             double alpha_value, double beta_value, bool transa, bool transb,
                             int64_t precision, std::vector<Tensor> a_scales, int64_t a_mode,
                             std::vector<Tensor> b_scales, int64_t b_mode, bool fast_accumulation,
                             std::vector<Tensor> d) {
  run_grouped_gemm(
      {"a", a, a_rows, a_cols, a_offsets, a_form}, {"b", b, b_rows, b_cols, b_offsets, b_form},
      {"c", c, c_rows, c_cols, c_offsets, c_form}, {"d", d, d_rows, d_cols, d_offsets, d_form},
      {alpha,
       beta,
       alpha_value,
       beta_value,
       transa,
       transb,
       precision,
       {"grouped_gemm", "a.scales", a_scales, a_mode, is_list(a_form)},
       {"grouped_gemm", "b.scales", b_scales, b_mode, is_list(b_form)},
       fast_accumulation},
      a.at(0));
}

}  // namespace cadre_torch
