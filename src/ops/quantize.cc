// quantize, dequantize and amax: check, build the Problem, hand over to a backend.
#include "cadre/quantize.h"

#include <limits>
#include <string>
#include <vector>

#include "ops/activation_check.h"
#include "ops/dispatch.h"
#include "ops/guarded.h"
#include "ops/row_dispatch.h"
#include "ops/scaled_operand.h"

namespace cadre {
namespace {

using ops::Checker;
using ops::NamedView;
using ops::ScaledKind;
using ops::ScaledOperand;

/// What the checks find out about the operands: either rows [m, k] in groups, or weights [g, n, k],
/// whose matrices are groups of n rows.
struct Shape {
  bool weights = false;
  int64_t m = 0;  ///< rows in all
  int64_t k = 0;
  int64_t num_groups = 0;
  int64_t group_rows = 0;               ///< of weights
  std::vector<int64_t> host_offsets{};  ///< of rows; empty where the sizes lie on a device
};

bool given(const GroupSizes& sizes) { return sizes.data != nullptr || sizes.count != 0; }

std::string shape_text(const TensorView& view) {
  std::string list;
  for (size_t i = 0; i < static_cast<size_t>(view.rank); ++i) {
    list += text(i == 0 ? "[" : ", ", view.shape[i]);
  }
  return list + "]";
}

/// f32, bf16 or f16: what FP8 is made of and turned into.
void check_plain_dtype(Checker& checker, std::string_view argument, DType dtype) {
  const bool known = dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
  checker.expect(known, joined(argument, ".dtype"), name_of(dtype), "f32, bf16 or f16");
}

/// Rank 2 or 3, which decides between rows and weights.
void check_data(Checker& checker, NamedView data, plan::Problem* problem, Shape* shape) {
  shape->weights = data.view.rank == 3;
  checker.view(data.argument, data.view, shape->weights ? 3 : 2);
  if (!checker.ok()) return;
  problem->device = data.view.device;
  problem->lhs = ops::layout_of(data.view);
}

/// Sizes of rows, and their sums where they lie on the host; weights have none.
void check_groups(Checker& checker, const GroupSizes& sizes, plan::Problem* problem, Shape* shape) {
  if (!checker.ok()) return;
  problem->m = shape->m;
  problem->n = shape->k;
  if (shape->weights) {
    checker.expect(!given(sizes), "group_sizes", "given", "none because x is [g, n, k]");
  } else if (given(sizes)) {
    check_sizes(checker, sizes, {}, Tail::kZero, problem, &shape->host_offsets);
    shape->num_groups = sizes.count;
  } else {
    shape->num_groups = 1;
    shape->host_offsets = {0, shape->m};
  }
  problem->num_groups = shape->num_groups;
  problem->num_local_groups = shape->num_groups;
}

/// A view of the shape of the rows or weights.
void check_same_shape(Checker& checker, NamedView operand, const plan::Problem& problem,
                      const Shape& shape) {
  check_row_operand(checker, operand, shape.weights ? 3 : 2, problem);
  if (!checker.ok()) return;
  const TensorView& view = operand.view;
  const bool right = shape.weights
                         ? view.shape[0] == shape.num_groups && view.shape[1] == shape.group_rows &&
                               view.shape[2] == shape.k
                         : view.shape[0] == shape.m && view.shape[1] == shape.k;
  if (right) return;
  if (shape.weights) {
    checker.expect(false, joined(operand.argument, ".shape"), shape_text(view), "[g, n, k] = [",
                   shape.num_groups, ", ", shape.group_rows, ", ", shape.k, "]");
  } else {
    checker.expect(false, joined(operand.argument, ".shape"), shape_text(view), "[m, k] = [",
                   shape.m, ", ", shape.k, "]");
  }
}

/// Rows or weights as they lie, with scales along k.
ScaledOperand rows_operand(std::string_view argument, const ScaledTensor& tensor,
                           const Shape& shape) {
  return {.argument = argument,
          .scales = tensor.scales,
          .dtype = tensor.dtype,
          .kind = shape.weights ? ScaledKind::kWeights : ScaledKind::kRows,
          .num_groups = shape.num_groups,
          .outer = shape.weights ? shape.group_rows : shape.m,
          .inner = shape.k};
}

/// The transposed copy: of rows [k, capacity], of weights [g, k, n].
void check_columns(Checker& checker, std::string_view argument, const ScaledTensor& columns,
                   const Shape& shape, const plan::Problem& problem, plan::ScaleForm* form) {
  check_row_operand(checker, {argument, columns}, shape.weights ? 3 : 2, problem);
  if (!checker.ok()) return;
  checker.expect(columns.columns == !shape.weights, joined(argument, ".columns"),
                 columns.columns ? "true" : "false",
                 shape.weights ? "false: the transposed copy of weights is weights"
                               : "true: a column-wise copy");
  ScaledOperand operand = rows_operand(argument, columns, shape);
  operand.outer = shape.k;
  operand.inner = shape.group_rows;
  if (shape.weights) {
    const bool right = columns.shape[0] == shape.num_groups && columns.shape[1] == shape.k &&
                       columns.shape[2] == shape.group_rows;
    checker.expect(right, joined(argument, ".shape"), shape_text(columns), "[g, k, n] = [",
                   shape.num_groups, ", ", shape.k, ", ", shape.group_rows, "]");
    check_scales(checker, operand, problem.device, form);
    return;
  }
  operand.kind = ScaledKind::kColumns;
  checker.expect(columns.shape[0] == shape.k, joined(argument, ".shape[0]"), columns.shape[0],
                 "k = ", shape.k);
  check_scales(checker, operand, problem.device, form);
  if (!checker.ok()) return;
  if (!problem.sizes_on_device) {
    check_column_room(checker, operand, columns.shape[1], shape.host_offsets);
    return;
  }
  const int64_t room = column_capacity(shape.m, shape.num_groups);
  checker.expect(columns.shape[1] >= room, joined(argument, ".shape[1]"), columns.shape[1],
                 "at least column_capacity(m, g) = ", room, " because group_sizes are on a device");
  const int64_t block = plan::inner_block_of(columns.scales.mode);
  if (block == 0) return;
  const int64_t lines = column_scale_capacity(shape.m, shape.num_groups, block);
  checker.expect(form->lines >= lines, joined(argument, ".scales.shape[0]"), form->lines,
                 "at least column_scale_capacity(m, g, ", block, ") = ", lines,
                 " because group_sizes are on a device");
}

void check_fp8(Checker& checker, std::string_view argument, DType dtype) {
  checker.expect(is_fp8(dtype), joined(argument, ".dtype"), name_of(dtype), "e4m3 or e5m2");
}

/// Dims of weights. An empty one may hide a product of the others that doesn't fit 64 bits.
void take_weights(Checker& checker, const TensorView& x, Shape* shape) {
  const int64_t groups = x.shape[0];
  checker.expect(groups <= ops::kMaxGroups, "x.shape[0]", groups, "at most 2^24 groups");
  checker.expect(groups == 0 || x.shape[1] <= ops::kMaxDim / groups, "x.shape[1]", x.shape[1],
                 "at most 2^48 rows of all groups");
  if (!checker.ok()) return;
  shape->num_groups = groups;
  shape->group_rows = x.shape[1];
  shape->m = groups * x.shape[1];
  shape->k = x.shape[2];
}

/// source_row, row_scale and activation: what makes the rows that are quantised.
void check_source(Checker& checker, const QuantizeArgs& args, plan::Problem* problem,
                  Shape* shape) {
  const NamedView source_row{"source_row", args.source_row}, row_scale{"row_scale", args.row_scale};
  if (shape->weights) {
    for (const NamedView& view : {source_row, row_scale}) {
      checker.expect(!view.view.given(), view.argument, "given", "none because x is [g, n, k]");
    }
    checker.expect(args.activation.kind == ActivationKind::kNone, "activation.kind",
                   static_cast<int32_t>(args.activation.kind), "0 because x is [g, n, k]");
    take_weights(checker, args.x, shape);
    return;
  }
  check_activation(checker, args.activation);
  ops::check_gate_width(checker, "x.shape[1]", args.x.shape[1], args.activation);
  if (!checker.ok()) return;
  shape->k = args.x.shape[1] / args.activation.columns();
  shape->m = args.x.shape[0];
  if (args.source_row.given()) {
    check_row_operand(checker, source_row, 1, *problem);
    check_row_indices(checker, source_row, "x.shape[0]", args.x.shape[0]);
    if (!checker.ok()) return;
    shape->m = args.source_row.shape[0];
  }
  if (!args.row_scale.given()) return;
  check_row_operand(checker, row_scale, 1, *problem);
  if (!checker.ok()) return;
  check_plain_dtype(checker, "row_scale", args.row_scale.dtype);
  checker.expect(args.row_scale.shape[0] == shape->m, "row_scale.shape[0]", args.row_scale.shape[0],
                 "m = ", shape->m);
}

Status check(const QuantizeArgs& args, plan::Problem* problem) {
  Checker checker("quantize");
  Shape shape;
  problem->op = plan::Op::kQuantize;
  check_data(checker, {"x", args.x}, problem, &shape);
  if (!checker.ok()) return checker.status();
  check_plain_dtype(checker, "x", args.x.dtype);
  check_source(checker, args, problem, &shape);
  check_groups(checker, args.group_sizes, problem, &shape);
  checker.expect(args.rows.given() || args.columns.given(), "rows and columns", "nothing",
                 "at least one of them");
  const bool floor_fits =
      args.amax_floor >= 0 && args.amax_floor <= std::numeric_limits<float>::max();
  checker.expect(floor_fits, "amax_floor", args.amax_floor, "0 to the largest f32");
  if (!checker.ok()) return checker.status();
  if (args.rows.given()) {
    check_same_shape(checker, {"rows", args.rows}, *problem, shape);
    check_fp8(checker, "rows", args.rows.dtype);
    checker.expect(!args.rows.columns, "rows.columns", "true", "false");
    check_scales(checker, rows_operand("rows", args.rows, shape), problem->device,
                 &problem->lhs_scales);
    problem->out = ops::layout_of(args.rows);
  }
  if (args.columns.given()) {
    check_fp8(checker, "columns", args.columns.dtype);
    check_columns(checker, "columns", args.columns, shape, *problem, &problem->rhs_scales);
    problem->rhs = ops::layout_of(args.columns);
  }
  for (const ScaledTensor* copy : {&args.rows, &args.columns}) {
    checker.expect(copy->scales.pointers == nullptr,
                   copy == &args.rows ? "rows.scales.pointers" : "columns.scales.pointers", "given",
                   "one tensor of scales");
  }
  if (checker.ok() && args.rows.given() && args.columns.given()) {
    checker.expect(args.rows.scales.mode == args.columns.scales.mode, "columns.scales.mode",
                   name_of(args.columns.scales.mode), name_of(args.rows.scales.mode),
                   ", the mode of rows");
  }
  check_options(checker, args.options, problem);
  check_row_memory(checker,
                   {{"rows", args.rows},
                    {"rows.scales", args.rows.scales.values},
                    {"columns", args.columns},
                    {"columns.scales", args.columns.scales.values}},
                   {{"x", args.x}, {"source_row", args.source_row}, {"row_scale", args.row_scale}});
  return checker.status();
}

Status check(const DequantizeArgs& args, plan::Problem* problem) {
  Checker checker("dequantize");
  Shape shape;
  problem->op = plan::Op::kDequantize;
  check_data(checker, {"x", args.x}, problem, &shape);
  if (!checker.ok()) return checker.status();
  check_fp8(checker, "x", args.x.dtype);
  const bool columns = args.x.columns;
  checker.expect(!columns || !shape.weights, "x.columns", "true",
                 "false: the transposed copy of weights is weights");
  if (shape.weights) {
    take_weights(checker, args.x, &shape);
  } else {
    // A column-wise copy has room for more than its rows; `out` says how many there are.
    checker.view("out", args.out, 2);
    shape.m = columns ? args.out.shape[0] : args.x.shape[0];
    shape.k = args.x.shape[columns ? 0 : 1];
  }
  check_groups(checker, args.group_sizes, problem, &shape);
  if (!checker.ok()) return checker.status();
  if (columns) {
    check_columns(checker, "x", args.x, shape, *problem, &problem->lhs_scales);
  } else {
    check_scales(checker, rows_operand("x", args.x, shape), problem->device, &problem->lhs_scales);
    checker.expect(args.x.scales.pointers == nullptr, "x.scales.pointers", "given",
                   "one tensor of scales");
  }
  check_same_shape(checker, {"out", args.out}, *problem, shape);
  check_plain_dtype(checker, "out", args.out.dtype);
  check_options(checker, args.options, problem);
  check_row_memory(checker, {{"out", args.out}},
                   {{"x", args.x}, {"x.scales", args.x.scales.values}});
  problem->out = ops::layout_of(args.out);
  return checker.status();
}

Status check(const AmaxArgs& args, plan::Problem* problem) {
  Checker checker("amax");
  Shape shape;
  problem->op = plan::Op::kAmax;
  check_data(checker, {"x", args.x}, problem, &shape);
  if (!checker.ok()) return checker.status();
  check_plain_dtype(checker, "x", args.x.dtype);
  check_source(checker, {.x = args.x}, problem, &shape);
  check_groups(checker, args.group_sizes, problem, &shape);
  if (!checker.ok()) return checker.status();
  const ScaledTensor out(args.x, Scales(args.mode, args.out));
  check_amax(checker, rows_operand("out", out, shape), problem->device, &problem->lhs_scales);
  check_options(checker, args.options, problem);
  check_row_memory(checker, {{"out", args.out}}, {{"x", args.x}});
  problem->out = ops::layout_of(args.x);
  return checker.status();
}

template <typename Args>
Status run(std::string_view op, Context& context, const Args& args) {
  return ops::guarded(op, [&]() -> Status {
    plan::Problem problem;
    if (Status status = check(args, &problem); !status.ok()) return status;
    return ops::run_rows(context, problem, &args, args.options);
  });
}

template <typename Args>
Status size(std::string_view op, Context& context, const Args& args, size_t* size_bytes) {
  return ops::guarded(op, [&]() -> Status {
    plan::Problem problem;
    if (Status status = check(args, &problem); !status.ok()) return status;
    return ops::rows_workspace_size(context, problem, args.options, size_bytes);
  });
}

}  // namespace

Status quantize(Context& context, const QuantizeArgs& args) {
  return run("quantize", context, args);
}
Status quantize_workspace_size(Context& context, const QuantizeArgs& args, size_t* size_bytes) {
  return size("quantize", context, args, size_bytes);
}

Status dequantize(Context& context, const DequantizeArgs& args) {
  return run("dequantize", context, args);
}
Status dequantize_workspace_size(Context& context, const DequantizeArgs& args, size_t* size_bytes) {
  return size("dequantize", context, args, size_bytes);
}

Status amax(Context& context, const AmaxArgs& args) { return run("amax", context, args); }
Status amax_workspace_size(Context& context, const AmaxArgs& args, size_t* size_bytes) {
  return size("amax", context, args, size_bytes);
}

}  // namespace cadre
