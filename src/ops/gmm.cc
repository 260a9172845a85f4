// gmm: check, build the Problem, hand over to a backend.
#include "cadre/gmm.h"

#include "ops/activation_check.h"
#include "ops/dispatch.h"
#include "ops/guarded.h"
#include "ops/problem_of.h"
#include "ops/scaled_operand.h"
#include "plan/packed_weights.h"

namespace cadre {
namespace {

using ops::Call;
using ops::Checker;

/// What says how many rows the product has.
std::string_view rows_name(const plan::Problem& problem) {
  return problem.lhs_rows.by_index() ? "lhs_rows.shape[0] = " : "lhs.m = ";
}

/// out or c: rows of one [m, n] tensor, or a list whose matrices have at least a group's rows.
void check_result(Checker& checker, std::string_view argument, const GroupedTensor& tensor,
                  const plan::Problem& problem) {
  checker.grouped(argument, tensor, {Placement::kRows, Placement::kList});
  if (!checker.ok()) return;
  checker.expect(!tensor.rows.varies() && !tensor.cols.varies(), joined(argument, ".rows"),
                 "per-group", "one shape for all groups");
  const bool gated = problem.epilogue.activation.gated();
  checker.expect(tensor.cols.uniform * problem.epilogue.activation.columns() == problem.n,
                 joined(argument, ".n"), tensor.cols.uniform, gated ? "rhs.n / 2 = " : "rhs.n = ",
                 problem.n / problem.epilogue.activation.columns());
  if (tensor.placement == Placement::kRows) {
    checker.expect(tensor.rows.uniform == problem.m, joined(argument, ".m"), tensor.rows.uniform,
                   rows_name(problem), problem.m);
  } else {
    checker.expect(tensor.num_groups == problem.num_local_groups, joined(argument, ".num_groups"),
                   tensor.num_groups, "rhs.num_groups = ", problem.num_local_groups);
  }
}

/// No group has more rows than the matrices of a list, as far as the sizes lie on the host, and
/// only the pointer of a group without rows may be null.
void check_list_rows(Checker& checker, std::string_view argument, const GroupedTensor& tensor,
                     const Call& call) {
  if (!checker.ok() || tensor.placement != Placement::kList) return;
  const bool pointers_known = tensor.pointers_device.kind == DeviceKind::kCpu;
  const std::vector<int64_t> local_rows = ops::local_group_rows(call);
  for (int64_t i = 0; i < call.problem.num_local_groups && checker.ok(); ++i) {
    const int64_t rows =
        local_rows.empty() ? tensor.rows.uniform : local_rows[static_cast<size_t>(i)];
    if (rows > tensor.rows.uniform) {
      checker.expect(false, joined("group_sizes[", call.operands.group_offset.value + i, "]"), rows,
                     "at most ", argument, ".rows = ", tensor.rows.uniform);
    }
    if (pointers_known && rows > 0 && tensor.cols.uniform > 0 && tensor.pointers[i] == nullptr) {
      checker.expect(false, joined(argument, ".pointers[", i, "]"), "null", "a pointer");
    }
  }
}

void check_vector(Checker& checker, std::string_view argument, const TensorView& vector,
                  const plan::Problem& problem) {
  if (!vector.given()) return;
  checker.view(argument, vector, 1);
  checker.float_dtype(argument, vector.dtype);
  checker.expect(vector.shape[0] == problem.m, joined(argument, ".shape[0]"), vector.shape[0],
                 rows_name(problem), problem.m);
  checker.same_device(argument, vector.device, "lhs", problem.device);
}

/// An activation, and the pre-activation beside it.
void check_activation(Checker& checker, const GmmArgs& args, plan::Problem* problem) {
  ops::check_activation(checker, args.activation);
  if (!checker.ok()) return;
  problem->epilogue.activation = args.activation;
  if (!problem->epilogue.activates()) {
    if (args.preactivation.given()) {
      checker.fail("preactivation is given without activation, expected both");
    }
    return;
  }
  ops::check_gate_width(checker, "rhs.n", problem->n, args.activation);
  checker.expect(!args.accumulate && !args.beta.varies() && args.beta.uniform == 0, "beta", "given",
                 "none because there is an activation");
  checker.expect(args.out.placement == Placement::kRows, "out", "a list",
                 "rows of one tensor because there is an activation");
  checker.expect(args.tail == Tail::kZero, "tail", static_cast<int32_t>(args.tail),
                 "0 (zero) because there is an activation");
  checker.expect(is_float(args.out.dtype), "out.dtype", name_of(args.out.dtype),
                 "a float type because there is an activation");
  if (!args.preactivation.given()) return;
  checker.view("preactivation", args.preactivation, 2);
  if (!checker.ok()) return;
  const auto& shape = args.preactivation.shape;
  checker.expect(shape[0] == problem->m && shape[1] == problem->n, "preactivation.shape",
                 joined("[", shape[0], ", ", shape[1], "]"), "[m, rhs.n] = [", problem->m, ", ",
                 problem->n, "]");
  checker.expect(args.preactivation.dtype == args.out.dtype, "preactivation.dtype",
                 name_of(args.preactivation.dtype), "out.dtype = ", name_of(args.out.dtype));
  checker.same_device("preactivation", args.preactivation.device, "lhs", problem->device);
  problem->epilogue.preactivation = ops::layout_of(args.preactivation);
}

/// Weights packed ahead are those of this call's rhs, as far as can be seen.
void check_packed_rhs(Checker& checker, const PackedWeights& packed, const plan::Problem& problem) {
  checker.expect(problem.device.kind == DeviceKind::kCpu, "packed_rhs", "given",
                 "none because lhs.device = ", ops::device_name(problem.device));
  const PackedWeights::State* state = packed.state();
  checker.expect(state != nullptr, "packed_rhs", "empty", "what pack_weights has filled");
  if (!checker.ok()) return;
  if (state->dtype == problem.rhs.dtype && state->num_groups == problem.num_local_groups &&
      state->k == problem.k && state->n == problem.n) {
    return;
  }
  checker.fail("packed_rhs = ", name_of(state->dtype), " [", state->num_groups, ", k ", state->k,
               ", n ", state->n, "], expected rhs = ", name_of(problem.rhs.dtype), " [",
               problem.num_local_groups, ", k ", problem.k, ", n ", problem.n, "]");
}

Status check(const GmmArgs& args, Call* call) {
  Checker checker("gmm");
  plan::Problem& problem = call->problem;
  plan::Operands& operands = call->operands;

  checker.view("lhs", args.lhs, 2);
  checker.grouped("rhs", args.rhs, {Placement::kStacked, Placement::kList});
  if (!checker.ok()) return checker.status();
  checker.expect(!args.rhs.rows.varies() && !args.rhs.cols.varies(), "rhs.rows", "per-group",
                 "one shape for all groups");
  problem.op = plan::Op::kGmm;
  problem.device = args.lhs.device;
  problem.m = check_row_source(checker, "lhs", args.lhs.shape[0], args.lhs_rows, problem,
                               &problem.lhs_rows);
  problem.k = args.lhs.shape[1];
  const int64_t rhs_k = args.transpose_rhs ? args.rhs.cols.uniform : args.rhs.rows.uniform;
  problem.n = args.transpose_rhs ? args.rhs.rows.uniform : args.rhs.cols.uniform;
  problem.num_local_groups = args.rhs.num_groups;
  problem.transpose_rhs = args.transpose_rhs;
  checker.expect(rhs_k == problem.k, "rhs.k", rhs_k, "lhs.k = ", problem.k);
  checker.same_device("rhs", args.rhs.device, "lhs", problem.device);
  check_activation(checker, args, &problem);
  check_result(checker, "out", args.out, problem);
  checker.same_device("out", args.out.device, "lhs", problem.device);
  checker.product_dtypes({"lhs", args.lhs.dtype}, {"rhs", args.rhs.dtype}, {"out", args.out.dtype});
  if (!checker.ok()) return checker.status();

  const ops::ScaledOperand lhs{.argument = "lhs",
                               .scales = args.lhs.scales,
                               .dtype = args.lhs.dtype,
                               .outer = args.lhs.shape[0],
                               .inner = problem.k};
  const ops::ScaledOperand rhs{.argument = "rhs",
                               .scales = args.rhs.scales,
                               .dtype = args.rhs.dtype,
                               .kind = ops::ScaledKind::kWeights,
                               .num_groups = args.rhs.num_groups,
                               .outer = problem.n,
                               .inner = problem.k,
                               .inner_first = !args.transpose_rhs};
  checker.expect(!args.lhs.columns, "lhs.columns", "true",
                 "false: gmm takes rows, a column-wise copy is for tgmm");
  check_scales(checker, lhs, problem.device, &problem.lhs_scales);
  check_scales(checker, rhs, problem.device, &problem.rhs_scales);
  check_scale_modes(checker, lhs, rhs);
  if (!checker.ok()) return checker.status();

  operands.lhs = args.lhs;
  operands.lhs_scales = args.lhs.scales;
  operands.rhs_scales = args.rhs.scales;
  operands.lhs_index = args.lhs_rows;
  operands.rhs = args.rhs;
  operands.out = args.out;
  operands.group_sizes = args.group_sizes;
  operands.group_offset = args.group_offset;
  operands.packed_rhs = args.packed_rhs;
  check_sizes(checker, args.group_sizes, args.group_offset, args.tail, &problem,
              &operands.host_offsets);
  checker.pointers("rhs", args.rhs);
  check_list_rows(checker, "out", args.out, *call);
  if (args.c.given()) {
    check_result(checker, "c", args.c, problem);
    check_list_rows(checker, "c", args.c, *call);
  }
  check_scalars(checker, {args.alpha, args.beta, args.accumulate, args.c}, call);

  if (args.bias.given()) {
    checker.vectors("bias", args.bias);
    checker.expect(args.bias.num_groups == problem.num_local_groups, "bias.num_groups",
                   args.bias.num_groups, "rhs.num_groups = ", problem.num_local_groups);
    checker.expect(!args.bias.cols.varies() && args.bias.cols.uniform == problem.n, "bias.n",
                   args.bias.cols.uniform, "rhs.n = ", problem.n);
    checker.same_device("bias", args.bias.device, "lhs", problem.device);
    checker.pointers("bias", args.bias);
    operands.epilogue.bias = args.bias;
  }
  check_vector(checker, "bias_scale", args.bias_scale, problem);
  check_vector(checker, "row_scale", args.row_scale, problem);
  if (args.bias_scale.given() && !args.bias.given()) {
    checker.fail("bias_scale is given without bias, expected both");
  }
  if (args.out.dtype == DType::kI32) {
    checker.expect(!args.bias.given(), "bias", "given", "none because out.dtype = i32");
    checker.expect(!args.row_scale.given(), "row_scale", "given", "none because out.dtype = i32");
  }
  operands.epilogue.bias_scale = args.bias_scale;
  operands.epilogue.row_scale = args.row_scale;
  operands.epilogue.activation = args.activation;
  operands.epilogue.preactivation = args.preactivation;
  check_options(checker, args.options, &problem);
  check_overlaps(checker, *call, "out");
  if (!checker.ok()) return checker.status();

  problem.lhs = ops::layout_of(args.lhs);
  problem.rhs = ops::layout_of(args.rhs);
  problem.out = ops::layout_of(args.out);
  problem.epilogue.bias = ops::layout_of(args.bias);
  problem.epilogue.has_bias_scale = args.bias_scale.given();
  problem.epilogue.has_row_scale = args.row_scale.given();
  problem.compute = ops::compute_dtype(args.lhs.dtype, args.rhs.dtype, args.out.dtype);
  if (args.packed_rhs != nullptr) check_packed_rhs(checker, *args.packed_rhs, problem);
  call->nothing_to_do = problem.m == 0 || problem.n == 0;
  return checker.status();
}

}  // namespace

Status gmm(Context& context, const GmmArgs& args) {
  return ops::guarded("gmm", [&]() -> Status {
    Call call;
    if (Status status = check(args, &call); !status.ok()) return status;
    return ops::run(context, call, args.options);
  });
}

Status gmm_workspace_size(Context& context, const GmmArgs& args, size_t* size_bytes) {
  return ops::guarded("gmm", [&]() -> Status {
    Call call;
    if (Status status = check(args, &call); !status.ok()) return status;
    return ops::workspace_size(context, call, args.options, size_bytes);
  });
}

Status ops::call_of(const GmmArgs& args, Call* call) { return check(args, call); }

Status ops::problem_of(const GmmArgs& args, plan::Problem* problem) {
  Call call;
  if (Status status = check(args, &call); !status.ok()) return status;
  *problem = call.problem;
  return {};
}

}  // namespace cadre
