// quantize, dequantize and amax on guarded operands.
#include "tests/contract/quantize_case.h"

#include <cmath>
#include <numeric>

#include "cadre/quantize.h"
#include "core/convert.h"
#include "core/text.h"
#include "tests/contract/quantize_arrangement.h"
#include "tests/contract/row_operands.h"

namespace cadre::contract {
namespace {

using verify::IndexMatrix;
using verify::MatrixShape;
using verify::PlacedTensor;
using verify::Random;

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
    find_sources();
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

  /// What is quantised.
  double source(int64_t group, int64_t row, int64_t col) const {
    return sources_[static_cast<size_t>((begins_[static_cast<size_t>(group)] + row) * c_.k + col)];
  }
  void find_sources() {
    sources_.resize(static_cast<size_t>(rows_of(c_) * c_.k));
    for (int64_t group = 0; group < groups_of(c_); ++group) begins_.push_back(begin_of(c_, group));
    size_t i = 0;
    each_element([&](int64_t group, int64_t row, int64_t col) {
      sources_[i++] = find_source(group, row, col);
    });
  }
  /// Exact in double, but for an activation.
  double find_source(int64_t group, int64_t row, int64_t col) const {
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

  /// By scale, in the order of all its places: -1 behind the last group.
  std::vector<double> amaxes_of(const Arrangement& copy) const {
    std::vector<double> amaxes;
    for (const MatrixShape& shape : copy.scales().shapes()) {
      amaxes.resize(amaxes.size() + static_cast<size_t>(shape.rows * shape.cols));
    }
    for (const Arrangement::Index& at : copy.all_scales()) {
      amaxes[place_of(copy, at)] = copy.is_tail(at) ? -1 : 0;
    }
    each_element([&](int64_t group, int64_t row, int64_t col) {
      const double magnitude = std::fabs(source(group, row, col));
      if (!std::isfinite(magnitude)) return;
      double& amax = amaxes[place_of(copy, copy.scale_of(group, row, col))];
      amax = std::max(amax, magnitude);
    });
    return amaxes;
  }
  static size_t place_of(const Arrangement& copy, const Arrangement::Index& at) {
    const MatrixShape& shape = copy.scales().shapes()[0];
    return static_cast<size_t>((at[0] * shape.rows + at[1]) * shape.cols + at[2]);
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
    const std::vector<double> amaxes = amaxes_of(copy);
    for (const Arrangement::Index& index : copy.all_scales()) {
      const double amax = amaxes[place_of(copy, index)];
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
    const Arrangement rows = as_rows();
    const std::vector<double> amaxes = amaxes_of(rows);
    for (const Arrangement::Index& index : rows.all_scales()) {
      const double amax = amaxes[place_of(rows, index)];
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
  std::vector<int64_t> begins_;
  std::vector<double> sources_;

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
