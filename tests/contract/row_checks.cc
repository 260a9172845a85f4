// Random routings and rows, laid out between guards, run on a subject, and compared with sums made
// here in double.
#include "tests/contract/row_checks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "core/text.h"
#include "tests/contract/routing.h"
#include "verify/index_matrix.h"
#include "verify/placed_tensor.h"
#include "verify/random.h"
#include "verify/tolerance.h"

namespace cadre::contract {
namespace {

using verify::IndexMatrix;
using verify::PlacedTensor;
using verify::Random;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void fill(IndexMatrix& matrix, const std::vector<int64_t>& values) {
  for (int64_t i = 0; i < matrix.rows() * matrix.cols(); ++i) {
    matrix.set(i / matrix.cols(), i % matrix.cols(), values[static_cast<size_t>(i)]);
  }
}

void compare(const IndexMatrix& matrix, const std::vector<int64_t>& expected,
             const std::string& what, Failures* failures) {
  for (int64_t i = 0; i < matrix.rows() * matrix.cols(); ++i) {
    const int64_t got = matrix.after(i / matrix.cols(), i % matrix.cols());
    if (got == expected[static_cast<size_t>(i)]) continue;
    failures->push_back(
        text(what, "[", i, "] = ", got, ", expected ", expected[static_cast<size_t>(i)]));
    return;
  }
  if (!matrix.untouched_elsewhere()) {
    failures->push_back(text(what, ": a byte outside its elements changed"));
  }
}

struct IndexForm {
  DType ids = DType::kI32;
  DType out = DType::kI32;
  IndexMatrix::Strides strides{1, 0};
};

/// Runs route twice and compares all of its results.
Failures check_route(const Subject& subject, const Routing& routing, const IndexForm& form = {}) {
  verify::Memory& memory = subject.memory;
  IndexMatrix ids(memory, form.ids, routing.tokens, routing.top_k, form.strides);
  IndexMatrix sizes(memory, form.out, routing.num_experts, 1, form.strides);
  IndexMatrix source(memory, form.out, routing.slots(), 1, form.strides);
  IndexMatrix slot(memory, form.out, routing.tokens, routing.top_k, form.strides);
  fill(ids, routing.ids);
  Failures failures;
  for (int run = 0; run < 2; ++run) {
    for (IndexMatrix* matrix : {&ids, &sizes, &source, &slot}) matrix->upload();
    Status status = cadre::route(subject.context, {.expert_ids = ids.view(),
                                                   .group_sizes = sizes.vector_view(),
                                                   .source_row = source.vector_view(),
                                                   .slot_row = slot.view()});
    if (status.ok()) status = memory.finish(subject.context);
    if (!status.ok()) return {status.message()};
    for (IndexMatrix* matrix : {&ids, &sizes, &source, &slot}) matrix->download();
    compare(sizes, routing.sizes, "group_sizes", &failures);
    compare(source, routing.source_row, "source_row", &failures);
    compare(slot, routing.slot_row, "slot_row", &failures);
    if (!ids.unchanged()) failures.emplace_back("expert_ids was written");
  }
  for (std::string& failure : failures) {
    failure = text(routing.tokens, " tokens, top_k ", routing.top_k, ", ", routing.num_experts,
                   " experts: ", failure);
  }
  return failures;
}

void append(Failures* all, Failures more) {
  all->insert(all->end(), std::make_move_iterator(more.begin()),
              std::make_move_iterator(more.end()));
}

/// A matrix of one layout with random numbers, or poison where it is to be written.
std::unique_ptr<PlacedTensor> matrix(const Subject& subject, DType dtype, int64_t rows,
                                     int64_t cols, Layout layout, Random& random) {
  layout.form = Placement::kRows;
  return std::make_unique<PlacedTensor>(subject.memory, subject.memory, dtype,
                                        std::vector<verify::MatrixShape>{{rows, cols}},
                                        verify::MatrixShape{rows, cols}, layout, random);
}

void randomize(PlacedTensor& tensor, Random& random) {
  const verify::MatrixShape shape = tensor.shapes()[0];
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t col = 0; col < shape.cols; ++col) {
      tensor.set(0, row, col, random.uniform(-2, 2));
    }
  }
}

void allow_all(PlacedTensor& tensor) {
  const verify::MatrixShape shape = tensor.shapes()[0];
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t col = 0; col < shape.cols; ++col) tensor.allow_change(0, row, col);
  }
}

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

constexpr int64_t kWidths[] = {1, 7, 8, 63, 64, 65, 127, 128, 129, 257, 520};

}  // namespace

const std::vector<DTypes>& row_types() {
  static const std::vector<DTypes> types = {
      {DType::kF64, DType::kF64, DType::kF64},   {DType::kF32, DType::kF32, DType::kF32},
      {DType::kBF16, DType::kF32, DType::kBF16}, {DType::kBF16, DType::kBF16, DType::kBF16},
      {DType::kF16, DType::kF16, DType::kF16},   {DType::kBF16, DType::kF32, DType::kF32},
      {DType::kF32, DType::kBF16, DType::kF16},
  };
  return types;
}

Failures route::sorts_slots_by_expert(const Subject& subject, const DTypes& /*types*/) {
  Random random(1);
  Failures failures;
  for (int64_t top_k : {1, 2, 3, 8, 16}) {
    for (int64_t num_experts : {1, 2, 8, 128, 257}) {
      for (int64_t tokens : {1, 5, 33, 128}) {
        append(&failures, check_route(subject, random_routing(random, tokens, top_k, num_experts)));
      }
    }
  }
  append(&failures, check_route(subject, random_routing(random, 2000, 8, 128)));
  append(&failures, check_route(subject, random_routing(random, 20000, 8, 7)));
  append(&failures, check_route(subject, random_routing(random, 300, 2, 4096)));
  append(&failures, check_route(subject, with_ids(700, 4, 16, 5)));  // all to one, often twice
  return failures;
}

Failures route::drops_ids_out_of_range(const Subject& subject, const DTypes& /*types*/) {
  Random random(2);
  Failures failures;
  for (double dropped : {0.1, 0.9}) {
    append(&failures, check_route(subject, random_routing(random, 77, 3, 9, dropped)));
    append(&failures, check_route(subject, random_routing(random, 1500, 8, 32, dropped)));
  }
  append(&failures, check_route(subject, with_ids(50, 2, 4, 4)));
  append(&failures, check_route(subject, with_ids(1200, 2, 4, -1)));
  append(&failures, check_route(subject, with_ids(9, 2, 4, INT32_MIN)));
  return failures;
}

Failures route::indices_of_every_type_and_stride(const Subject& subject, const DTypes& /*types*/) {
  Random random(3);
  Failures failures;
  const Routing routing = random_routing(random, 90, 4, 11, 0.2);
  Routing unsigned_ids = routing;
  for (int64_t& id : unsigned_ids.ids) id = std::abs(id);
  unsigned_ids.solve();
  for (DType out : {DType::kI32, DType::kI64}) {
    for (DType ids : {DType::kI8, DType::kI16, DType::kI32, DType::kI64}) {
      append(&failures, check_route(subject, routing, {ids, out, {2, 3}}));
    }
    for (DType ids : {DType::kU8, DType::kU16, DType::kU32, DType::kU64}) {
      append(&failures, check_route(subject, unsigned_ids, {ids, out, {1, 5}}));
    }
  }
  // An i64 id whose low half is an expert, and a u64 that would be negative as i64.
  append(&failures,
         check_route(subject, with_ids(5, 2, 4, (int64_t{1} << 32) + 1), {.ids = DType::kI64}));
  append(&failures, check_route(subject, with_ids(5, 2, 4, -1), {.ids = DType::kU64}));
  return failures;
}

Failures route::empty_things(const Subject& subject, const DTypes& /*types*/) {
  Random random(4);
  Failures failures;
  append(&failures, check_route(subject, random_routing(random, 0, 8, 5)));
  append(&failures, check_route(subject, random_routing(random, 6, 0, 5)));
  append(&failures, check_route(subject, random_routing(random, 6, 2, 0)));
  append(&failures, check_route(subject, random_routing(random, 0, 0, 0)));
  return failures;
}

namespace {

Failures check_permute(const Subject& subject, DType dtype, int64_t width, const Layout& layout) {
  Random random(6);
  constexpr int64_t kSources = 37;
  constexpr int64_t kRows = 101;
  const auto x = matrix(subject, dtype, kSources, width, layout, random);
  const auto out = matrix(subject, dtype, kRows, width, layout, random);
  randomize(*x, random);
  allow_all(*out);
  IndexMatrix source(subject.memory, DType::kI64, kRows, 1);
  std::vector<int64_t> from;
  for (int64_t i = 0; i < kRows; ++i) from.push_back(random.between(-1, kSources - 1));
  fill(source, from);
  x->upload();
  out->upload();
  source.upload();
  Status status = cadre::permute(
      subject.context,
      {.x = x->matrix_view(), .source_row = source.vector_view(), .out = out->matrix_view()});
  if (status.ok()) status = subject.memory.finish(subject.context);
  if (!status.ok()) return {status.message()};
  x->download();
  out->download();
  for (int64_t row = 0; row < kRows; ++row) {
    const int64_t source_of_row = from[static_cast<size_t>(row)];
    for (int64_t col = 0; col < width; ++col) {
      const double expected = source_of_row < 0 ? 0.0 : x->before(0, source_of_row, col);
      if (out->after(0, row, col) == expected) continue;
      return {text(name_of(dtype), " width ", width, ": out[", row, ", ", col,
                   "] = ", out->after(0, row, col), ", expected ", expected)};
    }
  }
  int64_t offset = 0;
  if (!x->unchanged() || !out->untouched_elsewhere(&offset)) return {"a byte outside out changed"};
  return {};
}

}  // namespace

Failures permute::copies_rows_by_index(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (int64_t width : kWidths) append(&failures, check_permute(subject, types.lhs, width, {}));
  append(&failures, check_permute(subject, DType::kI8, 64, {}));
  append(&failures, check_permute(subject, DType::kI8, 33, {}));
  append(&failures, check_permute(subject, DType::kI32, 33, {}));
  return failures;
}

Failures permute::any_strides(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const Layout& layout : odd_layouts(Placement::kRows)) {
    append(&failures, check_permute(subject, types.lhs, 24, layout));
  }
  return failures;
}

Failures combine::sums_weighted_rows(const Subject& subject, const DTypes& types) {
  Random random(7);
  Failures failures;
  for (int64_t width : kWidths) {
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
  for (int64_t width : kWidths) {
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
