// Runs a Case and looks at all of its memory.
#include "verify/check_case.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "core/text.h"
#include "verify/case_call.h"
#include "verify/oracle.h"

namespace cadre::verify {
namespace {

/// Above this many multiplications the exact results of a sample stand for all.
constexpr double kFullCheckLimit = 4e6;
constexpr int64_t kSamples = 4096;

/// Ten digits tell any two f32 or int32 near each other apart.
std::string digits(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%.10g", value);
  return buffer;
}

/// Compares elements of one tensor, and remembers the worst.
class Comparison {
 public:
  Comparison(std::string_view name, DType dtype) : name_(name), dtype_(dtype) {}

  void element(const Expected& expected, double got, int64_t group, int64_t row, int64_t col) {
    ++checked_;
    const double how_bad = severity(dtype_, expected, got);
    if (how_bad == 0) return;
    ++wrong_;
    if (how_bad <= worst_) return;
    worst_ = how_bad;
    message_ = text(name_, " group ", group, " row ", row, " col ", col, ": expected ",
                    digits(expected.value), ", got ", digits(got), ", tolerance ",
                    tolerance_of(dtype_, expected));
  }

  void report(std::vector<std::string>* failures) const {
    if (wrong_ == 0) return;
    failures->push_back(text(message_, " (", wrong_, " of ", checked_, " elements wrong)"));
  }

 private:
  std::string_view name_;
  DType dtype_;
  double worst_ = 0;
  int64_t checked_ = 0;
  int64_t wrong_ = 0;
  std::string message_;
};

struct Coordinates {
  int64_t row;
  int64_t col;
};

/// All elements of a [rows, cols] matrix, or a sample: the corners, elements of the first and last
/// row, and random ones.
std::vector<Coordinates> elements_to_check(MatrixShape shape, int64_t samples, Random& random) {
  std::vector<Coordinates> elements;
  if (shape.rows == 0 || shape.cols == 0) return elements;
  if (samples < 0 || samples >= shape.rows * shape.cols) {
    for (int64_t row = 0; row < shape.rows; ++row) {
      for (int64_t col = 0; col < shape.cols; ++col) elements.push_back({row, col});
    }
    return elements;
  }
  for (int64_t row : {int64_t{0}, shape.rows - 1}) {
    for (int64_t col : {int64_t{0}, shape.cols - 1, random.between(0, shape.cols - 1)}) {
      elements.push_back({row, col});
    }
  }
  for (int64_t i = 0; i < samples; ++i) {
    elements.push_back({random.between(0, shape.rows - 1), random.between(0, shape.cols - 1)});
  }
  return elements;
}

/// One run of a Case.
class Run {
 public:
  Run(const Subject& subject, const Case& c) : subject_(subject), c_(c) {}

  std::vector<std::string> check() {
    std::optional<CaseData> made;
    subject_.memory.together([&] { made.emplace(make_data(c_, subject_.memory)); });
    CaseData& data = *made;
    allow_changes(&data);
    look_at_kernel(data);
    if (!run(data)) return failures_;
    if (c_.op == Op::kBiasGrad) {
      compare_bias_grad(data);
    } else {
      compare_product(data);
    }
    check_untouched(data);
    check_repeatable(data);
    return failures_;
  }

 private:
  void look_at_kernel(const CaseData& data) {
    const bool fp8 = is_fp8(c_.lhs) && is_fp8(c_.rhs);
    if (subject_.kernels.empty() && !fp8) return;
    std::string kernel;
    const Status status = kernel_of(subject_.context, c_, data, &kernel);
    if (!status.ok()) return;  // so is the call
    // Blocks of mx are widened to bf16 there, whose products are as good as those of bf16 operands.
    c_.tensor_core_fp8 = fp8 && c_.lhs_mode != ScaleMode::kMx && kernel.starts_with("sm90/");
    if (kernel.starts_with(subject_.kernels)) return;
    failures_.push_back(text("runs on ", kernel, ", expected ", subject_.kernels, "*"));
  }

  bool run(CaseData& data) {
    subject_.memory.together([&] { data.upload(); });
    Status status = call(subject_.context, c_, data);
    if (status.ok()) status = subject_.memory.finish(subject_.context);
    subject_.memory.together([&] { data.download(); });
    if (status.ok()) return true;
    failures_.push_back(text("refused: ", status.message()));
    for (const auto* result : {&data.out, &data.dbias_scale}) {
      if (*result && !(*result)->unchanged()) failures_.push_back("refused, but wrote a result");
    }
    return false;
  }

  bool rows_of_one() const { return c_.op == Op::kGmm && c_.out_layout.form == Placement::kRows; }

  MatrixShape result_shape(int64_t group) const {
    if (c_.op == Op::kGmm) return {c_.group_rows(group), c_.out_cols()};
    if (c_.op == Op::kTgmm) return {c_.k, c_.n};
    const GemmDims& dims = c_.dims[static_cast<size_t>(group)];
    return {dims.m, dims.n};
  }

  int64_t depth(int64_t group) const {
    if (c_.op == Op::kGmm) return c_.k;
    return c_.op == Op::kTgmm ? c_.group_rows(group) : c_.dims[static_cast<size_t>(group)].k;
  }

  bool zeroes_uncovered_rows() const { return c_.tail == Tail::kZero && !c_.has_beta(); }

  /// Rows that no local group covers.
  template <typename Visit>
  void for_uncovered_rows(Visit visit) const {
    for (int64_t row = 0; row < c_.local_begin(); ++row) visit(row);
    for (int64_t row = c_.local_end(); row < c_.m; ++row) visit(row);
  }

  void allow_changes(CaseData* data) const {
    const auto allow_matrix = [](PlacedTensor& tensor, int64_t matrix, int64_t begin,
                                 MatrixShape shape) {
      for (int64_t row = 0; row < shape.rows; ++row) {
        for (int64_t col = 0; col < shape.cols; ++col) {
          tensor.allow_change(matrix, begin + row, col);
        }
      }
    };
    if (data->out) {
      for (int64_t i = 0; i < c_.local_groups(); ++i) {
        const MatrixShape shape = c_.op == Op::kBiasGrad ? MatrixShape{1, c_.n} : result_shape(i);
        allow_matrix(*data->out, rows_of_one() ? 0 : i, rows_of_one() ? c_.group_begin(i) : 0,
                     shape);
      }
    }
    if (rows_of_one() && zeroes_uncovered_rows()) {
      for_uncovered_rows([&](int64_t row) {
        allow_matrix(*data->out, 0, row, {1, c_.out_cols()});
      });
    }
    if (data->preactivation) allow_matrix(*data->preactivation, 0, 0, {c_.m, c_.n});
    if (data->dbias_scale) allow_matrix(*data->dbias_scale, 0, 0, {1, c_.m});
  }

  void compare_product(const CaseData& data) {
    double work = 0;
    double elements = 0;
    for (int64_t i = 0; i < c_.local_groups(); ++i) {
      const MatrixShape shape = result_shape(i);
      const auto size = static_cast<double>(shape.rows) * static_cast<double>(shape.cols);
      elements += size;
      work += size * static_cast<double>(depth(i));
    }
    Random random(c_.seed + 1);
    Comparison comparison("out", c_.out);
    for (int64_t i = 0; i < c_.local_groups(); ++i) {
      const MatrixShape shape = result_shape(i);
      const auto size = static_cast<double>(shape.rows) * static_cast<double>(shape.cols);
      const int64_t samples =
          work <= kFullCheckLimit
              ? -1
              : static_cast<int64_t>(std::ceil(static_cast<double>(kSamples) * size / elements));
      const int64_t matrix = rows_of_one() ? 0 : i;
      const int64_t begin = rows_of_one() ? c_.group_begin(i) : 0;
      for (const auto& [row, col] : elements_to_check(shape, samples, random)) {
        comparison.element(expected_result(data, i, row, col),
                           data.out->after(matrix, begin + row, col), i, row, col);
      }
    }
    comparison.report(&failures_);
    if (data.preactivation) compare_preactivation(data);
    if (!rows_of_one() || !zeroes_uncovered_rows()) return;
    Comparison uncovered("out, rows outside the local groups, as", c_.out);
    for_uncovered_rows([&](int64_t row) {
      for (int64_t col = 0; col < c_.out_cols(); ++col) {
        uncovered.element({}, data.out->after(0, row, col), -1, row, col);
      }
    });
    uncovered.report(&failures_);
  }

  Expected expected_result(const CaseData& data, int64_t group, int64_t row, int64_t col) const {
    return c_.activation.kind == ActivationKind::kNone
               ? expected_product(c_, data, group, row, col)
               : expected_activated(c_, data, group, row, col);
  }

  void compare_preactivation(const CaseData& data) {
    Comparison comparison("preactivation", c_.out);
    Random random(c_.seed + 2);
    for (int64_t i = 0; i < c_.local_groups(); ++i) {
      for (const auto& [row, col] :
           elements_to_check({c_.group_rows(i), c_.n}, kSamples / 8, random)) {
        comparison.element(expected_product(c_, data, i, row, col),
                           data.preactivation->after(0, c_.group_begin(i) + row, col), i, row, col);
      }
    }
    for_uncovered_rows([&](int64_t row) {
      for (int64_t col = 0; col < c_.n; ++col) {
        comparison.element({}, data.preactivation->after(0, row, col), -1, row, col);
      }
    });
    comparison.report(&failures_);
  }

  void compare_bias_grad(const CaseData& data) {
    Comparison dbias("dbias", c_.out);
    Comparison scale("dbias_scale", c_.scale_dtype);
    for (int64_t i = 0; i < c_.local_groups(); ++i) {
      for (int64_t col = 0; col < c_.n && data.out; ++col) {
        dbias.element(expected_dbias(c_, data, i, col), data.out->after(i, 0, col), i, 0, col);
      }
      for (int64_t row = 0; row < c_.group_rows(i) && data.dbias_scale; ++row) {
        scale.element(expected_dbias_scale(c_, data, i, row),
                      data.dbias_scale->after(0, 0, c_.group_begin(i) + row), i, row, 0);
      }
    }
    if (data.dbias_scale) {
      for_uncovered_rows(
          [&](int64_t row) { scale.element({}, data.dbias_scale->after(0, 0, row), -1, row, 0); });
    }
    dbias.report(&failures_);
    scale.report(&failures_);
  }

  void check_untouched(const CaseData& data) {
    int64_t offset = 0;
    for (const auto& [name, tensor] :
         {std::pair{"out", &data.out}, std::pair{"preactivation", &data.preactivation},
          std::pair{"dbias_scale", &data.dbias_scale}}) {
      if (*tensor && !(*tensor)->untouched_elsewhere(&offset)) {
        failures_.push_back(
            text(name, ": byte ", offset,
                 " changed, and belongs to a kept row, to padding or to a guard zone"));
      }
    }
    for (const std::string& change : data.changed_inputs()) failures_.push_back(change);
  }

  /// Everything as it was before, and once more.
  void check_repeatable(CaseData& data) {
    const std::vector<std::byte> out = data.out ? data.out->all_bytes_after() : no_bytes();
    const std::vector<std::byte> scale =
        data.dbias_scale ? data.dbias_scale->all_bytes_after() : no_bytes();
    if (!run(data)) return;
    if (data.out && data.out->all_bytes_after() != out) {
      failures_.push_back("out: a second run gave other bits");
    }
    if (data.dbias_scale && data.dbias_scale->all_bytes_after() != scale) {
      failures_.push_back("dbias_scale: a second run gave other bits");
    }
  }

  static std::vector<std::byte> no_bytes() { return {}; }

  const Subject& subject_;
  Case c_;
  std::vector<std::string> failures_;
};

}  // namespace

std::vector<std::string> check_case(const Subject& subject, const Case& test_case) {
  return Run(subject, test_case).check();
}

}  // namespace cadre::verify
