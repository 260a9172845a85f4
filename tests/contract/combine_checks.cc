// combine and combine_grad on random routings and rows, compared with sums made here in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "core/text.h"
#include "tests/contract/routing.h"
#include "tests/contract/row_checks.h"
#include "tests/contract/row_operands.h"
#include "verify/tolerance.h"

namespace cadre::contract {
namespace {

using verify::IndexMatrix;
using verify::PlacedTensor;
using verify::Random;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// The operands of combine and combine_grad, and one call of each.
struct RowCase {
  int64_t width = 64;
  Layout layout{};
  bool weighted = true;
  bool shared = false;
  bool residual = false;
  bool nan_in_unused_rows = false;
  bool ones = false;  ///< no dout in combine_grad
  DType index = DType::kI32;
};

class Rows {
 public:
  Rows(const Subject& subject, const DTypes& types, const Routing& routing, const RowCase& c,
       uint64_t seed = 5)
      : subject_(subject), types_(types), routing_(routing), c_(c), random_(seed) {
    const int64_t t = routing.tokens;
    y_ = matrix(subject, types.lhs, routing.slots(), c.width, c.layout, random_);
    weights_ = matrix(subject, types.rhs, t, routing.top_k, c.layout, random_);
    shared_ = matrix(subject, types.lhs, t, c.width, c.layout, random_);
    residual_ = matrix(subject, types.out, t, c.width, c.layout, random_);
    out_ = matrix(subject, types.out, t, c.width, c.layout, random_);
    dout_ = matrix(subject, types.lhs, t, c.width, c.layout, random_);
    dy_ = matrix(subject, types.out, routing.slots(), c.width, c.layout, random_);
    dweights_ = matrix(subject, types.out, t, routing.top_k, c.layout, random_);
    slot_ = std::make_unique<IndexMatrix>(subject.memory, c.index, t, routing.top_k);
    source_ = std::make_unique<IndexMatrix>(subject.memory, c.index, routing.slots(), 1);
    for (PlacedTensor* tensor : inputs()) randomize(*tensor, random_);
    for (PlacedTensor* tensor : {out_.get(), dy_.get(), dweights_.get()}) allow_all(*tensor);
    fill(*slot_, routing.slot_row);
    fill(*source_, routing.source_row);
    if (c.nan_in_unused_rows) poison_unused();
  }

  Failures check_combine() {
    upload();
    const Status status = finish(cadre::combine(subject_.context, combine_args()));
    if (!status.ok()) return {status.message()};
    Failures failures;
    for (int64_t t = 0; t < routing_.tokens; ++t) {
      for (int64_t col = 0; col < c_.width; ++col) {
        verify::Expected expected = sum_of(t, col);
        compare(*out_, "out", t, col, expected, &failures);
      }
    }
    check_bytes(*out_, "out", &failures);
    for (const PlacedTensor* input : inputs()) {
      if (!input->unchanged()) failures.emplace_back("an input was written");
    }
    return failures;
  }

  Failures check_gradients() {
    upload();
    const Status status = finish(cadre::combine_grad(subject_.context, grad_args()));
    if (!status.ok()) return {status.message()};
    Failures failures;
    for (int64_t row = 0; row < routing_.slots(); ++row) {
      const int64_t slot = slot_of(row);
      for (int64_t col = 0; col < c_.width; ++col) {
        verify::Expected expected;
        if (slot >= 0) {
          const int64_t t = slot / routing_.top_k;
          expected.value = weight(slot) * dout(t, col);
          expected.bound = verify::rounding_bound(compute(), 1, std::fabs(expected.value));
        }
        compare(*dy_, "dy", row, col, expected, &failures);
      }
    }
    for (int64_t slot = 0; slot < routing_.slots(); ++slot) {
      compare(*dweights_, "dweights", slot / routing_.top_k, slot % routing_.top_k, dot_of(slot),
              &failures);
    }
    check_bytes(*dy_, "dy", &failures);
    check_bytes(*dweights_, "dweights", &failures);
    return failures;
  }

  /// Bytes of a token's result.
  std::vector<std::byte> bits_of(int64_t t) {
    std::vector<std::byte> bits;
    for (int64_t col = 0; col < c_.width; ++col) {
      const std::vector<std::byte> one = out_->bytes_after(0, t, col);
      bits.insert(bits.end(), one.begin(), one.end());
    }
    return bits;
  }

  /// Takes over what belongs to a token of another set of rows.
  void copy_token(const Rows& from, int64_t there, int64_t here) {
    for (int64_t j = 0; j < routing_.top_k; ++j) {
      weights_->set(0, here, j, from.weights_->before(0, there, j));
      const int64_t row = routing_.slot_row[static_cast<size_t>(here * routing_.top_k + j)];
      const int64_t row_there =
          from.routing_.slot_row[static_cast<size_t>(there * routing_.top_k + j)];
      for (int64_t col = 0; col < c_.width && row >= 0; ++col) {
        y_->set(0, row, col, from.y_->before(0, row_there, col));
      }
    }
  }

 private:
  std::vector<PlacedTensor*> inputs() const {
    return {y_.get(), weights_.get(), shared_.get(), residual_.get(), dout_.get()};
  }

  void poison_unused() {
    for (int64_t row = 0; row < routing_.slots(); ++row) {
      if (slot_of(row) >= 0) continue;
      for (int64_t col = 0; col < c_.width; ++col) y_->set(0, row, col, kNan);
    }
    for (int64_t slot = 0; slot < routing_.slots(); ++slot) {
      if (routing_.slot_row[static_cast<size_t>(slot)] >= 0) continue;
      weights_->set(0, slot / routing_.top_k, slot % routing_.top_k, kNan);
    }
  }

  DType compute() const {
    const bool f64 =
        types_.lhs == DType::kF64 || types_.rhs == DType::kF64 || types_.out == DType::kF64;
    return f64 ? DType::kF64 : DType::kF32;
  }

  int64_t slot_of(int64_t row) const {
    const auto found = std::find(routing_.slot_row.begin(), routing_.slot_row.end(), row);
    return found == routing_.slot_row.end() ? -1 : found - routing_.slot_row.begin();
  }

  double dout(int64_t t, int64_t col) const { return c_.ones ? 1.0 : dout_->before(0, t, col); }

  double weight(int64_t slot) const {
    return c_.weighted ? weights_->before(0, slot / routing_.top_k, slot % routing_.top_k) : 1.0;
  }

  verify::Expected sum_of(int64_t t, int64_t col) const {
    verify::Expected expected;
    double magnitude = 0;
    const auto add = [&](double term) {
      expected.value += term;
      magnitude += std::fabs(term);
    };
    for (int64_t j = 0; j < routing_.top_k; ++j) {
      const int64_t slot = t * routing_.top_k + j;
      const int64_t row = routing_.slot_row[static_cast<size_t>(slot)];
      if (row >= 0) add(weight(slot) * y_->before(0, row, col));
    }
    if (c_.shared) add(shared_->before(0, t, col));
    if (c_.residual) add(residual_->before(0, t, col));
    expected.bound = verify::rounding_bound(compute(), routing_.top_k + 3, magnitude);
    return expected;
  }

  verify::Expected dot_of(int64_t slot) const {
    verify::Expected expected;
    double magnitude = 0;
    const int64_t row = routing_.slot_row[static_cast<size_t>(slot)];
    for (int64_t col = 0; col < c_.width && row >= 0; ++col) {
      const double term = dout(slot / routing_.top_k, col) * y_->before(0, row, col);
      expected.value += term;
      magnitude += std::fabs(term);
    }
    expected.bound = verify::rounding_bound(compute(), c_.width + 1, magnitude);
    return expected;
  }

  CombineArgs combine_args() const {
    CombineArgs args{.y = y_->matrix_view(), .slot_row = slot_->view(), .out = out_->matrix_view()};
    if (c_.weighted) args.weights = weights_->matrix_view();
    if (c_.shared) args.shared = shared_->matrix_view();
    if (c_.residual) args.residual = residual_->matrix_view();
    return args;
  }

  CombineGradArgs grad_args() const {
    CombineGradArgs args{.dout = dout_->matrix_view(),
                         .slot_row = slot_->view(),
                         .source_row = source_->vector_view(),
                         .y = y_->matrix_view(),
                         .dy = dy_->matrix_view(),
                         .dweights = dweights_->matrix_view()};
    if (c_.weighted) args.weights = weights_->matrix_view();
    if (c_.ones) args.dout = {};
    return args;
  }

  void upload() {
    for (PlacedTensor* tensor : inputs()) tensor->upload();
    for (PlacedTensor* tensor : {out_.get(), dy_.get(), dweights_.get()}) tensor->upload();
    slot_->upload();
    source_->upload();
  }

  Status finish(const Status& called) {
    if (!called.ok()) return called;
    if (Status status = subject_.memory.finish(subject_.context); !status.ok()) return status;
    for (PlacedTensor* tensor : inputs()) tensor->download();
    for (PlacedTensor* tensor : {out_.get(), dy_.get(), dweights_.get()}) tensor->download();
    return {};
  }

  void compare(const PlacedTensor& tensor, const char* what, int64_t row, int64_t col,
               const verify::Expected& expected, Failures* failures) const {
    const double got = tensor.after(0, row, col);
    if (verify::agrees(tensor.dtype(), expected, got) || failures->size() > 3) return;
    failures->push_back(text(what, "[", row, ", ", col, "] = ", got, ", expected ", expected.value,
                             " within ", verify::tolerance_of(tensor.dtype(), expected), " (width ",
                             c_.width, ", top_k ", routing_.top_k, ")"));
  }

  static void check_bytes(const PlacedTensor& tensor, const char* what, Failures* failures) {
    int64_t offset = 0;
    if (!tensor.untouched_elsewhere(&offset)) {
      failures->push_back(text(what, ": byte ", offset, " outside its elements changed"));
    }
  }

  const Subject& subject_;
  DTypes types_;
  const Routing& routing_;
  RowCase c_;
  Random random_;
  std::unique_ptr<PlacedTensor> y_, weights_, shared_, residual_, out_, dout_, dy_, dweights_;
  std::unique_ptr<IndexMatrix> slot_, source_;
};

}  // namespace

Failures combine::sums_weighted_rows(const Subject& subject, const DTypes& types) {
  Random random(7);
  Failures failures;
  for (int64_t width : kRowWidths) {
    const Routing routing = random_routing(random, 19, random.pick<int64_t>({1, 2, 8, 9, 16}), 5);
    append(&failures, Rows(subject, types, routing, {.width = width}).check_combine());
    append(&failures, Rows(subject, types, routing,
                           {.width = width, .weighted = false, .shared = true, .residual = true})
                          .check_combine());
  }
  const Routing routing = random_routing(random, 300, 8, 32);
  append(&failures,
         Rows(subject, types, routing, {.width = 96, .shared = true, .index = DType::kI64})
             .check_combine());
  return failures;
}

Failures combine::long_rows_and_many_tokens(const Subject& subject, const DTypes& types) {
  Random random(13);
  Failures failures;
  // More tokens than a GPU has warps: each of them adds the rows of several tokens.
  const Routing many = random_routing(random, 6000, 3, 16, 0.05);
  append(&failures, Rows(subject, types, many, {.width = 16}).check_combine());
  append(&failures, Rows(subject, types, many, {.width = 16}).check_gradients());
  for (int64_t top_k : {1, 7, 40}) {
    const Routing routing = random_routing(random, 9, top_k, 5, 0.1);
    append(&failures,
           Rows(subject, types, routing, {.width = 2056, .residual = true}).check_combine());
    append(&failures, Rows(subject, types, routing, {.width = 2056}).check_gradients());
  }
  return failures;
}

Failures combine::dropped_slots_are_not_read(const Subject& subject, const DTypes& types) {
  Random random(8);
  Failures failures;
  for (double dropped : {0.3, 1.0}) {
    const Routing routing = random_routing(random, 40, 4, 6, dropped);
    const RowCase c{.width = 72, .nan_in_unused_rows = true};
    append(&failures, Rows(subject, types, routing, c).check_combine());
    append(&failures, Rows(subject, types, routing, c).check_gradients());
  }
  return failures;
}

Failures combine::any_strides(const Subject& subject, const DTypes& types) {
  Random random(9);
  Failures failures;
  const Routing routing = random_routing(random, 23, 3, 4, 0.1);
  for (const Layout& layout : odd_layouts(Placement::kRows)) {
    const RowCase c{.width = 40, .layout = layout, .shared = true, .residual = true};
    append(&failures, Rows(subject, types, routing, c).check_combine());
    append(&failures, Rows(subject, types, routing, c).check_gradients());
  }
  return failures;
}

Failures combine::tokens_are_batch_invariant(const Subject& subject, const DTypes& types) {
  Random random(10);
  Failures failures;
  const Routing many = random_routing(random, 200, 8, 16);
  const Routing one = random_routing(random, 1, 8, 3);
  const RowCase c{.width = 264};
  Rows all(subject, types, many, c);
  append(&failures, all.check_combine());
  for (int64_t t : {0, 57, 199}) {
    Rows alone(subject, types, one, c, 99);
    alone.copy_token(all, t, 0);
    append(&failures, alone.check_combine());
    if (alone.bits_of(0) != all.bits_of(t)) {
      failures.push_back(text("token ", t, " has other bits alone than among 200"));
    }
  }
  return failures;
}

Failures combine::gradients(const Subject& subject, const DTypes& types) {
  Random random(11);
  Failures failures;
  for (int64_t width : kRowWidths) {
    const Routing routing =
        random_routing(random, 21, random.pick<int64_t>({1, 2, 8, 9, 33}), 5, 0.1);
    append(&failures, Rows(subject, types, routing, {.width = width}).check_gradients());
    append(&failures,
           Rows(subject, types, routing, {.width = width, .weighted = false}).check_gradients());
    append(&failures,
           Rows(subject, types, routing, {.width = width, .ones = true}).check_gradients());
  }
  return failures;
}

Failures combine::empty_things(const Subject& subject, const DTypes& types) {
  Random random(12);
  Failures failures;
  for (const Routing& routing : {random_routing(random, 0, 4, 3), random_routing(random, 3, 0, 3),
                                 random_routing(random, 3, 2, 0)}) {
    for (int64_t width : {0, 5}) {
      const RowCase c{.width = width, .residual = true};
      append(&failures, Rows(subject, types, routing, c).check_combine());
      append(&failures, Rows(subject, types, routing, c).check_gradients());
    }
  }
  return failures;
}

}  // namespace cadre::contract
