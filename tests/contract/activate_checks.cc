// The promises of activate and activate_grad, against the functions as they are defined, written
// down here once more in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "core/text.h"
#include "tests/contract/row_checks.h"
#include "verify/placed_tensor.h"
#include "verify/random.h"
#include "verify/tolerance.h"

namespace cadre::contract::activate {
namespace {

using verify::PlacedTensor;
using verify::Random;

constexpr ActivationKind kKinds[] = {
    ActivationKind::kNone,      ActivationKind::kSilu,     ActivationKind::kGeluTanh,
    ActivationKind::kGeluErf,   ActivationKind::kRelu2,    ActivationKind::kSwiglu,
    ActivationKind::kGegluTanh, ActivationKind::kGegluErf, ActivationKind::kClampedSwiglu};

/// Roundings of an exponential, a polynomial and a division, far above what they need.
constexpr int64_t kRoundings = 32;

struct Slopes {
  double value;
  double d_gate;
  double d_up;
};

Slopes gate_slopes(ActivationKind kind, double x) {
  const double pi = std::acos(-1.0);
  switch (kind) {
    case ActivationKind::kSilu:
    case ActivationKind::kSwiglu: {
      const double s = 1 / (1 + std::exp(-x));
      return {x * s, s * (1 + x * (1 - s)), 0};
    }
    case ActivationKind::kGeluTanh:
    case ActivationKind::kGegluTanh: {
      const double c = std::sqrt(2 / pi);
      const double tanh = std::tanh(c * (x + 0.044715 * x * x * x));
      const double slope = c * (1 + 3 * 0.044715 * x * x);
      return {x / 2 * (1 + tanh), (1 + tanh) / 2 + x / 2 * (1 - tanh * tanh) * slope, 0};
    }
    case ActivationKind::kGeluErf:
    case ActivationKind::kGegluErf: {
      const double below = (1 + std::erf(x / std::sqrt(2.0))) / 2;
      return {x * below, below + x * std::exp(-x * x / 2) / std::sqrt(2 * pi), 0};
    }
    case ActivationKind::kRelu2:
      return {x > 0 ? x * x : 0, x > 0 ? 2 * x : 0, 0};
    default:
      return {x, 1, 0};
  }
}

Slopes slopes_of(const Activation& a, double gate, double up) {
  if (std::isnan(gate)) return {gate, a.kind == ActivationKind::kNone ? 1.0 : gate, gate};
  if (a.kind == ActivationKind::kClampedSwiglu) {
    const double g = std::min(gate, a.limit);
    const double u = std::clamp(up, -a.limit, a.limit) + a.up_offset;
    const double s = 1 / (1 + std::exp(-a.alpha * g));
    return {g * s * u, gate > a.limit ? 0 : s * (1 + a.alpha * g * (1 - s)) * u,
            std::fabs(up) > a.limit ? 0 : g * s};
  }
  const Slopes f = gate_slopes(a.kind, gate);
  return a.gated() ? Slopes{f.value * up, f.d_gate * up, f.value} : f;
}

struct ActivationCase {
  Activation activation{};
  int64_t rows = 5;
  int64_t width = 64;
  Layout layout{};
  bool scaled = true;
  int64_t nan_row = -1;
  int64_t salt = 0;  ///< rows of the same salt and width begin with the same numbers
};

class Rows {
 public:
  Rows(const Subject& subject, const DTypes& types, const ActivationCase& c)
      : subject_(subject), c_(c), random_(31 + static_cast<uint64_t>(c.salt)) {
    const int64_t full = c.width * c.activation.columns();
    preact_ = make(types.lhs, c.rows, full);
    grad_ = make(types.lhs, c.rows, c.width);
    scale_ = make(types.rhs, 1, c.rows);
    out_ = make(types.out, c.rows, c.width);
    d_preact_ = make(types.out, c.rows, full);
    activated_ = make(types.out, c.rows, c.width);
    dot_ = make(types.rhs, 1, c.rows);
    for (const PlacedTensor* tensor : all()) f64_ |= tensor->dtype() == DType::kF64;
    Random numbers(77 + static_cast<uint64_t>(c.salt));
    for (int64_t row = 0; row < c.rows; ++row) {
      for (int64_t i = 0; i < full; ++i) {
        preact_->set(0, row, i, row == c.nan_row ? kNan : numbers.uniform(-9, 9));
      }
      for (int64_t i = 0; i < c.width; ++i) grad_->set(0, row, i, numbers.uniform(-2, 2));
      scale_->set(0, 0, row, numbers.uniform(-2, 2));
    }
    for (PlacedTensor* tensor : outputs()) {
      const verify::MatrixShape shape = tensor->shapes()[0];
      for (int64_t row = 0; row < shape.rows; ++row) {
        for (int64_t col = 0; col < shape.cols; ++col) tensor->allow_change(0, row, col);
      }
    }
  }

  Failures check() {
    for (PlacedTensor* tensor : all()) tensor->upload();
    Status status = cadre::activate(subject_.context, {.preact = preact_->matrix_view(),
                                                       .activation = c_.activation,
                                                       .out = out_->matrix_view()});
    if (status.ok()) {
      status = cadre::activate_grad(subject_.context,
                                    {.preact = preact_->matrix_view(),
                                     .grad = grad_->matrix_view(),
                                     .row_scale = c_.scaled ? scale_->vector_view() : TensorView{},
                                     .activation = c_.activation,
                                     .d_preact = d_preact_->matrix_view(),
                                     .activated = activated_->matrix_view(),
                                     .row_dot = dot_->vector_view()});
    }
    if (status.ok()) status = subject_.memory.finish(subject_.context);
    if (!status.ok()) return {status.message()};
    for (PlacedTensor* tensor : all()) tensor->download();
    Failures failures;
    for (int64_t row = 0; row < c_.rows; ++row) compare_row(row, &failures);
    for (const PlacedTensor* tensor : outputs()) {
      int64_t offset = 0;
      if (!tensor->untouched_elsewhere(&offset)) {
        failures.push_back(text("byte ", offset, " outside the elements of a result changed"));
      }
    }
    for (const PlacedTensor* tensor : {preact_.get(), grad_.get(), scale_.get()}) {
      if (!tensor->unchanged()) failures.emplace_back("an input was written");
    }
    return failures;
  }

  /// The gradients once more, d_preact over preact and activated over grad: what is different.
  Failures check_in_place() {
    for (PlacedTensor* tensor : {preact_.get(), grad_.get()}) {
      const verify::MatrixShape shape = tensor->shapes()[0];
      for (int64_t row = 0; row < shape.rows; ++row) {
        for (int64_t col = 0; col < shape.cols; ++col) tensor->allow_change(0, row, col);
      }
    }
    const std::vector<std::byte> dots = bits_of(*dot_);
    for (PlacedTensor* tensor : {preact_.get(), grad_.get(), dot_.get()}) tensor->upload();
    Status status = cadre::activate_grad(subject_.context, {.preact = preact_->matrix_view(),
                                                            .grad = grad_->matrix_view(),
                                                            .row_scale = scale_->vector_view(),
                                                            .activation = c_.activation,
                                                            .d_preact = preact_->matrix_view(),
                                                            .activated = grad_->matrix_view(),
                                                            .row_dot = dot_->vector_view()});
    if (status.ok()) status = subject_.memory.finish(subject_.context);
    if (!status.ok()) return {status.message()};
    for (PlacedTensor* tensor : {preact_.get(), grad_.get(), dot_.get()}) tensor->download();
    Failures failures;
    if (bits_of(*preact_) != bits_of(*d_preact_)) failures.emplace_back("d_preact over preact");
    if (bits_of(*grad_) != bits_of(*activated_)) failures.emplace_back("activated over grad");
    if (bits_of(*dot_) != dots) failures.emplace_back("row_dot beside results in place");
    for (const PlacedTensor* tensor : {preact_.get(), grad_.get()}) {
      int64_t offset = 0;
      if (!tensor->untouched_elsewhere(&offset)) {
        failures.push_back(text("byte ", offset, " outside the elements of a result changed"));
      }
    }
    for (std::string& failure : failures) {
      failure += text(" (kind ", static_cast<int>(c_.activation.kind), ", width ", c_.width, ")");
    }
    return failures;
  }

  /// All results of a row.
  std::vector<std::byte> bits_of(int64_t row) const {
    std::vector<std::byte> bits;
    const auto add = [&](const PlacedTensor& tensor, int64_t r, int64_t col) {
      const std::vector<std::byte> one = tensor.bytes_after(0, r, col);
      bits.insert(bits.end(), one.begin(), one.end());
    };
    for (const PlacedTensor* tensor : {out_.get(), d_preact_.get(), activated_.get()}) {
      for (int64_t col = 0; col < tensor->shapes()[0].cols; ++col) add(*tensor, row, col);
    }
    add(*dot_, 0, row);
    return bits;
  }

  /// Of the elements of a result.
  static std::vector<std::byte> bits_of(const PlacedTensor& tensor) {
    std::vector<std::byte> bits;
    const verify::MatrixShape shape = tensor.shapes()[0];
    for (int64_t row = 0; row < shape.rows; ++row) {
      for (int64_t col = 0; col < shape.cols; ++col) {
        const std::vector<std::byte> one = tensor.bytes_after(0, row, col);
        bits.insert(bits.end(), one.begin(), one.end());
      }
    }
    return bits;
  }

 private:
  static constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

  std::unique_ptr<PlacedTensor> make(DType dtype, int64_t rows, int64_t cols) {
    Layout layout = c_.layout;
    layout.form = Placement::kRows;
    return std::make_unique<PlacedTensor>(subject_.memory, subject_.memory, dtype,
                                          std::vector<verify::MatrixShape>{{rows, cols}},
                                          verify::MatrixShape{rows, cols}, layout, random_);
  }

  std::vector<PlacedTensor*> outputs() const {
    return {out_.get(), d_preact_.get(), activated_.get(), dot_.get()};
  }
  std::vector<PlacedTensor*> all() const {
    std::vector<PlacedTensor*> tensors = outputs();
    tensors.insert(tensors.end(), {preact_.get(), grad_.get(), scale_.get()});
    return tensors;
  }

  void compare_row(int64_t row, Failures* failures) const {
    const Activation& a = c_.activation;
    const double scale = c_.scaled ? scale_->before(0, 0, row) : 1.0;
    double dot = 0;
    double dot_magnitude = 0;
    for (int64_t i = 0; i < c_.width; ++i) {
      const bool in_turn = a.layout == GateLayout::kInterleaved;
      const int64_t gate_col = a.gated() && in_turn ? 2 * i : i;
      const int64_t up_col = !a.gated() ? i : in_turn ? 2 * i + 1 : c_.width + i;
      const double gate = preact_->before(0, row, gate_col);
      const double up = a.gated() ? preact_->before(0, row, up_col) : 1.0;
      const double grad = grad_->before(0, row, i);
      const Slopes s = slopes_of(a, gate, up);
      // The largest term of any of the functions.
      const double reach = 1 + (std::isnan(gate) ? 0 : std::fabs(gate));
      const double size = reach * reach * (2 + (std::isnan(up) ? 0 : std::fabs(up)));
      compare(*out_, "out", row, i, s.value, size, failures);
      compare(*activated_, "activated", row, i, scale * s.value, std::fabs(scale) * size, failures);
      const double gradient = scale * grad;
      compare(*d_preact_, "d_preact", row, gate_col, gradient * s.d_gate,
              std::fabs(gradient) * size, failures);
      if (a.gated()) {
        compare(*d_preact_, "d_preact", row, up_col, gradient * s.d_up, std::fabs(gradient) * size,
                failures);
      }
      dot += s.value * grad;
      dot_magnitude += std::fabs(grad) * size;
    }
    compare(*dot_, "row_dot", 0, row, dot, dot_magnitude, failures);
  }

  void compare(const PlacedTensor& tensor, const char* what, int64_t row, int64_t col, double value,
               double magnitude, Failures* failures) const {
    const double got = tensor.after(0, row, col);
    // Results of a row of NaN have no digits to compare.
    if (std::isnan(value) && std::isnan(got)) return;
    const DType compute = f64_ ? DType::kF64 : DType::kF32;
    const verify::Expected expected{
        value, verify::rounding_bound(compute, kRoundings + (&tensor == dot_.get() ? c_.width : 0),
                                      magnitude)};
    if (verify::agrees(tensor.dtype(), expected, got) || failures->size() > 3) return;
    failures->push_back(text(what, "[", row, ", ", col, "] = ", got, ", expected ", value,
                             " within ", verify::tolerance_of(tensor.dtype(), expected), " (kind ",
                             static_cast<int>(c_.activation.kind), ", layout ",
                             static_cast<int>(c_.activation.layout), ", width ", c_.width, ")"));
  }

  const Subject& subject_;
  ActivationCase c_;
  Random random_;
  bool f64_ = false;
  std::unique_ptr<PlacedTensor> preact_, grad_, scale_, out_, d_preact_, activated_, dot_;
};

/// Every kind; those with a gate in both layouts.
std::vector<Activation> activations() {
  std::vector<Activation> all;
  for (const ActivationKind kind : kKinds) {
    const Activation a{.kind = kind};
    all.push_back(a);
    if (!a.gated()) continue;
    all.push_back({.kind = kind, .layout = GateLayout::kInterleaved});
  }
  all.push_back({.kind = ActivationKind::kClampedSwiglu,
                 .layout = GateLayout::kInterleaved,
                 .alpha = 0.7,
                 .limit = 2.5,
                 .up_offset = -0.25});
  return all;
}

}  // namespace

Failures every_kind_and_layout(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const Activation& activation : activations()) {
    for (const int64_t width : {1, 7, 8, 33, 64, 129}) {
      append(&failures,
             Rows(subject, types, {.activation = activation, .rows = 3, .width = width}).check());
    }
  }
  return failures;
}

Failures gradients(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const Activation& activation : activations()) {
    append(&failures, Rows(subject, types, {.activation = activation, .width = 65}).check());
    append(&failures,
           Rows(subject, types, {.activation = activation, .width = 48, .scaled = false}).check());
  }
  const Activation clamped{.kind = ActivationKind::kClampedSwiglu,
                           .layout = GateLayout::kInterleaved};
  append(&failures, Rows(subject, types, {.activation = clamped, .width = 2053}).check());
  append(&failures,
         Rows(subject, types,
              {.activation = {.kind = ActivationKind::kSwiglu}, .rows = 300, .width = 72})
             .check());
  return failures;
}

Failures gradients_in_place_have_the_same_bits(const Subject& subject, const DTypes& types) {
  if (types.lhs != types.out) return {};  // a place is of one type
  Failures failures;
  const auto check = [&](const ActivationCase& c) {
    Rows rows(subject, types, c);
    append(&failures, rows.check());
    append(&failures, rows.check_in_place());
  };
  for (const Activation& activation : activations()) {
    for (const int64_t width : {1, 33, 72}) check({.activation = activation, .width = width});
  }
  const Activation clamped{.kind = ActivationKind::kClampedSwiglu,
                           .layout = GateLayout::kInterleaved};
  check({.activation = clamped, .width = 2053});
  check({.activation = {.kind = ActivationKind::kSwiglu}, .rows = 40, .width = 4104});
  for (const Layout& layout : odd_layouts(Placement::kRows)) {
    check({.activation = clamped, .width = 40, .layout = layout});
  }
  return failures;
}

Failures any_strides(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const Layout& layout : odd_layouts(Placement::kRows)) {
    for (const GateLayout gate : {GateLayout::kConcatenated, GateLayout::kInterleaved}) {
      append(&failures, Rows(subject, types,
                             {.activation = {.kind = ActivationKind::kGegluErf, .layout = gate},
                              .width = 40,
                              .layout = layout})
                            .check());
    }
  }
  return failures;
}

Failures nan_stays_in_its_row(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const Activation& activation : activations()) {
    append(&failures,
           Rows(subject, types, {.activation = activation, .width = 37, .nan_row = 2}).check());
  }
  return failures;
}

Failures rows_are_batch_invariant(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const int64_t width : {200, 2100}) {
    const ActivationCase c{
        .activation = {.kind = ActivationKind::kSwiglu}, .rows = 1, .width = width};
    ActivationCase many = c;
    many.rows = width > 2000 ? 9 : 150;
    Rows alone(subject, types, c);
    Rows among(subject, types, many);
    append(&failures, alone.check());
    append(&failures, among.check());
    if (alone.bits_of(0) != among.bits_of(0)) {
      failures.push_back(
          text("row 0 of width ", width, " has other bits alone than among ", many.rows));
    }
  }
  return failures;
}

Failures empty_things(const Subject& subject, const DTypes& types) {
  Failures failures;
  const Activation swiglu{.kind = ActivationKind::kSwiglu};
  for (const auto& [rows, width] : {std::pair{0, 16}, {3, 0}, {0, 0}}) {
    append(&failures,
           Rows(subject, types, {.activation = swiglu, .rows = rows, .width = width}).check());
  }
  return failures;
}

}  // namespace cadre::contract::activate
