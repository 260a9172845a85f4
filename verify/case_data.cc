// Fills the operands of a Case.
#include "verify/case_data.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>

namespace cadre::verify {
namespace {

/// Codes whose sums fit scales far from 1.
double fp8_value(Random& random, int scale_exponent) {
  if (scale_exponent > 0) return random.uniform(-0x1p-7, 0x1p-7);
  return random.chance(0.1) ? 0.0 : random.uniform(-300, 300);
}

double random_value(DType dtype, Random& random, bool large) {
  if (dtype == DType::kI8) return static_cast<double>(random.between(large ? 120 : -128, 127));
  if (dtype == DType::kI32) return static_cast<double>(random.between(INT32_MIN, INT32_MAX));
  if (!is_fp8(dtype)) return random.uniform(-1, 1);
  // Zeros, subnormals of either type, and numbers whose sums overflow none.
  if (random.chance(0.1)) return random.chance(0.5) ? 0.0 : random.uniform(-0x1p-7, 0x1p-7);
  return random.chance(0.1) ? random.uniform(-0x1p-15, 0x1p-15) : random.uniform(-6, 6);
}

/// Makes the operands of one Case.
class Filler {
 public:
  Filler(const Case& c, Memory& memory)
      : c_(c),
        memory_(memory),
        index_memory_(c.sizes_on_device ? memory : host_memory()),
        random_(c.seed),
        groups_(c.local_groups()) {}

  CaseData make() {
    make_scalars();
    if (c_.op == Op::kGroupedGemm) {
      make_grouped_gemm();
    } else {
      make_ragged();
    }
    fill_c();
    make_scales();
    plant_nan();
    return std::move(data_);
  }

 private:
  using Shapes = std::vector<MatrixShape>;

  void emplace(std::optional<PlacedTensor>& slot, DType dtype, Shapes shapes, const Layout& layout,
               MatrixShape shape_of_none = {0, 0}) {
    slot.emplace(memory_, index_memory_, dtype, std::move(shapes), shape_of_none, layout, random_);
  }

  /// One matrix of this shape for each local group.
  void emplace_stacked(std::optional<PlacedTensor>& slot, DType dtype, MatrixShape shape,
                       const Layout& layout) {
    emplace(slot, dtype, Shapes(static_cast<size_t>(groups_), shape), layout, shape);
  }

  void emplace_vector(std::optional<PlacedTensor>& slot, DType dtype, int64_t length) {
    const Layout layout{.form = Placement::kRows, .col_stride = c_.vector_stride};
    emplace(slot, dtype, {{1, length}}, layout);
  }

  double value_of_type(DType dtype) {
    const bool far_scales = c_.scale_exponent != 0 && is_fp8(dtype);
    return far_scales ? fp8_value(random_, c_.scale_exponent)
                      : random_value(dtype, random_, c_.large_values);
  }

  /// Rows [begin, end) of one matrix.
  void fill_rows(PlacedTensor& tensor, int64_t matrix, int64_t begin, int64_t end) {
    const int64_t cols = tensor.shapes()[static_cast<size_t>(matrix)].cols;
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        tensor.set(matrix, row, col, value_of_type(tensor.dtype()));
      }
    }
  }

  void fill_matrix(PlacedTensor& tensor, int64_t matrix) {
    fill_rows(tensor, matrix, 0, tensor.shapes()[static_cast<size_t>(matrix)].rows);
  }

  bool live(int64_t group) const { return c_.group_rows(group) > 0; }

  void make_scalars() {
    // Exact in f32, so that a call that narrows them loses nothing.
    const auto draw = [&] { return static_cast<double>(random_.between(-24, 24)) / 16 + 0.03125; };
    if (c_.alpha == Scalars::kUniform) data_.alpha = draw();
    if (c_.beta == Scalars::kUniform) data_.beta = c_.out == DType::kI32 ? 1.0 : draw();
    if (c_.accumulate) data_.beta = 1;
    if (c_.alpha == Scalars::kPerGroup) {
      emplace_vector(data_.alpha_values, c_.scale_dtype == DType::kF64 ? DType::kF64 : DType::kF32,
                     groups_);
      for (int64_t i = 0; i < groups_; ++i) data_.alpha_values->set(0, 0, i, draw());
    }
    if (c_.beta == Scalars::kPerGroup) {
      emplace_vector(data_.beta_values, DType::kF32, groups_);
      for (int64_t i = 0; i < groups_; ++i) {
        data_.beta_values->set(0, 0, i, random_.chance(0.4) ? 0.0 : draw());
      }
    }
  }

  void make_sizes() {
    if (!c_.ends) {
      data_.sizes.emplace(index_memory_, c_.group_sizes, c_.sizes_dtype);
      return;
    }
    std::vector<int64_t> ends(c_.group_sizes.size());
    std::partial_sum(c_.group_sizes.begin(), c_.group_sizes.end(), ends.begin());
    // The largest end may need more bits than the largest size.
    const auto bits = 8 * static_cast<int64_t>(size_of(c_.sizes_dtype)) - 1;
    const bool fits = bits >= 31 || ends.empty() || ends.back() < int64_t{1} << bits;
    data_.sizes.emplace(index_memory_, ends, fits ? c_.sizes_dtype : DType::kI32,
                        GroupSizesKind::kEnds);
  }

  /// gmm, tgmm and bias_grad.
  void make_ragged() {
    make_sizes();
    if (c_.sizes_on_device) {
      data_.offset.emplace(index_memory_, std::vector<int64_t>{c_.group_offset}, c_.sizes_dtype);
    }
    Layout rows = c_.lhs_layout;
    rows.form = Placement::kRows;
    if (c_.columns(c_.lhs_mode)) {
      make_columns(data_.lhs, data_.lhs_columns, c_.lhs, c_.k, rows);
    } else {
      make_rows(data_.lhs, data_.lhs_index, c_.lhs, c_.op == Op::kBiasGrad ? c_.n : c_.k,
                c_.lhs_rows, rows);
    }
    if (c_.op == Op::kGmm) make_gmm();
    if (c_.op == Op::kTgmm) make_tgmm();
    if (c_.op == Op::kBiasGrad) make_bias_grad();
    if (c_.bias != Presence::kAbsent) {
      Layout layout = c_.bias_layout;
      layout.form = c_.bias == Presence::kList ? Placement::kList : Placement::kStacked;
      emplace_stacked(data_.bias, c_.bias_dtype, {1, c_.n}, layout);
      for (int64_t i = 0; i < groups_; ++i) {
        if (live(i)) fill_matrix(*data_.bias, i);
      }
    }
    if (c_.bias_scale) make_row_vector(data_.bias_scale);
    if (c_.row_scale) make_row_vector(data_.row_scale);
  }

  /// The transposed copy that quantize writes: [cols, capacity].
  void make_columns(std::optional<PlacedTensor>& slot, std::vector<int64_t>& columns, DType dtype,
                    int64_t cols, const Layout& layout) {
    const auto num_groups = static_cast<int64_t>(c_.group_sizes.size());
    emplace(slot, dtype, {{cols, column_capacity(c_.m, num_groups)}}, layout);
    columns.assign(static_cast<size_t>(c_.m), -1);
    int64_t column = 0, row = 0;
    for (int64_t group = 0; group < num_groups; ++group) {
      const int64_t rows = c_.group_sizes[static_cast<size_t>(group)];
      const int64_t room = (rows + kColumnAlignment - 1) / kColumnAlignment * kColumnAlignment;
      const int64_t local = group - c_.group_offset;
      for (int64_t i = 0; i < room && local >= 0 && local < groups_; ++i) {
        if (i < rows) columns[static_cast<size_t>(row + i)] = column + i;
        for (int64_t col = 0; col < cols; ++col) {
          slot->set(0, col, column + i, i < rows ? value_of_type(dtype) : 0.0);
        }
      }
      column += room;
      row += rows;
    }
  }

  void make_scales() {
    if (c_.lhs_mode == ScaleMode::kNone) return;
    data_.lhs_scales.emplace(c_, ScaleData::Operand::kLhs, memory_, index_memory_, random_);
    data_.rhs_scales.emplace(c_, ScaleData::Operand::kRhs, memory_, index_memory_, random_);
  }

  /// An operand of one row for each of the product, or of `by_index` rows that an index picks from.
  void make_rows(std::optional<PlacedTensor>& slot, std::optional<IndexMatrix>& index, DType dtype,
                 int64_t cols, int64_t by_index, const Layout& layout) {
    emplace(slot, dtype, {{by_index < 0 ? c_.m : by_index, cols}}, layout);
    if (by_index < 0) return fill_rows(*slot, 0, c_.local_begin(), c_.local_end());
    index.emplace(memory_, c_.rows_dtype, c_.m, 1,
                  IndexMatrix::Strides{std::abs(c_.vector_stride), 0});
    std::vector<bool> filled(static_cast<size_t>(by_index));
    for (int64_t row = 0; row < c_.m; ++row) {
      const int64_t from = random_.chance(0.1) ? -1 : random_.between(0, by_index - 1);
      index->set(row, 0, by_index == 0 ? -1 : from);
      if (from < 0 || by_index == 0 || row < c_.local_begin() || row >= c_.local_end()) continue;
      if (!filled[static_cast<size_t>(from)]) fill_rows(*slot, 0, from, from + 1);
      filled[static_cast<size_t>(from)] = true;
    }
  }

  void make_row_vector(std::optional<PlacedTensor>& slot) {
    emplace_vector(slot, c_.scale_dtype, c_.m);
    for (int64_t row = c_.local_begin(); row < c_.local_end(); ++row) {
      slot->set(0, 0, row, random_.uniform(-2, 2));
    }
  }

  void make_gmm() {
    const MatrixShape weights{c_.transpose_rhs ? c_.n : c_.k, c_.transpose_rhs ? c_.k : c_.n};
    emplace_stacked(data_.rhs, c_.rhs, weights, c_.rhs_layout);
    for (int64_t i = 0; i < groups_; ++i) {
      if (live(i)) fill_matrix(*data_.rhs, i);
    }
    Shapes shapes = {{c_.m, c_.out_cols()}};
    if (c_.out_layout.form == Placement::kList) {
      shapes.clear();
      for (int64_t i = 0; i < groups_; ++i) shapes.push_back({c_.group_rows(i), c_.n});
    }
    make_results(shapes, {0, c_.n});
    if (c_.preactivation) {
      // Where out's rows are padded, these are too, to whole 16 bytes.
      const int64_t padding = c_.out_layout.row_padding > 0 ? 8 + (8 - c_.n % 8) % 8 : 0;
      const Layout layout{.form = Placement::kRows, .row_padding = padding};
      emplace(data_.preactivation, c_.out, {{c_.m, c_.n}}, layout);
    }
  }

  void make_tgmm() {
    Layout rows = c_.rhs_layout;
    rows.form = Placement::kRows;
    if (c_.columns(c_.rhs_mode)) {
      make_columns(data_.rhs, data_.rhs_columns, c_.rhs, c_.n, rows);
    } else {
      make_rows(data_.rhs, data_.rhs_index, c_.rhs, c_.n, c_.rhs_rows, rows);
    }
    make_results(Shapes(static_cast<size_t>(groups_), {c_.k, c_.n}), {c_.k, c_.n});
  }

  void make_bias_grad() {
    if (c_.dbias) emplace_stacked(data_.out, c_.out, {1, c_.n}, c_.out_layout);
    if (c_.dbias_scale) emplace_vector(data_.dbias_scale, c_.scale_dtype, c_.m);
  }

  void make_grouped_gemm() {
    Shapes a;
    Shapes b;
    Shapes d;
    for (const GemmDims& dims : c_.dims) {
      a.push_back(c_.transpose_lhs ? MatrixShape{dims.k, dims.m} : MatrixShape{dims.m, dims.k});
      b.push_back(c_.transpose_rhs ? MatrixShape{dims.n, dims.k} : MatrixShape{dims.k, dims.n});
      d.push_back({dims.m, dims.n});
    }
    emplace(data_.lhs, c_.lhs, a, c_.lhs_layout);
    emplace(data_.rhs, c_.rhs, b, c_.rhs_layout);
    make_results(d, {0, 0});
    for (int64_t i = 0; i < groups_; ++i) {
      fill_matrix(*data_.lhs, i);
      fill_matrix(*data_.rhs, i);
    }
  }

  void make_results(const Shapes& shapes, MatrixShape shape_of_none) {
    emplace(data_.out, c_.out, shapes, c_.out_layout, shape_of_none);
    if (c_.c != COperand::kSeparate) return;
    emplace(data_.c, c_.c_dtype, shapes, c_.c_layout, shape_of_none);
  }

  /// C gets values where a group's beta isn't 0.
  void fill_c() {
    if (!data_.out) return;
    PlacedTensor& tensor = data_.c ? *data_.c : *data_.out;
    for (int64_t i = 0; i < groups_; ++i) {
      if (data_.beta_of(i) == 0) continue;
      if (tensor.shapes().size() == 1 && c_.op == Op::kGmm &&
          c_.out_layout.form == Placement::kRows) {
        const int64_t begin = c_.group_begin(i);
        fill_rows(tensor, 0, begin, begin + c_.group_rows(i));
      } else {
        fill_matrix(tensor, i);
      }
    }
  }

  /// A row of NaN in the lhs makes every result of the group NaN.
  void plant_nan() {
    if (c_.nan_group < 0) return;
    const bool ragged = c_.op != Op::kGroupedGemm;
    const int64_t matrix = ragged ? 0 : c_.nan_group;
    const int64_t begin = ragged ? c_.group_begin(c_.nan_group) : 0;
    const int64_t rows = ragged ? c_.group_rows(c_.nan_group)
                                : data_.lhs->shapes()[static_cast<size_t>(matrix)].rows;
    const MatrixShape shape = data_.lhs->shapes()[static_cast<size_t>(matrix)];
    const bool columns = !data_.lhs_columns.empty();
    for (int64_t row = begin; row < begin + rows; ++row) {
      for (int64_t col = 0; col < (columns ? shape.rows : shape.cols); ++col) {
        const int64_t column = columns ? data_.lhs_columns[static_cast<size_t>(row)] : col;
        data_.lhs->set(matrix, columns ? col : row, column,
                       std::numeric_limits<double>::quiet_NaN());
      }
    }
  }

  const Case& c_;
  Memory& memory_;
  Memory& index_memory_;
  Random random_;
  int64_t groups_;
  CaseData data_;
};

}  // namespace

double CaseData::alpha_of(int64_t group) const {
  return alpha_values ? alpha_values->before(0, 0, group) : alpha;
}

namespace {

double value_of(const PlacedTensor& tensor, const std::optional<IndexMatrix>& index,
                const std::vector<int64_t>& columns, const int64_t (&at)[3]) {
  const auto [matrix, row, col] = at;
  if (!columns.empty()) return tensor.before(matrix, col, columns[static_cast<size_t>(row)]);
  const int64_t from = index ? index->before(row, 0) : row;
  return from < 0 ? 0.0 : tensor.before(matrix, from, col);
}

}  // namespace

double CaseData::lhs_value(int64_t matrix, int64_t row, int64_t col) const {
  return value_of(*lhs, lhs_index, lhs_columns, {matrix, row, col});
}

double CaseData::rhs_value(int64_t matrix, int64_t row, int64_t col) const {
  return value_of(*rhs, rhs_index, rhs_columns, {matrix, row, col});
}

double CaseData::lhs_scale(int64_t group, int64_t outer, int64_t inner) const {
  if (!lhs_scales) return 1;
  const bool by_index = lhs_scales->is_of_rows() && lhs_index;
  const int64_t from = by_index ? lhs_index->before(outer, 0) : outer;
  return from < 0 ? 1.0 : lhs_scales->value(group, from, inner);
}

double CaseData::rhs_scale(int64_t group, int64_t outer, int64_t inner) const {
  return rhs_scales ? rhs_scales->value(group, outer, inner) : 1.0;
}

double CaseData::beta_of(int64_t group) const {
  return beta_values ? beta_values->before(0, 0, group) : beta;
}

void CaseData::upload() {
  for (auto* tensor : {&lhs, &rhs, &out, &preactivation, &c, &bias, &bias_scale, &row_scale,
                       &dbias_scale, &alpha_values, &beta_values}) {
    if (*tensor) (*tensor)->upload();
  }
  for (auto* index : {&lhs_index, &rhs_index}) {
    if (*index) (*index)->upload();
  }
  for (auto* scales : {&lhs_scales, &rhs_scales}) {
    if (*scales) (*scales)->tensor().upload();
  }
}

void CaseData::download() {
  for (auto* tensor : {&lhs, &rhs, &out, &preactivation, &c, &bias, &bias_scale, &row_scale,
                       &dbias_scale, &alpha_values, &beta_values}) {
    if (*tensor) (*tensor)->download();
  }
  for (auto* index : {&lhs_index, &rhs_index}) {
    if (*index) (*index)->download();
  }
  for (auto* scales : {&lhs_scales, &rhs_scales}) {
    if (*scales) (*scales)->tensor().download();
  }
}

std::vector<std::string> CaseData::changed_inputs() const {
  std::vector<std::string> changed;
  const auto look = [&](const char* name, const std::optional<PlacedTensor>& tensor) {
    int64_t at = 0;
    if (tensor && !tensor->untouched_elsewhere(&at)) {
      changed.push_back(name + (" changed at byte " + std::to_string(at)));
    }
  };
  look("lhs", lhs);
  look("rhs", rhs);
  look("c", c);
  look("bias", bias);
  look("bias_scale", bias_scale);
  look("row_scale", row_scale);
  look("alpha", alpha_values);
  look("beta", beta_values);
  if (lhs_scales && !lhs_scales->tensor().unchanged()) changed.emplace_back("lhs.scales changed");
  if (rhs_scales && !rhs_scales->tensor().unchanged()) changed.emplace_back("rhs.scales changed");
  if (lhs_index && !lhs_index->unchanged()) changed.emplace_back("lhs_rows changed");
  if (rhs_index && !rhs_index->unchanged()) changed.emplace_back("rhs_rows changed");
  return changed;
}

CaseData make_data(const Case& test_case, Memory& memory) {
  return Filler(test_case, memory).make();
}

}  // namespace cadre::verify
