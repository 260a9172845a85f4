// quantize, dequantize and amax on guarded operands.
#include "tests/contract/quantize_case.h"

#include <cmath>
#include <numeric>

#include "cadre/quantize.h"
#include "core/convert.h"
#include "core/text.h"
#include "tests/contract/row_operands.h"

namespace cadre::contract {
namespace {

using verify::IndexMatrix;
using verify::MatrixShape;
using verify::PlacedTensor;
using verify::Random;

int64_t block_of(ScaleMode mode) {
  return mode == ScaleMode::kBlock128 ? 128 : mode == ScaleMode::kMx ? 32 : 0;
}
int64_t blocks(int64_t size, int64_t block) { return (size + block - 1) / block; }

int64_t rows_of(const QuantizeCase& c) {
  return std::accumulate(c.sizes.begin(), c.sizes.end(), c.tail);
}
int64_t groups_of(const QuantizeCase& c) { return static_cast<int64_t>(c.sizes.size()); }
int64_t size_of_group(const QuantizeCase& c, int64_t group) {
  return c.sizes[static_cast<size_t>(group)];
}
int64_t begin_of(const QuantizeCase& c, int64_t group) {
  return std::accumulate(c.sizes.begin(), c.sizes.begin() + group, int64_t{0});
}
/// Blocks of so many rows before a group.
int64_t lines_before(const QuantizeCase& c, int64_t group, int64_t block) {
  int64_t lines = 0;
  for (int64_t i = 0; i < group; ++i) lines += blocks(size_of_group(c, i), block);
  return lines;
}

std::unique_ptr<PlacedTensor> place(const Subject& subject, DType dtype,
                                    std::vector<MatrixShape> shapes, MatrixShape shape_of_none,
                                    Layout layout, Random& random) {
  layout.form = shapes.size() == 1 ? Placement::kRows : Placement::kStacked;
  return std::make_unique<PlacedTensor>(subject.memory, subject.memory, dtype, std::move(shapes),
                                        shape_of_none, layout, random);
}

/// A stack of matrices as one view of rank 3.
TensorView stack_view(const PlacedTensor& tensor, int64_t count) {
  if (count == 1) {
    TensorView view = tensor.matrix_view();
    return TensorView::strided(view.data, view.dtype, {1, view.shape[0], view.shape[1]},
                               {0, view.strides[0], view.strides[1]}, view.device);
  }
  const GroupedTensor stack = tensor.tensor();
  return TensorView::strided(
      stack.data, stack.dtype, {count, stack.rows.uniform, stack.cols.uniform},
      {stack.group_stride, stack.row_stride, stack.col_stride}, stack.device);
}

std::vector<MatrixShape> matrices(const QuantizeCase& c, int64_t rows, int64_t cols) {
  return std::vector<MatrixShape>(c.weights ? c.sizes.size() : 1, MatrixShape{rows, cols});
}

TensorView data_view(const QuantizeCase& c, const PlacedTensor& tensor) {
  return c.weights ? stack_view(tensor, groups_of(c)) : tensor.matrix_view();
}

}  // namespace

std::unique_ptr<PlacedTensor> Arrangement::scale_tensor(const Subject& subject,
                                                        const QuantizeCase& c, bool transposed,
                                                        DType dtype, Random& random) {
  const int64_t block = block_of(c.mode);
  const int64_t n = c.sizes.empty() ? 0 : c.sizes[0];
  std::vector<MatrixShape> shapes{{1, 1}};
  if (c.weights) {
    const int64_t outer = transposed ? c.k : n;
    const int64_t inner = transposed ? n : c.k;
    if (c.mode == ScaleMode::kTensor && !c.one_scale) shapes = {{1, groups_of(c)}};
    if (c.mode == ScaleMode::kRow) shapes = {{groups_of(c), outer}};
    if (block != 0) {
      const bool square = c.mode == ScaleMode::kBlock128;
      shapes = matrices(c, square ? blocks(outer, block) : outer, blocks(inner, block));
    }
  } else if (transposed) {
    if (c.mode == ScaleMode::kRow) shapes = {{groups_of(c), c.k}};
    if (block != 0) shapes = {{column_scale_capacity(rows_of(c), groups_of(c), block), c.k}};
  } else {
    if (c.mode == ScaleMode::kRow) shapes = {{1, rows_of(c)}};
    if (block != 0) shapes = {{rows_of(c), blocks(c.k, block)}};
  }
  return place(subject, dtype, shapes, shapes[0], c.layout, random);
}

TensorView Arrangement::scale_view(const PlacedTensor& scales) const {
  if (c_.mode == ScaleMode::kTensor) return scales.vector_view();
  if (c_.mode == ScaleMode::kRow) {
    return c_.weights || transposed_ ? scales.matrix_view() : scales.vector_view();
  }
  return data_view(c_, scales);
}

Arrangement::Arrangement(const Subject& subject, const QuantizeCase& c, bool transposed,
                         Random& random)
    : c_(c), transposed_(transposed) {
  const int64_t n = c.sizes.empty() ? 0 : c.sizes[0];
  std::vector<MatrixShape> shapes;
  if (c.weights) {
    shapes = transposed ? matrices(c, c.k, n) : matrices(c, n, c.k);
  } else if (transposed) {
    shapes = {{c.k, column_capacity(rows_of(c), groups_of(c))}};
  } else {
    shapes = {{rows_of(c), c.k}};
  }
  codes_ =
      place(subject, transposed ? c.column_type : c.row_type, shapes, shapes[0], c.layout, random);
  const bool e8m0 = c.mode == ScaleMode::kMx || c.e8m0;
  scales_ = scale_tensor(subject, c, transposed, e8m0 ? DType::kE8M0 : DType::kF32, random);
  const auto allow = [](PlacedTensor& tensor, const Index& at) {
    tensor.allow_change(at[0], at[1], at[2]);
  };
  for (int64_t group = 0; group < groups_of(c); ++group) {
    for (int64_t row = 0; row < size_of_group(c, group); ++row) {
      for (int64_t col = 0; col < c.k; ++col) allow(*codes_, code_of(group, row, col));
    }
  }
  for (const Index& at : zeros()) allow(*codes_, at);
  for (const Index& at : all_scales()) allow(*scales_, at);
}

Arrangement::Index Arrangement::code_of(int64_t group, int64_t row, int64_t col) const {
  if (c_.weights) return transposed_ ? Index{group, col, row} : Index{group, row, col};
  if (!transposed_) return {0, begin_of(c_, group) + row, col};
  return {0, col, lines_before(c_, group, 32) * 32 + row};
}

Arrangement::Index Arrangement::scale_of(int64_t group, int64_t row, int64_t col) const {
  const int64_t block = block_of(c_.mode);
  const bool square = c_.weights && c_.mode == ScaleMode::kBlock128;
  if (c_.mode == ScaleMode::kTensor) {
    return c_.weights && !c_.one_scale ? Index{0, 0, group} : Index{0, 0, 0};
  }
  const int64_t outer = transposed_ ? col : row;
  const int64_t inner = transposed_ ? row : col;
  if (c_.mode == ScaleMode::kRow) {
    if (c_.weights || transposed_) return {0, group, outer};
    return {0, 0, begin_of(c_, group) + row};
  }
  if (c_.weights) return {group, square ? outer / block : outer, inner / block};
  if (transposed_) return {0, lines_before(c_, group, block) + row / block, col};
  return {0, begin_of(c_, group) + row, col / block};
}

std::vector<Arrangement::Index> Arrangement::all_scales() const {
  std::vector<Index> all;
  const std::vector<MatrixShape>& shapes = scales_->shapes();
  const int64_t block = block_of(c_.mode);
  // A column-wise copy has room for more lines than it uses.
  const int64_t lines = !c_.weights && transposed_ && block != 0
                            ? lines_before(c_, groups_of(c_), block)
                            : shapes[0].rows;
  for (size_t matrix = 0; matrix < shapes.size(); ++matrix) {
    for (int64_t row = 0; row < lines; ++row) {
      for (int64_t col = 0; col < shapes[0].cols; ++col) {
        all.push_back({static_cast<int64_t>(matrix), row, col});
      }
    }
  }
  return all;
}

bool Arrangement::is_tail(const Index& scale) const {
  if (c_.weights || transposed_ || c_.mode == ScaleMode::kTensor) return false;
  return scale[c_.mode == ScaleMode::kRow ? 2 : 1] >= rows_of(c_) - c_.tail;
}

std::vector<Arrangement::Index> Arrangement::zeros() const {
  std::vector<Index> all;
  if (c_.weights) return all;
  for (int64_t col = 0; col < c_.k; ++col) {
    for (int64_t row = 0; !transposed_ && row < c_.tail; ++row) {
      all.push_back({0, rows_of(c_) - c_.tail + row, col});
    }
    for (int64_t group = 0; transposed_ && group < groups_of(c_); ++group) {
      const int64_t size = size_of_group(c_, group);
      for (int64_t row = size; row % 32 != 0; ++row) all.push_back(code_of(group, row, col));
    }
  }
  return all;
}

ScaledTensor Arrangement::operand() const {
  ScaledTensor tensor(data_view(c_, *codes_), Scales(c_.mode, scale_view(*scales_)));
  tensor.columns = transposed_ && !c_.weights;
  return tensor;
}

namespace {

class Call {
 public:
  Call(const Subject& subject, const DTypes& types, const QuantizeCase& c)
      : subject_(subject),
        c_(c),
        random_(c.seed),
        source_(subject.memory, DType::kI64, rows_of(c), 1),
        sizes_(subject.memory, c.ends ? ends_of(c) : c.sizes, c.sizes_type,
               c.ends ? GroupSizesKind::kEnds : GroupSizesKind::kSizes) {
    const int64_t m = rows_of(c);
    const int64_t full = c.k * c.activation.columns();
    const int64_t sources = c.gathers ? m / 2 + 3 : m;
    const MatrixShape of_x = c.weights ? MatrixShape{c.sizes.empty() ? 0 : c.sizes[0], full}
                                       : MatrixShape{sources, full};
    x_ = place(subject, types.lhs, matrices(c, of_x.rows, of_x.cols), of_x, c.layout, random_);
    fill_x(of_x);
    row_scale_ = place(subject, types.rhs, {{1, m}}, {1, m}, c.layout, random_);
    for (int64_t row = 0; row < m; ++row) {
      row_scale_->set(0, 0, row, random_.uniform(-3, 3));
      source_.set(row, 0, random_.between(-1, sources - 1));
    }
    if (c.row_type != DType::kInvalid) add(false);
    if (c.column_type != DType::kInvalid) add(true);
    for (size_t i = 0; i < copies_.size(); ++i) {
      const MatrixShape plain = c.weights ? MatrixShape{of_x.rows, c.k} : MatrixShape{m, c.k};
      plain_.push_back(
          place(subject, types.out, matrices(c, plain.rows, plain.cols), plain, c.layout, random_));
      for (size_t matrix = 0; matrix < plain_[i]->shapes().size(); ++matrix) {
        for (int64_t row = 0; row < plain.rows; ++row) {
          for (int64_t col = 0; col < plain.cols; ++col) {
            plain_[i]->allow_change(static_cast<int64_t>(matrix), row, col);
          }
        }
      }
    }
    amax_ = Arrangement::scale_tensor(subject, c, false, DType::kF32, random_);
    for (const Arrangement::Index& at : as_rows().all_scales()) {
      amax_->allow_change(at[0], at[1], at[2]);
    }
  }

  Failures check() {
    Failures failures;
    if (Status status = run(); !status.ok()) return {status.message()};
    for (size_t i = 0; i < copies_.size(); ++i) {
      compare_copy(*copies_[i], &failures);
      compare_plain(*copies_[i], *plain_[i], &failures);
    }
    if (makes_amax()) compare_amax(&failures);
    if (!x_->unchanged() || !row_scale_->unchanged() || !source_.unchanged()) {
      failures.emplace_back("an input was written");
    }
    return failures;
  }

 private:
  static std::vector<int64_t> ends_of(const QuantizeCase& c) {
    std::vector<int64_t> ends(c.sizes.size());
    std::partial_sum(c.sizes.begin(), c.sizes.end(), ends.begin());
    return ends;
  }

  void fill_x(const MatrixShape& shape) {
    for (size_t matrix = 0; matrix < x_->shapes().size(); ++matrix) {
      for (int64_t row = 0; row < shape.rows; ++row) {
        // Magnitudes of rows differ, so that a scale of the wrong row is seen.
        const double size = std::exp2(random_.uniform(-6, 6));
        for (int64_t col = 0; col < shape.cols; ++col) {
          const int64_t of_all = static_cast<int64_t>(matrix) * shape.rows + row;
          const double value = c_.value ? c_.value(of_all, col) : random_.uniform(-size, size);
          x_->set(static_cast<int64_t>(matrix), row, col, value);
        }
      }
    }
  }

  void add(bool transposed) {
    copies_.push_back(std::make_unique<Arrangement>(subject_, c_, transposed, random_));
    transposed_.push_back(transposed);
  }

  bool makes_amax() const {
    return c_.activation.kind == ActivationKind::kNone && !c_.gathers && !c_.scales_rows;
  }

  Status run() {
    x_->upload();
    row_scale_->upload();
    source_.upload();
    sizes_.upload();
    amax_->upload();
    QuantizeArgs args{.x = data_view(c_, *x_),
                      .activation = c_.activation,
                      .power_of_two = c_.rule.power_of_two && !c_.e8m0,
                      .amax_floor = c_.rule.amax_floor};
    if (c_.gathers) args.source_row = source_.vector_view();
    if (c_.scales_rows) args.row_scale = row_scale_->vector_view();
    if (c_.given_sizes && !c_.weights) args.group_sizes = sizes_.sizes();
    for (size_t i = 0; i < copies_.size(); ++i) {
      copies_[i]->codes().upload();
      copies_[i]->scales().upload();
      plain_[i]->upload();
      (transposed_[i] ? args.columns : args.rows) = copies_[i]->operand();
    }
    Status status = quantize(subject_.context, args);
    for (size_t i = 0; status.ok() && i < copies_.size(); ++i) {
      status = dequantize(
          subject_.context,
          {.x = copies_[i]->operand(), .group_sizes = args.group_sizes, .out = plain_view(i)});
    }
    if (status.ok() && makes_amax()) {
      status = amax(subject_.context, {.x = args.x,
                                       .group_sizes = args.group_sizes,
                                       .mode = c_.mode,
                                       .out = as_rows().scale_view(*amax_)});
    }
    if (status.ok()) status = subject_.memory.finish(subject_.context);
    for (size_t i = 0; i < copies_.size(); ++i) {
      copies_[i]->codes().download();
      copies_[i]->scales().download();
      plain_[i]->download();
    }
    for (PlacedTensor* tensor : {x_.get(), row_scale_.get(), amax_.get()}) tensor->download();
    source_.download();
    return status;
  }

  /// The transposed copy of weights is dequantised in its own order.
  TensorView plain_view(size_t i) const {
    TensorView view = data_view(c_, *plain_[i]);
    if (c_.weights && transposed_[i]) {
      std::swap(view.shape[1], view.shape[2]);
      std::swap(view.strides[1], view.strides[2]);
    }
    return view;
  }

  /// What is quantised: exact in double, but for an activation.
  double source(int64_t group, int64_t row, int64_t col) const {
    const int64_t of_all = begin_of(c_, group) + row;
    const int64_t from = c_.gathers ? source_.before(of_all, 0) : of_all;
    if (from < 0) return 0;
    const auto at = [&](int64_t column) {
      return c_.weights ? x_->before(group, row, column) : x_->before(0, from, column);
    };
    double value = at(col);
    const Activation& a = c_.activation;
    if (a.kind == ActivationKind::kSwiglu) {
      const bool in_turn = a.layout == GateLayout::kInterleaved;
      const double gate = at(in_turn ? 2 * col : col);
      const double up = at(in_turn ? 2 * col + 1 : c_.k + col);
      value = gate / (1 + std::exp(-gate)) * up;
    }
    if (c_.scales_rows) value *= row_scale_->before(0, 0, of_all);
    return static_cast<double>(static_cast<float>(value));
  }

  template <typename Visit>
  void each_element(const Visit& visit) const {
    for (int64_t group = 0; group < groups_of(c_); ++group) {
      for (int64_t row = 0; row < size_of_group(c_, group); ++row) {
        for (int64_t col = 0; col < c_.k; ++col) visit(group, row, col);
      }
    }
  }

  /// By scale; -1 behind the last group.
  std::map<Arrangement::Index, double> amaxes_of(const Arrangement& copy) const {
    std::map<Arrangement::Index, double> amaxes;
    for (const Arrangement::Index& at : copy.all_scales()) amaxes[at] = copy.is_tail(at) ? -1 : 0;
    each_element([&](int64_t group, int64_t row, int64_t col) {
      const double magnitude = std::fabs(source(group, row, col));
      double& amax = amaxes[copy.scale_of(group, row, col)];
      if (std::isfinite(magnitude)) amax = std::max(amax, magnitude);
    });
    return amaxes;
  }

  static double at(const PlacedTensor& tensor, const Arrangement::Index& i) {
    return tensor.after(i[0], i[1], i[2]);
  }
  static std::string name(const char* what, const Arrangement::Index& i) {
    return text(what, "[", i[0], ", ", i[1], ", ", i[2], "]");
  }

  void fail(Failures* failures, const std::string& what, double got, double expected) const {
    if (failures->size() > 3) return;
    failures->push_back(text(what, " = ", got, ", expected ", expected, " (mode ", name_of(c_.mode),
                             ", k ", c_.k, ", m ", rows_of(c_), ", groups ", groups_of(c_),
                             c_.weights ? ", weights" : "", ")"));
  }

  void compare_copy(const Arrangement& copy, Failures* failures) const {
    const Fp8Grid grid = Fp8Grid::of(copy.dtype());
    ScaleModel rule = c_.rule;
    rule.power_of_two |= copy.scales().dtype() == DType::kE8M0;
    const bool exact = c_.activation.kind == ActivationKind::kNone;
    for (const auto& [index, amax] : amaxes_of(copy)) {
      const double expected = amax < 0 ? 1 : rule.scale_of(amax, copy.dtype());
      const double got = at(copy.scales(), index);
      const double slack = exact ? 0 : expected * 1e-5;
      if (std::fabs(got - expected) <= slack) continue;
      fail(failures, name("scale", index), got, expected);
    }
    each_element([&](int64_t group, int64_t row, int64_t col) {
      const Arrangement::Index index = copy.code_of(group, row, col);
      const double got = at(copy.codes(), index);
      const double value = source(group, row, col);
      const double scale = at(copy.scales(), copy.scale_of(group, row, col));
      const double scaled = scaled_value(value, scale);
      const double expected = grid.round(scaled);
      if (std::isnan(expected) && std::isnan(got)) return;
      if (got == expected && std::signbit(got) == std::signbit(expected)) return;
      if (!exact && std::fabs(got - scaled) <=
                        grid.quantum(std::fabs(scaled)) * 0.501 + std::fabs(scaled) * 1e-5) {
        return;
      }
      fail(failures, name("code", index), got, expected);
    });
    for (const Arrangement::Index& index : copy.zeros()) {
      const double got = at(copy.codes(), index);
      if (got != 0 || std::signbit(got)) fail(failures, name("zero", index), got, 0);
    }
    int64_t offset = 0;
    if (!copy.codes().untouched_elsewhere(&offset)) {
      failures->push_back(text("byte ", offset, " outside of the codes changed"));
    }
    if (!copy.scales().untouched_elsewhere(&offset)) {
      failures->push_back(text("byte ", offset, " outside of the scales changed"));
    }
  }

  void compare_plain(const Arrangement& copy, const PlacedTensor& plain, Failures* failures) const {
    each_element([&](int64_t group, int64_t row, int64_t col) {
      const double code = at(copy.codes(), copy.code_of(group, row, col));
      const double scale = at(copy.scales(), copy.scale_of(group, row, col));
      const auto product = static_cast<float>(code * scale);
      const double expected = rounded_to(plain.dtype(), static_cast<double>(product));
      const Arrangement::Index index = c_.weights
                                           ? Arrangement::Index{group, row, col}
                                           : Arrangement::Index{0, begin_of(c_, group) + row, col};
      const double got = at(plain, index);
      if (got == expected || (std::isnan(got) && std::isnan(expected))) return;
      fail(failures, name("dequantised", index), got, expected);
    });
    for (int64_t row = rows_of(c_) - c_.tail; row < rows_of(c_); ++row) {
      for (int64_t col = 0; col < c_.k; ++col) {
        if (plain.after(0, row, col) != 0) {
          fail(failures, name("dequantised", {0, row, col}), plain.after(0, row, col), 0);
        }
      }
    }
    int64_t offset = 0;
    if (!plain.untouched_elsewhere(&offset)) failures->emplace_back("a byte outside out changed");
  }

  static double rounded_to(DType dtype, double value) {
    double bits = 0;
    store_rounded(&bits, dtype, 0, value);
    return load_as_double(&bits, dtype, 0);
  }

  void compare_amax(Failures* failures) const {
    for (const auto& [index, amax] : amaxes_of(as_rows())) {
      const double got = at(*amax_, index);
      if (got != std::max(amax, 0.0)) fail(failures, name("amax", index), got, amax);
    }
    int64_t offset = 0;
    if (!amax_->untouched_elsewhere(&offset)) failures->emplace_back("a byte outside amax changed");
  }

  /// The arrangement whose scales have the shape of amax's result.
  Arrangement as_rows() const {
    Random random(1);
    return Arrangement(subject_, as_rows_, false, random);
  }

  const Subject& subject_;
  const QuantizeCase& c_;
  QuantizeCase as_rows_ = rows_of_case(c_);
  Random random_;
  std::unique_ptr<PlacedTensor> x_, row_scale_, amax_;
  IndexMatrix source_;
  verify::IndexArray sizes_;
  std::vector<std::unique_ptr<Arrangement>> copies_;
  std::vector<bool> transposed_;
  std::vector<std::unique_ptr<PlacedTensor>> plain_;

  static QuantizeCase rows_of_case(QuantizeCase c) {
    c.row_type = DType::kE4M3;
    return c;
  }
};

}  // namespace

Failures check_quantize(const Subject& subject, const DTypes& types, const QuantizeCase& c) {
  return Call(subject, types, c).check();
}

}  // namespace cadre::contract
