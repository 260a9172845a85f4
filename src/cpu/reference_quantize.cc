// quantize, dequantize and amax as their definitions: every block of scales is looked at alone.
#include <algorithm>
#include <cmath>

#include "core/activation_math.h"
#include "core/fp8_scale.h"
#include "cpu/quantized_groups.h"
#include "cpu/reference_rows.h"
#include "cpu/row_indices.h"

namespace cadre::cpu {
namespace {

/// Element [row, col] of what is quantised, in f32. `row` counts through all groups.
float source_value(const QuantizeArgs& args, const MatrixRef& group, int64_t group_row, int64_t row,
                   int64_t col, int64_t width) {
  const int64_t from = args.source_row.given() ? index_at(args.source_row, row) : row;
  if (from < 0) return 0;
  const auto value_of = [&](int64_t column) {
    return args.source_row.given()
               ? value_at(args.x, from, column)
               : load_as_double(element_at(group, group_row, column), group.dtype, 0);
  };
  double value = 0;
  if (args.activation.kind == ActivationKind::kNone) {
    value = value_of(col);
  } else {
    const GateColumns columns = gate_columns(args.activation, col, width);
    value = with_activation_kind(args.activation.kind, [&](auto kind) {
      return activate_with<decltype(kind)::value>(value_of(columns.gate), value_of(columns.up),
                                                  ClampParameters<double>(args.activation))
          .value;
    });
  }
  if (args.row_scale.given()) value *= number_at(args.row_scale, row);
  return static_cast<float>(value);
}

struct Region {
  int64_t row, end_row;
  int64_t col, end_col;
};

/// Calls visit(region) for every block of a group's scales; one of no elements where a scale has
/// none.
template <typename Visit>
void each_region(const GroupScales& scales, int64_t rows, int64_t width, const Visit& visit) {
  const auto end = [](int64_t begin, int64_t block, int64_t size) {
    return size - begin > block ? begin + block : size;
  };
  const bool all_rows = scales.row_block > kBandRows;
  const bool all_cols = scales.col_block > kBandRows;
  for (int64_t row = 0; row < rows || (all_rows && row == 0);) {
    const int64_t end_row = end(row, scales.row_block, rows);
    for (int64_t col = 0; col < width || (all_cols && col == 0);) {
      const int64_t end_col = end(col, scales.col_block, width);
      visit(Region{row, end_row, col, end_col});
      if (all_cols) break;
      col = end_col;
    }
    if (all_rows) break;
    row = end_row;
  }
}

}  // namespace

void reference_quantize(const plan::Problem& problem, const QuantizeArgs& args) {
  const QuantizedGroups groups(problem, args.x, args.group_sizes);
  const auto quantize_copy = [&](const ScaledTensor& tensor, const plan::ScaleForm& form,
                                 bool transposed) {
    if (!tensor.given()) return;
    const bool e4m3 = tensor.dtype == DType::kE4M3;
    const float largest = e4m3 ? E4M3::kMax : E5M2::kMax;
    const ScaleRule rule{static_cast<float>(args.amax_floor),
                         args.power_of_two || tensor.scales.values.dtype == DType::kE8M0};
    const auto value_at = [&](int64_t group, int64_t row, int64_t col) {
      return source_value(args, groups.plain(args.x, group), row, groups.begin(group) + row, col,
                          problem.n);
    };
    const auto amax_of = [&](int64_t group, const Region& region) {
      float amax = 0;
      for (int64_t row = region.row; row < region.end_row; ++row) {
        for (int64_t col = region.col; col < region.end_col; ++col) {
          amax = std::max(amax, finite_magnitude(value_at(group, row, col)));
        }
      }
      return amax;
    };
    const auto codes_of = [&](int64_t group) {
      return transposed ? groups.in_columns(tensor, form, group)
                        : groups.in_rows(tensor, form, group);
    };
    const bool shared = form.mode == ScaleMode::kTensor && tensor.scales.values.shape[0] == 1;
    float shared_amax = 0;
    for (int64_t group = 0; shared && group < groups.count(); ++group) {
      const float amax = amax_of(group, {0, groups.rows(group), 0, problem.n});
      shared_amax = std::max(shared_amax, amax);
    }
    if (shared) codes_of(0).scales.set(0, 0, scale_of(shared_amax, largest, rule));
    for (int64_t group = 0; group < groups.count(); ++group) {
      const GroupCodes copy = codes_of(group);
      const int64_t rows = groups.rows(group);
      each_region(copy.scales, rows, problem.n, [&](const Region& region) {
        const float amax = shared ? shared_amax : amax_of(group, region);
        const float scale = scale_of(amax, largest, rule);
        copy.scales.set(region.row, region.col, scale);
        for (int64_t row = region.row; row < region.end_row; ++row) {
          for (int64_t col = region.col; col < region.end_col; ++col) {
            const float value = value_at(group, row, col);
            *static_cast<uint8_t*>(element_at(copy.codes, row, col)) =
                e4m3 ? code_of<E4M3>(value, 1 / scale) : code_of<E5M2>(value, 1 / scale);
          }
        }
      });
      for (int64_t row = rows; copy.pads && row % kColumnAlignment != 0; ++row) {
        for (int64_t col = 0; col < problem.n; ++col) {
          *static_cast<uint8_t*>(element_at(copy.codes, row, col)) = 0;
        }
      }
    }
    if (transposed) return;
    const GroupCodes tail = codes_of(groups.count());
    const int64_t tail_rows = problem.m - groups.tail_begin();
    each_region(tail.scales, tail_rows, problem.n, [&](const Region& region) {
      if (form.mode != ScaleMode::kTensor) tail.scales.set(region.row, region.col, 1);
      for (int64_t row = region.row; row < region.end_row; ++row) {
        for (int64_t col = region.col; col < region.end_col; ++col) {
          *static_cast<uint8_t*>(element_at(tail.codes, row, col)) = 0;
        }
      }
    });
  };
  quantize_copy(args.rows, problem.lhs_scales, false);
  quantize_copy(args.columns, problem.rhs_scales, true);
}

void reference_dequantize(const plan::Problem& problem, const DequantizeArgs& args) {
  const QuantizedGroups groups(problem, args.x, args.group_sizes);
  for (int64_t group = 0; group < groups.count(); ++group) {
    const GroupCodes copy = args.x.columns ? groups.in_columns(args.x, problem.lhs_scales, group)
                                           : groups.in_rows(args.x, problem.lhs_scales, group);
    const MatrixRef out = groups.plain(args.out, group);
    for (int64_t row = 0; row < groups.rows(group); ++row) {
      for (int64_t col = 0; col < problem.n; ++col) {
        const double code = load_as_double(element_at(copy.codes, row, col), args.x.dtype, 0);
        const float value = static_cast<float>(code) * copy.scales.at(row, col);
        store_rounded(element_at(out, row, col), out.dtype, 0, static_cast<double>(value));
      }
    }
  }
  for (int64_t row = groups.tail_begin(); row < problem.m; ++row) {
    for (int64_t col = 0; col < problem.n; ++col) set_value(args.out, row, col, 0);
  }
}

void reference_amax(const plan::Problem& problem, const AmaxArgs& args) {
  const QuantizedGroups groups(problem, args.x, args.group_sizes);
  const ScaledTensor out(args.x, Scales(args.mode, args.out));
  const QuantizeArgs source{.x = args.x};
  const bool shared = args.mode == ScaleMode::kTensor && args.out.shape[0] == 1;
  float largest = 0;
  for (int64_t group = 0; group <= groups.count(); ++group) {
    const bool tail = group == groups.count();
    if (tail && args.mode == ScaleMode::kTensor) break;
    const GroupCodes amaxes = groups.in_rows(out, problem.lhs_scales, group);
    const int64_t rows = tail ? problem.m - groups.tail_begin() : groups.rows(group);
    each_region(amaxes.scales, rows, problem.n, [&](const Region& region) {
      float amax = 0;
      for (int64_t row = region.row; !tail && row < region.end_row; ++row) {
        for (int64_t col = region.col; col < region.end_col; ++col) {
          const float value =
              source_value(source, groups.plain(args.x, group), row, 0, col, problem.n);
          amax = std::max(amax, finite_magnitude(value));
        }
      }
      largest = std::max(largest, amax);
      if (!shared) amaxes.scales.set(region.row, region.col, amax);
    });
  }
  if (shared) groups.in_rows(out, problem.lhs_scales, 0).scales.set(0, 0, largest);
}

}  // namespace cadre::cpu
