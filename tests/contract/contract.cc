// Types, sizes and layouts that the checks of all ops share.
#include "tests/contract/contract.h"

#include <iterator>
#include <numeric>

#include "core/text.h"
#include "plan/context_state.h"
#include "tests/support/sanitized.h"

namespace cadre::contract {

void append(Failures* all, Failures more) {
  all->insert(all->end(), std::make_move_iterator(more.begin()),
              std::make_move_iterator(more.end()));
}

std::string name_of_types(const DTypes& types) {
  return text(name_of(types.lhs), "_", name_of(types.rhs), "_", name_of(types.out));
}

const std::vector<DTypes>& product_types() {
  // A sanitizer looks for another kind of bug, which needs no more than one type of each size.
  static const std::vector<DTypes> few = {
      {DType::kF64, DType::kF64, DType::kF64},    {DType::kF32, DType::kF32, DType::kF32},
      {DType::kBF16, DType::kBF16, DType::kBF16}, {DType::kF16, DType::kBF16, DType::kF32},
      {DType::kI8, DType::kI8, DType::kI32},      {DType::kI8, DType::kBF16, DType::kBF16}};
  if (tests::kSanitized) return few;
  static const std::vector<DTypes> types = {
      {DType::kF64, DType::kF64, DType::kF64},    {DType::kF32, DType::kF32, DType::kF32},
      {DType::kBF16, DType::kBF16, DType::kBF16}, {DType::kF16, DType::kF16, DType::kF16},
      {DType::kBF16, DType::kBF16, DType::kF32},  {DType::kF16, DType::kF16, DType::kF32},
      {DType::kF32, DType::kF32, DType::kBF16},   {DType::kF64, DType::kF64, DType::kF16},
      {DType::kBF16, DType::kF32, DType::kF32},   {DType::kF16, DType::kBF16, DType::kF32},
      {DType::kF32, DType::kF64, DType::kF64},    {DType::kI8, DType::kI8, DType::kI32},
      {DType::kI8, DType::kI8, DType::kF32},      {DType::kI8, DType::kBF16, DType::kBF16},
      {DType::kF32, DType::kI8, DType::kF32},     {DType::kF16, DType::kI8, DType::kF16},
  };
  return types;
}

std::vector<DTypes> float_types() {
  std::vector<DTypes> found;
  for (const DTypes& types : product_types()) {
    if (is_float(types.lhs) && is_float(types.rhs)) found.push_back(types);
  }
  return found;
}

std::vector<DTypes> int8_types() {
  return {{DType::kI8, DType::kI8, DType::kI32}, {DType::kI8, DType::kI8, DType::kF32}};
}

const std::vector<DTypes>& bias_grad_types() {
  static const std::vector<DTypes> types = {
      {DType::kF64, DType::kF64, DType::kF64},    {DType::kF32, DType::kF32, DType::kF32},
      {DType::kBF16, DType::kBF16, DType::kBF16}, {DType::kF16, DType::kF16, DType::kF16},
      {DType::kBF16, DType::kF32, DType::kF32},
  };
  return types;
}

Failures check_all(const Subject& subject, const std::vector<Case>& cases) {
  Failures failures;
  size_t fitting = 0;
  for (Case test_case : cases) {
    if (subject.fit && !subject.fit(&test_case)) continue;
    ++fitting;
    test_case.kernel = subject.kernel;
    for (const std::string& failure : verify::check_case(subject, test_case)) {
      failures.push_back(text(to_string(test_case), ": ", failure));
    }
  }
  if (fitting == 0) failures.emplace_back("none of the cases fits the subject");
  return failures;
}

Failures check_refused(const Subject& subject, const std::vector<Case>& cases,
                       const std::string& reason) {
  Failures failures;
  for (const Case& test_case : cases) {
    const Failures found = verify::check_case(subject, test_case);
    if (found.size() == 1 && found[0].find("refused: ") == 0 &&
        found[0].find(reason) != std::string::npos) {
      continue;
    }
    failures.push_back(text(to_string(test_case), ": not refused with \"", reason, "\""));
    failures.insert(failures.end(), found.begin(), found.end());
  }
  return failures;
}

bool has_given_isa(const Subject& subject) { return !subject.context.state().isa.empty(); }

std::vector<int64_t> uneven_sizes() { return {5, 0, 1, 17, 0, 8}; }

Case with_sizes(Case test_case, std::vector<int64_t> sizes, int64_t tail) {
  test_case.m = std::accumulate(sizes.begin(), sizes.end(), tail);
  test_case.group_sizes = std::move(sizes);
  return test_case;
}

std::vector<Layout> odd_layouts(Placement form) {
  return {
      {.form = form, .row_padding = 5},
      {.form = form, .offset_elements = 1, .gap_elements = 3},
      {.form = form, .row_padding = 1, .col_stride = 3},
      {.form = form, .column_major = true},
      {.form = form, .row_padding = 3, .reverse_rows = true, .gap_elements = 2},
      {.form = form, .col_stride = 2, .reverse_cols = true, .offset_elements = 7},
  };
}

}  // namespace cadre::contract
