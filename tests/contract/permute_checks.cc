// Rows copied by random indices, compared bit for bit with where they came from.
#include <algorithm>
#include <optional>

#include "core/text.h"
#include "tests/contract/routing.h"
#include "tests/contract/row_checks.h"
#include "tests/contract/row_operands.h"

namespace cadre::contract {
namespace {

using verify::IndexMatrix;
using verify::Random;

/// The maps of a call: rows by index, with or without the rows of each token's slots.
struct Maps {
  int64_t sources;
  std::vector<int64_t> from;
  int64_t top_k = 0;  ///< 0: no slot_row
  std::vector<int64_t> slots{};
};

Maps random_indices() {
  Random random(6);
  Maps maps{.sources = 37, .from = {}};
  for (int64_t i = 0; i < 101; ++i) maps.from.push_back(random.between(-1, maps.sources - 1));
  return maps;
}

Failures check_permute(const Subject& subject, DType dtype, int64_t width, const Layout& layout,
                       const Maps& maps = random_indices()) {
  Random random(7);
  const auto rows = static_cast<int64_t>(maps.from.size());
  const auto x = matrix(subject, dtype, maps.sources, width, layout, random);
  const auto out = matrix(subject, dtype, rows, width, layout, random);
  randomize(*x, random);
  allow_all(*out);
  IndexMatrix source(subject.memory, DType::kI64, rows, 1);
  IndexMatrix slot(subject.memory, DType::kI32, maps.sources, maps.top_k);
  const std::vector<int64_t>& from = maps.from;
  fill(source, from);
  fill(slot, maps.slots);
  x->upload();
  out->upload();
  source.upload();
  slot.upload();
  Status status =
      cadre::permute(subject.context, {.x = x->matrix_view(),
                                       .source_row = source.vector_view(),
                                       .slot_row = maps.top_k > 0 ? slot.view() : TensorView{},
                                       .out = out->matrix_view()});
  if (status.ok()) status = subject.memory.finish(subject.context);
  if (!status.ok()) return {status.message()};
  x->download();
  out->download();
  for (int64_t row = 0; row < rows; ++row) {
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
  for (int64_t width : kRowWidths) append(&failures, check_permute(subject, types.lhs, width, {}));
  append(&failures, check_permute(subject, DType::kI8, 64, {}));
  append(&failures, check_permute(subject, DType::kI8, 33, {}));
  append(&failures, check_permute(subject, DType::kI32, 33, {}));
  return failures;
}

Failures permute::slots_change_nothing(const Subject& subject, const DTypes& types) {
  Random random(8);
  Failures failures;
  const auto check = [&](const Routing& routing, int64_t width, DType dtype) {
    append(&failures,
           check_permute(subject, dtype, width, {},
                         {routing.tokens, routing.source_row, routing.top_k, routing.slot_row}));
  };
  for (int64_t width : kRowWidths) {
    check(random_routing(random, 19, random.pick<int64_t>({1, 2, 8, 33}), 5, 0.2), width,
          types.lhs);
  }
  check(random_routing(random, 700, 8, 32), 264, types.lhs);
  check(random_routing(random, 40, 4, 6), 2056, types.lhs);
  check(random_routing(random, 40, 4, 6, 1.0), 64, types.lhs);
  check(random_routing(random, 40, 4, 6), 64, DType::kI8);
  // Maps that don't belong together: a row named by others, by nobody, and by one token twice.
  Routing wrong = random_routing(random, 60, 4, 6, 0.1);
  std::rotate(wrong.slot_row.begin(), wrong.slot_row.begin() + 3, wrong.slot_row.end());
  for (size_t i = 0; i < wrong.slot_row.size(); i += 5) wrong.slot_row[i] = wrong.slot_row[i / 2];
  check(wrong, 72, types.lhs);
  return failures;
}

Failures permute::any_strides(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const Layout& layout : odd_layouts(Placement::kRows)) {
    append(&failures, check_permute(subject, types.lhs, 24, layout));
  }
  return failures;
}

}  // namespace cadre::contract
