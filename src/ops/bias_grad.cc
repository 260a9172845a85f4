// bias_grad: check, build the Problem, hand over to a backend.
#include "cadre/bias_grad.h"

#include "backend/registry.h"
#include "ops/dispatch.h"
#include "ops/guarded.h"
#include "ops/memory_span.h"
#include "ops/problem_of.h"

namespace cadre {
namespace {

using ops::Checker;

struct CheckedCall {
  plan::Problem problem;
  std::vector<int64_t> offsets;
};

void check_vectors(Checker& checker, std::string_view argument, const GroupedTensor& tensor,
                   const plan::Problem& problem) {
  checker.vectors(argument, tensor);
  checker.expect(!tensor.cols.varies() && tensor.cols.uniform == problem.n, joined(argument, ".n"),
                 tensor.cols.uniform, "dy.n = ", problem.n);
  checker.expect(tensor.num_groups == problem.num_local_groups, joined(argument, ".num_groups"),
                 tensor.num_groups, "the number of local groups = ", problem.num_local_groups);
  checker.same_device(argument, tensor.device, "dy", problem.device);
}

void check_row_vector(Checker& checker, std::string_view argument, const TensorView& vector,
                      const plan::Problem& problem) {
  if (!vector.given()) return;
  checker.view(argument, vector, 1);
  checker.float_dtype(argument, vector.dtype);
  checker.expect(vector.shape[0] == problem.m, joined(argument, ".shape[0]"), vector.shape[0],
                 "dy.m = ", problem.m);
  checker.same_device(argument, vector.device, "dy", problem.device);
}

void check_memory(Checker& checker, const BiasGradArgs& args) {
  if (!checker.ok()) return;
  const std::vector<ops::NamedSpans> inputs = {
      {"dy", ops::spans_of(args.dy)},
      {"bias", ops::spans_of(args.bias)},
      {"bias_scale", ops::spans_of(args.bias_scale)},
      {"group_sizes",
       ops::spans_of(TensorView::contiguous(args.group_sizes.data, args.group_sizes.dtype,
                                            {args.group_sizes.count}))}};
  ops::check_overlap(checker, "dbias", ops::spans_of(args.dbias), inputs);
  std::vector<ops::NamedSpans> with_dbias = inputs;
  with_dbias.push_back({"dbias", ops::spans_of(args.dbias)});
  ops::check_overlap(checker, "dbias_scale", ops::spans_of(args.dbias_scale), with_dbias);
  if (args.dbias.given()) ops::check_elements_apart(checker, "dbias", args.dbias);
  if (args.dbias_scale.given()) {
    const TensorView& scale = args.dbias_scale;
    const int64_t dims[3] = {1, 1, scale.shape[0]};
    if (ops::overlaps_itself(dims, {0, 0, scale.strides[0]})) {
      checker.fail("dbias_scale overlaps itself (stride ", scale.strides[0],
                   "), expected every element at its own address");
    }
  }
}

Status check(const BiasGradArgs& args, CheckedCall* call) {
  Checker checker("bias_grad");
  plan::Problem& problem = call->problem;
  checker.view("dy", args.dy, 2);
  checker.float_dtype("dy", args.dy.dtype);
  if (!checker.ok()) return checker.status();
  problem.op = plan::Op::kBiasGrad;
  problem.device = args.dy.device;
  problem.m = args.dy.shape[0];
  problem.n = args.dy.shape[1];
  problem.num_local_groups = args.dbias.given()  ? args.dbias.num_groups
                             : args.bias.given() ? args.bias.num_groups
                                                 : args.group_sizes.count;
  if (args.dbias.given()) check_vectors(checker, "dbias", args.dbias, problem);
  if (args.bias.given()) check_vectors(checker, "bias", args.bias, problem);
  check_row_vector(checker, "bias_scale", args.bias_scale, problem);
  check_row_vector(checker, "dbias_scale", args.dbias_scale, problem);
  if (args.dbias_scale.given() && !args.bias.given()) {
    checker.fail("dbias_scale is given without bias, expected both");
  }
  check_sizes(checker, args.group_sizes, args.group_offset, Tail::kZero, &problem, &call->offsets);
  checker.pointers("dbias", args.dbias);
  checker.pointers("bias", args.bias);
  check_options(checker, args.options, &problem);
  check_memory(checker, args);
  if (!checker.ok()) return checker.status();

  problem.lhs = ops::layout_of(args.dy);
  problem.out = ops::layout_of(args.dbias);
  problem.epilogue.bias = ops::layout_of(args.bias);
  problem.epilogue.has_bias_scale = args.bias_scale.given();
  problem.epilogue.has_beta = args.accumulate;
  const bool f64 = args.dy.dtype == DType::kF64 || args.dbias.dtype == DType::kF64 ||
                   args.dbias_scale.dtype == DType::kF64 || args.bias.dtype == DType::kF64 ||
                   args.bias_scale.dtype == DType::kF64;
  problem.compute = f64 ? DType::kF64 : DType::kF32;
  return {};
}

Status select(Context& context, const BiasGradArgs& args, const CheckedCall& call,
              backend::Selection* selection) {
  if (!context.status().ok()) return context.status();
  return backend::Registry::instance().select(context.state(), call.problem, args.options.config,
                                              selection);
}

}  // namespace

Status bias_grad(Context& context, const BiasGradArgs& args) {
  return ops::guarded("bias_grad", [&]() -> Status {
    CheckedCall call;
    if (Status status = check(args, &call); !status.ok()) return status;
    backend::Selection selection;
    if (Status status = select(context, args, call, &selection); !status.ok()) return status;
    if (!args.dbias.given() && !args.dbias_scale.given()) return {};
    return selection.backend->run_bias_grad(context.state(), call.problem, selection.config, args,
                                            call.offsets);
  });
}

Status bias_grad_workspace_size(Context& context, const BiasGradArgs& args, size_t* size_bytes) {
  return ops::guarded("bias_grad", [&]() -> Status {
    *size_bytes = 0;
    CheckedCall call;
    if (Status status = check(args, &call); !status.ok()) return status;
    backend::Selection selection;
    if (Status status = select(context, args, call, &selection); !status.ok()) return status;
    *size_bytes = selection.backend->workspace_size(call.problem, selection.config);
    return {};
  });
}

Status ops::problem_of(const BiasGradArgs& args, plan::Problem* problem) {
  CheckedCall call;
  if (Status status = check(args, &call); !status.ok()) return status;
  *problem = call.problem;
  return {};
}

}  // namespace cadre
