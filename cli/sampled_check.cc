// Sampled comparison with the reference backend.
#include "sampled_check.h"

#include <algorithm>
#include <cmath>

#include "core/convert.h"
#include "core/text.h"
#include "cpu/threads.h"
#include "ops/dispatch.h"
#include "plan/group_offsets.h"
#include "verify/tolerance.h"

namespace cadre::cli {
namespace {

constexpr int64_t kRowSamples = 256;
constexpr int64_t kColSamples = 16;
constexpr int64_t kMatrixSamples = 24;  ///< rows and columns of a group's matrix in tgmm

void* at(const void* data, DType dtype, int64_t elements) {
  return static_cast<char*>(const_cast<void*>(data)) +
         elements * static_cast<int64_t>(size_of(dtype));
}

double element(const TensorView& view, int64_t row, int64_t col) {
  return load_as_double(view.data, view.dtype, row * view.strides[0] + col * view.strides[1]);
}

/// A sum of `terms` products whose absolute values add up to at most `magnitude`, in any order, and
/// at most 8 steps of epilogue.
double bound_of(int64_t terms, double magnitude, DType compute) {
  return verify::rounding_bound(compute, terms + 8, magnitude);
}

/// Up to `count` indices of [0, size), the first and the last among them.
std::vector<int64_t> spread(int64_t size, int64_t count) {
  std::vector<int64_t> indices;
  const int64_t used = std::min(size, count);
  for (int64_t i = 0; i < used; ++i) {
    indices.push_back(used == 1 ? 0 : i * (size - 1) / (used - 1));
  }
  return indices;
}

Status offsets_of(const GroupSizes& sizes, int64_t m, std::vector<int64_t>* offsets) {
  return plan::make_group_offsets("check", sizes, m, Tail::kZero, offsets);
}

/// The first and last row of every group and of the tail, and rows between.
std::vector<int64_t> sampled_rows(const std::vector<int64_t>& offsets, int64_t m) {
  std::vector<int64_t> rows = spread(m, kRowSamples);
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    if (offsets[i] == offsets[i + 1]) continue;
    rows.push_back(offsets[i]);
    rows.push_back(offsets[i + 1] - 1);
  }
  if (offsets.back() < m) rows.push_back(offsets.back());
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

/// Element `col` of the vectors of `group` of a [g, n] tensor.
double vector_element(const GroupedTensor& tensor, int64_t group, int64_t col) {
  return load_as_double(tensor.data, tensor.dtype,
                        group * tensor.group_stride + col * tensor.col_stride);
}

/// The worse of both is what counts.
void merge(const CheckResult& more, CheckResult* result) {
  const int64_t elements = result->elements + more.elements;
  if (result->elements == 0 || more.ratio > result->ratio) *result = more;
  result->elements = elements;
}

/// The scale of k value `i` of a row, or of a column of weights; 1 without scales.
double scale_of(const Scales& scales, int64_t group, int64_t outer, int64_t i, bool is_rhs,
                bool stored_kn) {
  constexpr int64_t kBlock = 128;
  if (!scales.given()) return 1;
  const TensorView& values = scales.values;
  const bool blocks = scales.mode == ScaleMode::kBlock128;
  const int64_t along_k = blocks ? i / kBlock : 0;
  int64_t index = 0;
  if (!is_rhs) {
    index = outer * values.strides[0] + (blocks ? along_k * values.strides[1] : 0);
  } else if (blocks) {
    const int64_t along_n = outer / kBlock;
    index = group * values.strides[0] + (stored_kn ? along_k : along_n) * values.strides[1] +
            (stored_kn ? along_n : along_k) * values.strides[2];
  } else {
    index = group * values.strides[0] + outer * values.strides[1];
  }
  return load_as_double(values.data, values.dtype, index);
}

}  // namespace

void note(CheckResult* result, double got, const verify::Expected& expected, DType out,
          const std::string& where) {
  ++result->elements;
  const double error = std::fabs(got - expected.value);
  const double tolerance = verify::tolerance_of(out, expected);
  double ratio = verify::severity(out, expected, got);
  if (ratio > 0) {
    ratio = std::max(ratio, std::nextafter(1.0, 2.0));  // it disagrees, however little
  } else if (tolerance > 0) {
    ratio = std::min(error / tolerance, 1.0);
  }
  if (result->elements > 1 && ratio <= result->ratio) return;
  result->error = error;
  result->tolerance = tolerance;
  result->ratio = ratio;
  result->where = where;
}

Status check_gmm(Context& reference, const GmmArgs& args, CheckResult* result) {
  const int64_t m = args.lhs.shape[0];
  const int64_t k = args.lhs.shape[1];
  const bool t = args.transpose_rhs;
  const int64_t n = t ? args.rhs.rows.uniform : args.rhs.cols.uniform;
  const int64_t rhs_k_stride = t ? args.rhs.col_stride : args.rhs.row_stride;
  const int64_t rhs_n_stride = t ? args.rhs.row_stride : args.rhs.col_stride;
  const TensorView out = TensorView::strided(args.out.data, args.out.dtype, {m, n},
                                             {args.out.row_stride, args.out.col_stride});
  const DType compute = ops::compute_dtype(args.lhs.dtype, args.rhs.dtype, out.dtype);
  std::vector<int64_t> offsets;
  if (Status status = offsets_of(args.group_sizes, m, &offsets); !status.ok()) return status;
  const std::vector<int64_t> rows = sampled_rows(offsets, m);
  std::vector<CheckResult> checked(rows.size());
  std::vector<Status> statuses(rows.size());
  const auto check_row = [&](int64_t row, CheckResult* of_row) -> Status {
    std::vector<double> lhs_row(static_cast<size_t>(k)), rhs_column(static_cast<size_t>(k));
    const std::vector<int64_t> cols = spread(n, kColSamples);
    if (row >= offsets.back()) {
      for (const int64_t col : cols) {
        note(of_row, element(out, row, col), {}, out.dtype, text("[", row, ", ", col, "] (tail)"));
      }
      return {};
    }
    const auto next = std::upper_bound(offsets.begin(), offsets.end(), row);
    const int64_t group = next - offsets.begin() - 1;
    const int32_t one = 1;
    for (int64_t col : cols) {
      // One row times one column, widened, as a problem of its own for the reference.
      const int64_t rhs_begin = group * args.rhs.group_stride + col * rhs_n_stride;
      double exact = 0;
      double magnitude = 0;
      double norm_lhs = 0;
      double norm_rhs = 0;
      for (int64_t i = 0; i < k; ++i) {
        const double a = element(args.lhs, row, i) * scale_of(args.lhs.scales, 0, row, i, false, t);
        const double b =
            load_as_double(args.rhs.data, args.rhs.dtype, rhs_begin + i * rhs_k_stride) *
            scale_of(args.rhs.scales, group, col, i, true, !t);
        lhs_row[static_cast<size_t>(i)] = a;
        rhs_column[static_cast<size_t>(i)] = b;
        norm_lhs += a * a;
        norm_rhs += b * b;
      }
      GmmArgs single{.lhs = TensorView::contiguous(lhs_row.data(), DType::kF64, {1, k}),
                     .rhs = TensorView::contiguous(rhs_column.data(), DType::kF64, {1, k, 1}),
                     .group_sizes = {&one, DType::kI32, 1},
                     .out = TensorView::contiguous(&exact, DType::kF64, {1, 1})};
      magnitude = std::sqrt(norm_lhs) * std::sqrt(norm_rhs);
      if (args.bias.given()) {
        const int64_t begin = group * args.bias.group_stride + col * args.bias.col_stride;
        single.bias = GroupedTensor::vectors(TensorView::contiguous(
            at(args.bias.data, args.bias.dtype, begin), args.bias.dtype, {1, 1}));
        magnitude += std::fabs(vector_element(args.bias, group, col));
      }
      if (args.row_scale.given()) {
        void* scale =
            at(args.row_scale.data, args.row_scale.dtype, row * args.row_scale.strides[0]);
        single.row_scale = TensorView::contiguous(scale, args.row_scale.dtype, {1});
        magnitude *= std::fabs(load_as_double(scale, args.row_scale.dtype, 0));
      }
      if (Status status = gmm(reference, single); !status.ok()) return status;
      note(of_row, element(out, row, col), {exact, bound_of(k, magnitude, compute)}, out.dtype,
           text("[", row, ", ", col, "]"));
    }
    return {};
  };
  cpu::for_each_index(cpu::default_thread_count(), static_cast<int64_t>(rows.size()),
                      [&](int64_t i) {
                        const auto at_row = static_cast<size_t>(i);
                        statuses[at_row] = check_row(rows[at_row], &checked[at_row]);
                      });
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!statuses[i].ok()) return statuses[i];
    merge(checked[i], result);
  }
  return {};
}

TgmmCheck::TgmmCheck(const TgmmArgs& args)
    : args_(args),
      rows_(spread(args.lhs.shape[1], kMatrixSamples)),
      cols_(spread(args.rhs.shape[1], kMatrixSamples)) {
  const GroupedTensor& out = args.out;
  for (int64_t group = 0; group < out.num_groups; ++group) {
    for (const int64_t row : rows_) {
      for (const int64_t col : cols_) {
        const int64_t index =
            group * out.group_stride + row * out.row_stride + col * out.col_stride;
        before_.push_back(args.accumulate ? load_as_double(out.data, out.dtype, index) : 0.0);
      }
    }
  }
}

Status TgmmCheck::check(Context& reference, CheckResult* result) const {
  const GroupedTensor& out = args_.out;
  const int64_t m = args_.lhs.shape[0];
  const auto num_rows = static_cast<int64_t>(rows_.size());
  const auto num_cols = static_cast<int64_t>(cols_.size());
  std::vector<int64_t> offsets;
  if (Status status = offsets_of(args_.group_sizes, m, &offsets); !status.ok()) return status;

  // The sampled columns of both operands, widened, with the norm of each within every group.
  const auto gather = [&](const TensorView& view, const std::vector<int64_t>& cols) {
    std::vector<double> values;
    values.reserve(static_cast<size_t>(m) * cols.size());
    for (int64_t row = 0; row < m; ++row) {
      for (const int64_t col : cols) values.push_back(element(view, row, col));
    }
    return values;
  };
  const std::vector<double> lhs = gather(args_.lhs, rows_);
  const std::vector<double> rhs = gather(args_.rhs, cols_);
  const auto norm = [&](const std::vector<double>& values, int64_t width, int64_t col,
                        int64_t group) {
    double sum = 0;
    for (int64_t row = offsets[static_cast<size_t>(group)];
         row < offsets[static_cast<size_t>(group + 1)]; ++row) {
      const double value = values[static_cast<size_t>(row * width + col)];
      sum += value * value;
    }
    return std::sqrt(sum);
  };
  std::vector<double> exact = before_;
  const TgmmArgs sampled{.lhs = TensorView::contiguous(lhs.data(), DType::kF64, {m, num_rows}),
                         .rhs = TensorView::contiguous(rhs.data(), DType::kF64, {m, num_cols}),
                         .group_sizes = args_.group_sizes,
                         .out = TensorView::contiguous(exact.data(), DType::kF64,
                                                       {out.num_groups, num_rows, num_cols}),
                         .accumulate = true};
  if (Status status = tgmm(reference, sampled); !status.ok()) return status;

  const DType compute = ops::compute_dtype(args_.lhs.dtype, args_.rhs.dtype, out.dtype);
  size_t index = 0;
  for (int64_t group = 0; group < out.num_groups; ++group) {
    const int64_t terms =
        offsets[static_cast<size_t>(group + 1)] - offsets[static_cast<size_t>(group)];
    std::vector<double> col_norms;
    for (int64_t j = 0; j < num_cols; ++j) col_norms.push_back(norm(rhs, num_cols, j, group));
    for (int64_t i = 0; i < num_rows; ++i) {
      const double row_norm = norm(lhs, num_rows, i, group);
      for (int64_t j = 0; j < num_cols; ++j, ++index) {
        const int64_t row = rows_[static_cast<size_t>(i)];
        const int64_t col = cols_[static_cast<size_t>(j)];
        const int64_t position =
            group * out.group_stride + row * out.row_stride + col * out.col_stride;
        const double magnitude =
            row_norm * col_norms[static_cast<size_t>(j)] + std::fabs(before_[index]);
        note(result, load_as_double(out.data, out.dtype, position),
             {exact[index], bound_of(terms, magnitude, compute)}, out.dtype,
             text("[", group, ", ", row, ", ", col, "]"));
      }
    }
  }
  return {};
}

Status check_bias_grad(Context& reference, const BiasGradArgs& args, CheckResult* result) {
  const int64_t m = args.dy.shape[0];
  const std::vector<int64_t> cols = spread(args.dy.shape[1], kRowSamples);
  const auto num_cols = static_cast<int64_t>(cols.size());
  std::vector<int64_t> offsets;
  if (Status status = offsets_of(args.group_sizes, m, &offsets); !status.ok()) return status;
  std::vector<double> dy;
  for (int64_t row = 0; row < m; ++row) {
    for (const int64_t col : cols) dy.push_back(element(args.dy, row, col));
  }
  const int64_t num_groups = args.dbias.num_groups;
  std::vector<double> exact(static_cast<size_t>(num_groups * num_cols));
  const BiasGradArgs sampled{.dy = TensorView::contiguous(dy.data(), DType::kF64, {m, num_cols}),
                             .group_sizes = args.group_sizes,
                             .dbias = GroupedTensor::vectors(TensorView::contiguous(
                                 exact.data(), DType::kF64, {num_groups, num_cols}))};
  if (Status status = bias_grad(reference, sampled); !status.ok()) return status;

  const DType compute = ops::compute_dtype(args.dy.dtype, args.dy.dtype, args.dbias.dtype);
  for (int64_t group = 0; group < num_groups; ++group) {
    const int64_t begin = offsets[static_cast<size_t>(group)];
    const int64_t end = offsets[static_cast<size_t>(group + 1)];
    for (int64_t j = 0; j < num_cols; ++j) {
      double magnitude = 0;
      for (int64_t row = begin; row < end; ++row) {
        magnitude += std::fabs(dy[static_cast<size_t>(row * num_cols + j)]);
      }
      const double expected = exact[static_cast<size_t>(group * num_cols + j)];
      const int64_t col = cols[static_cast<size_t>(j)];
      note(result, vector_element(args.dbias, group, col),
           {expected, bound_of(end - begin, magnitude, compute)}, args.dbias.dtype,
           text("[", group, ", ", col, "]"));
    }
  }
  return {};
}

}  // namespace cadre::cli
