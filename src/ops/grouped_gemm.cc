// grouped_gemm: check, build the Problem, hand over to a backend.
#include "cadre/grouped_gemm.h"

#include "ops/dispatch.h"
#include "ops/guarded.h"
#include "ops/problem_of.h"
#include "ops/scaled_operand.h"
#include "plan/grouped_dims.h"

namespace cadre {
namespace {

using ops::Call;
using ops::Checker;

constexpr std::initializer_list<Placement> kForms = {Placement::kStacked, Placement::kList,
                                                     Placement::kPacked};

bool on_host(const GroupedTensor& tensor) {
  return !plan::on_device(tensor.rows) && !plan::on_device(tensor.cols);
}

/// Rows and cols of op(X).
plan::MatrixDims dims_after(const GroupedTensor& tensor, bool transpose, int64_t group) {
  const plan::MatrixDims dims = plan::dims_of(tensor, group);
  return transpose ? plan::MatrixDims{dims.cols, dims.rows} : dims;
}

/// Every group's m, k and n agree, as far as the dims lie on the host; a device checks its own.
void check_dims(Checker& checker, const GroupedGemmArgs& args) {
  if (!checker.ok() || !on_host(args.a) || !on_host(args.b) || !on_host(args.d)) return;
  for (int64_t i = 0; i < args.d.num_groups && checker.ok(); ++i) {
    const plan::MatrixDims a = dims_after(args.a, args.transa, i);
    const plan::MatrixDims b = dims_after(args.b, args.transb, i);
    const plan::MatrixDims d = plan::dims_of(args.d, i);
    checker.expect(b.rows == a.cols, joined("b[", i, "].k"), b.rows, "a[", i, "].k = ", a.cols);
    checker.expect(d.rows == a.rows, joined("d[", i, "].m"), d.rows, "a[", i, "].m = ", a.rows);
    checker.expect(d.cols == b.cols, joined("d[", i, "].n"), d.cols, "b[", i, "].n = ", b.cols);
    if (!args.c.given() || !on_host(args.c)) continue;
    const plan::MatrixDims c = plan::dims_of(args.c, i);
    checker.expect(c.rows == d.rows, joined("c[", i, "].m"), c.rows, "d[", i, "].m = ", d.rows);
    checker.expect(c.cols == d.cols, joined("c[", i, "].n"), c.cols, "d[", i, "].n = ", d.cols);
  }
}

Status check(const GroupedGemmArgs& args, Call* call) {
  Checker checker("grouped_gemm");
  plan::Problem& problem = call->problem;
  plan::Operands& operands = call->operands;

  checker.grouped("a", args.a, kForms);
  checker.grouped("b", args.b, kForms);
  checker.grouped("d", args.d, kForms);
  if (args.c.given()) checker.grouped("c", args.c, kForms);
  if (!checker.ok()) return checker.status();
  problem.op = plan::Op::kGroupedGemm;
  problem.device = args.a.device;
  problem.num_groups = problem.num_local_groups = args.a.num_groups;
  using Named = std::pair<std::string_view, const GroupedTensor*>;
  for (const auto& [name, tensor] :
       {Named{"b", &args.b}, Named{"d", &args.d}, Named{"c", &args.c}}) {
    if (!tensor->given()) continue;
    checker.expect(tensor->num_groups == problem.num_groups, joined(name, ".num_groups"),
                   tensor->num_groups, "a.num_groups = ", problem.num_groups);
    checker.same_device(name, tensor->device, "a", problem.device);
  }
  for (const auto& [name, tensor] :
       {Named{"a", &args.a}, Named{"b", &args.b}, Named{"d", &args.d}, Named{"c", &args.c}}) {
    checker.pointers(name, *tensor);
  }
  check_dims(checker, args);
  checker.product_dtypes({"a", args.a.dtype}, {"b", args.b.dtype}, {"d", args.d.dtype});
  if (!checker.ok()) return checker.status();

  problem.transpose_lhs = args.transa;
  problem.transpose_rhs = args.transb;
  problem.m = plan::largest(args.d.rows);
  problem.n = plan::largest(args.d.cols);
  problem.k = plan::largest(args.transa ? args.a.rows : args.a.cols);
  const ops::ScaledOperand a{.argument = "a",
                             .scales = args.a.scales,
                             .dtype = args.a.dtype,
                             .kind = ops::ScaledKind::kMatrices,
                             .num_groups = problem.num_groups,
                             .outer = problem.m,
                             .inner = problem.k,
                             .inner_first = args.transa};
  const ops::ScaledOperand b{.argument = "b",
                             .scales = args.b.scales,
                             .dtype = args.b.dtype,
                             .kind = ops::ScaledKind::kMatrices,
                             .num_groups = problem.num_groups,
                             .outer = problem.n,
                             .inner = problem.k,
                             .inner_first = !args.transb};
  check_scales(checker, a, problem.device, &problem.lhs_scales);
  check_scales(checker, b, problem.device, &problem.rhs_scales);
  check_scale_modes(checker, a, b);
  if (!checker.ok()) return checker.status();
  operands.lhs_scales = args.a.scales;
  operands.rhs_scales = args.b.scales;
  operands.lhs = args.a;
  operands.rhs = args.b;
  operands.out = args.d;
  check_scalars(checker, {args.alpha, args.beta, args.accumulate, args.c}, call);
  check_options(checker, args.options, &problem);
  check_overlaps(checker, *call, "d");
  if (!checker.ok()) return checker.status();

  problem.lhs = ops::layout_of(args.a);
  problem.rhs = ops::layout_of(args.b);
  problem.out = ops::layout_of(args.d);
  problem.compute = ops::compute_dtype(args.a.dtype, args.b.dtype, args.d.dtype);
  problem.sizes_on_device = !on_host(args.a) || !on_host(args.b) || !on_host(args.d);
  call->nothing_to_do = problem.num_groups == 0 || problem.m == 0 || problem.n == 0;
  return {};
}

}  // namespace

Status grouped_gemm(Context& context, const GroupedGemmArgs& args) {
  return ops::guarded("grouped_gemm", [&]() -> Status {
    Call call;
    if (Status status = check(args, &call); !status.ok()) return status;
    return ops::run(context, call, args.options);
  });
}

Status grouped_gemm_workspace_size(Context& context, const GroupedGemmArgs& args,
                                   size_t* size_bytes) {
  return ops::guarded("grouped_gemm", [&]() -> Status {
    Call call;
    if (Status status = check(args, &call); !status.ok()) return status;
    return ops::workspace_size(context, call, args.options, size_bytes);
  });
}

Status ops::problem_of(const GroupedGemmArgs& args, plan::Problem* problem) {
  Call call;
  if (Status status = check(args, &call); !status.ok()) return status;
  *problem = call.problem;
  return {};
}

}  // namespace cadre
