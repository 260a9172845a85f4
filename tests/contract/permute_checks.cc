// Rows copied by random indices, compared bit for bit with where they came from.
#include "core/text.h"
#include "tests/contract/row_checks.h"
#include "tests/contract/row_operands.h"

namespace cadre::contract {
namespace {

using verify::IndexMatrix;
using verify::Random;

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
  for (int64_t width : kRowWidths) append(&failures, check_permute(subject, types.lhs, width, {}));
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

}  // namespace cadre::contract
