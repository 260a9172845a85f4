// Checks of MoeMlp's own arguments.
#include "ops/moe_mlp_check.h"

#include <vector>

#include "ops/activation_check.h"
#include "ops/dispatch.h"
#include "ops/memory_span.h"
#include "ops/row_dispatch.h"
#include "ops/view_as.h"

namespace cadre::ops {
namespace {

constexpr std::string_view kName = "moe_mlp";

bool is_matrices(const GroupedTensor& tensor, int64_t rows, int64_t cols) {
  return !tensor.rows.varies() && !tensor.cols.varies() && tensor.rows.uniform == rows &&
         tensor.cols.uniform == cols;
}

/// A stack or a list of one [rows, cols] matrix for each expert. `meaning`: "[2i, h]".
struct ExpectedMatrices {
  std::string_view meaning;
  int64_t rows;
  int64_t cols;
};
void check_matrices(Checker& checker, std::string_view argument, const GroupedTensor& tensor,
                    const ExpectedMatrices& expected, const MoeDims& dims) {
  checker.grouped(argument, tensor, {Placement::kStacked, Placement::kList});
  if (!checker.ok()) return;
  checker.expect(tensor.num_groups == dims.num_groups, joined(argument, ".num_groups"),
                 tensor.num_groups, "w13.num_groups = ", dims.num_groups);
  checker.expect(is_matrices(tensor, expected.rows, expected.cols), argument,
                 shape_and_strides(tensor), "matrices of ", expected.meaning, " = [", expected.rows,
                 ", ", expected.cols, "]");
  checker.same_device(argument, tensor.device, "x", dims.device);
  checker.pointers(argument, tensor);
}

/// A bias or its gradient, if it is given: [g, n].
void check_vectors(Checker& checker, std::string_view argument, const GroupedTensor& tensor,
                   int64_t n, const MoeDims& dims) {
  if (!tensor.given()) return;
  checker.vectors(argument, tensor);
  if (!checker.ok()) return;
  checker.expect(tensor.num_groups == dims.num_groups, joined(argument, ".num_groups"),
                 tensor.num_groups, "w13.num_groups = ", dims.num_groups);
  checker.expect(!tensor.cols.varies() && tensor.cols.uniform == n, joined(argument, ".n"),
                 tensor.cols.uniform, n);
  checker.same_device(argument, tensor.device, "x", dims.device);
  checker.pointers(argument, tensor);
}

/// A floating-point matrix, if it is given.
struct ExpectedRows {
  std::string_view meaning;  ///< "[t, h]"
  int64_t rows;
  int64_t cols;
};
void check_rows(Checker& checker, NamedView matrix, const ExpectedRows& expected,
                const MoeDims& dims) {
  if (!matrix.view.given()) return;
  plan::Problem place;
  place.device = dims.device;
  check_row_operand(checker, matrix, 2, place);
  if (!checker.ok()) return;
  checker.float_dtype(matrix.argument, matrix.view.dtype);
  checker.expect(matrix.view.shape[0] == expected.rows && matrix.view.shape[1] == expected.cols,
                 joined(matrix.argument, ".shape"),
                 joined("[", matrix.view.shape[0], ", ", matrix.view.shape[1], "]"),
                 expected.meaning, " = [", expected.rows, ", ", expected.cols, "]");
}

/// Tokens, experts and their widths: everything that the rest is held against.
void check_layer(Checker& checker, NamedView x, const MoeMlpWeights& weights,
                 const MoeMlpOptions& options, MoeDims* dims) {
  checker.view(x.argument, x.view, 2);
  if (!checker.ok()) return;
  checker.float_dtype(x.argument, x.view.dtype);
  check_activation(checker, options.activation);
  const GroupedTensor& w13 = weights.w13;
  checker.grouped("w13", w13, {Placement::kStacked, Placement::kList});
  if (!checker.ok()) return;
  checker.expect(!w13.rows.varies() && !w13.cols.varies(), "w13.rows", "per-group",
                 "one shape for all experts");
  dims->device = x.view.device;
  dims->tokens = x.view.shape[0];
  dims->h = x.view.shape[1];
  dims->num_groups = w13.num_groups;
  dims->full = weights.transposed ? w13.cols.uniform : w13.rows.uniform;
  dims->i = dims->full / options.activation.columns();
  check_gate_width(checker, weights.transposed ? "w13.cols" : "w13.rows", dims->full,
                   options.activation);
  const bool gated = options.activation.gated();
  const std::string_view wide =
      weights.transposed ? (gated ? "[h, 2i]" : "[h, i]") : (gated ? "[2i, h]" : "[i, h]");
  check_matrices(
      checker, "w13", w13,
      {wide, weights.transposed ? dims->h : dims->full, weights.transposed ? dims->full : dims->h},
      *dims);
  check_matrices(checker, "w2", weights.w2,
                 {weights.transposed ? "[i, h]" : "[h, i]", weights.transposed ? dims->i : dims->h,
                  weights.transposed ? dims->h : dims->i},
                 *dims);
  check_vectors(checker, "bias13", weights.bias13, dims->full, *dims);
  check_vectors(checker, "bias2", weights.bias2, dims->h, *dims);
  if (!checker.ok()) return;
  checker.product_dtypes({x.argument, x.view.dtype}, {"w13", w13.dtype},
                         {x.argument, x.view.dtype});
  checker.product_dtypes({x.argument, x.view.dtype}, {"w2", weights.w2.dtype},
                         {x.argument, x.view.dtype});
}

/// Without indices x's rows are those of the products.
void check_sorted_rows(Checker& checker, const MoeMlpRouting& routing, MoeDims* dims) {
  dims->m = dims->tokens;
  dims->top_k = 1;
  checker.expect(!routing.slot_row.given(), "slot_row", "given",
                 "none because there is no source_row");
  checker.expect(!routing.weights.given(), "weights", "given",
                 "none because there is no source_row");
}

/// The tokens of rows and the rows of slots.
void check_indices(Checker& checker, const MoeMlpRouting& routing, MoeDims* dims) {
  const NamedView source{"source_row", routing.source_row}, slot{"slot_row", routing.slot_row};
  plan::Problem problem;
  problem.device = dims->device;
  check_row_operand(checker, source, 1, problem);
  check_row_operand(checker, slot, 2, problem);
  if (!checker.ok()) return;
  dims->m = routing.source_row.shape[0];
  dims->top_k = routing.slot_row.shape[1];
  checker.expect(routing.slot_row.shape[0] == dims->tokens, "slot_row.shape[0]",
                 routing.slot_row.shape[0], "x.shape[0] = ", dims->tokens);
  check_rows(checker, {"weights", routing.weights},
             {"the shape of slot_row", dims->tokens, dims->top_k}, *dims);
  check_row_indices(checker, source, "x.shape[0]", dims->tokens);
  check_row_indices(checker, slot, "source_row.shape[0]", dims->m);
}

void check_routing(Checker& checker, const MoeMlpRouting& routing, MoeDims* dims) {
  if (!checker.ok()) return;
  if (routing.sorted()) {
    check_sorted_rows(checker, routing, dims);
  } else {
    check_indices(checker, routing, dims);
  }
  if (!checker.ok()) return;
  plan::Problem problem;
  problem.device = dims->device;
  problem.m = dims->m;
  problem.num_local_groups = dims->num_groups;
  std::vector<int64_t> offsets;
  check_sizes(checker, routing.group_sizes, routing.group_offset, Tail::kZero, &problem, &offsets);
}

void check_call_options(Checker& checker, const CallOptions& options) {
  plan::Problem unused;
  check_options(checker, options, &unused);
  checker.expect(options.config == nullptr, "options.config", "given",
                 "none because a layer is several kernels");
}

/// Results apart from each other, from everything that is read, and from the workspace.
void check_memory(Checker& checker, std::vector<NamedSpans> outputs, std::vector<NamedSpans> others,
                  const CallOptions& options) {
  if (!checker.ok()) return;
  if (options.workspace != nullptr) {
    outputs.push_back(
        {"options.workspace",
         spans_of(TensorView::contiguous(options.workspace, DType::kU8,
                                         {static_cast<int64_t>(options.workspace_size_bytes)}))});
  }
  for (const NamedSpans& output : outputs) {
    if (output.spans.size() == 0) continue;
    check_overlap(checker, output.argument, output.spans, others);
    others.push_back(output);
  }
}

void add(std::vector<NamedSpans>* spans, const MoeMlpWeights& weights) {
  spans->push_back({"w13", spans_of(weights.w13)});
  spans->push_back({"w2", spans_of(weights.w2)});
  spans->push_back({"bias13", spans_of(weights.bias13)});
  spans->push_back({"bias2", spans_of(weights.bias2)});
}

void add(std::vector<NamedSpans>* spans, const MoeMlpRouting& routing) {
  const GroupSizes& sizes = routing.group_sizes;
  spans->push_back(
      {"group_sizes", spans_of(TensorView::contiguous(sizes.data, sizes.dtype, {sizes.count}))});
  spans->push_back({"source_row", spans_of(routing.source_row)});
  spans->push_back({"slot_row", spans_of(routing.slot_row)});
  spans->push_back({"weights", spans_of(routing.weights)});
}

}  // namespace

Status check_moe_forward(const MoeMlpWeights& weights, const MoeMlpOptions& options,
                         const MoeMlpForwardArgs& args, MoeDims* dims) {
  Checker checker(kName);
  check_layer(checker, {"x", args.x}, weights, options, dims);
  check_routing(checker, args.routing, dims);
  const NamedView out{"out", args.out}, preact{"preact", args.preact};
  if (checker.ok()) checker.view("out", args.out, 2);
  const ExpectedRows token{"[t, h]", dims->tokens, dims->h};
  check_rows(checker, out, token, *dims);
  if (args.routing.sorted()) {
    checker.expect(!args.shared.given(), "shared", "given", "none because there is no source_row");
    checker.expect(!args.residual.given(), "residual", "given",
                   "none because there is no source_row");
  }
  check_rows(checker, {"shared", args.shared}, token, *dims);
  check_rows(checker, {"residual", args.residual}, token, *dims);
  check_rows(checker, preact,
             {options.activation.gated() ? "[m, 2i]" : "[m, i]", dims->m, dims->full}, *dims);
  if (args.preact.given()) {
    checker.expect(args.preact.dtype == args.x.dtype, "preact.dtype", name_of(args.preact.dtype),
                   "x.dtype = ", name_of(args.x.dtype));
  }
  check_call_options(checker, args.options);
  if (!checker.ok()) return checker.status();
  std::vector<NamedSpans> others = {{"x", spans_of(args.x)},
                                    {"shared", spans_of(args.shared)},
                                    {"residual", spans_of(args.residual)}};
  add(&others, weights);
  add(&others, args.routing);
  check_memory(checker, {{"out", spans_of(args.out)}, {"preact", spans_of(args.preact)}}, others,
               args.options);
  return checker.status();
}

Status check_moe_backward(const MoeMlpWeights& weights, const MoeMlpOptions& options,
                          const MoeMlpSaved& saved, const MoeMlpBackwardArgs& args, bool delayed,
                          MoeDims* dims) {
  Checker checker(kName);
  check_layer(checker, {"saved.x", saved.x}, weights, options, dims);
  check_routing(checker, saved.routing, dims);
  const bool gated = options.activation.gated();
  const ExpectedRows token{"[t, h]", dims->tokens, dims->h};
  const ExpectedRows wide{gated ? "[m, 2i]" : "[m, i]", dims->m, dims->full};
  checker.expect(saved.preact.given(), "saved.preact", "nothing",
                 "the pre-activation that forward() wrote");
  check_rows(checker, {"saved.preact", saved.preact}, wide, *dims);
  if (checker.ok()) checker.view("dout", args.dout, 2);
  check_rows(checker, {"dout", args.dout}, token, *dims);
  check_rows(checker, {"dx", args.dx}, token, *dims);
  if (args.dweights.given()) {
    checker.expect(saved.routing.weights.given(), "dweights", "given",
                   "none because forward() had no weights");
    check_rows(checker, {"dweights", args.dweights},
               {"the shape of slot_row", dims->tokens, dims->top_k}, *dims);
  }
  const auto check_gradient = [&](std::string_view argument, const GroupedTensor& gradient,
                                  const GroupedTensor& weight, std::string_view meaning) {
    if (!gradient.given() || !checker.ok()) return;
    check_matrices(checker, argument, gradient, {meaning, weight.rows.uniform, weight.cols.uniform},
                   *dims);
    checker.float_dtype(argument, gradient.dtype);
    check_elements_apart(checker, argument, gradient);
  };
  check_gradient("dw13", args.dw13, weights.w13, "w13's shape");
  check_gradient("dw2", args.dw2, weights.w2, "w2's shape");
  checker.scalars("dw_beta", args.dw_beta, dims->num_groups, dims->device);
  const auto check_bias = [&](std::string_view argument, const GroupedTensor& gradient,
                              std::string_view bias, const GroupedTensor& parameter, int64_t n) {
    if (!gradient.given()) return;
    checker.expect(parameter.given(), argument, "given", "none because there is no ", bias);
    check_vectors(checker, argument, gradient, n, *dims);
  };
  check_bias("dbias13", args.dbias13, "bias13", weights.bias13, dims->full);
  check_bias("dbias2", args.dbias2, "bias2", weights.bias2, dims->h);
  check_rows(checker, {"d_preact", args.d_preact}, wide, *dims);
  check_rows(checker, {"activated", args.activated}, {"[m, i]", dims->m, dims->i}, *dims);
  if (delayed) {
    checker.expect(!args.dw13.given() || args.d_preact.given(), "d_preact", "nothing",
                   "a tensor of rank 2 that backward_dw() reads for dw13");
    checker.expect(!args.dw2.given() || args.activated.given(), "activated", "nothing",
                   "a tensor of rank 2 that backward_dw() reads for dw2");
  }
  check_call_options(checker, args.options);
  if (!checker.ok()) return checker.status();
  std::vector<NamedSpans> others = {{"saved.x", spans_of(saved.x)},
                                    {"dout", spans_of(args.dout)},
                                    {"dw_beta", spans_of(args.dw_beta.per_group)}};
  add(&others, weights);
  add(&others, saved.routing);
  // d_preact may take the place of the pre-activation.
  if (!same_elements(args.d_preact, saved.preact)) {
    others.push_back({"saved.preact", spans_of(saved.preact)});
  }
  check_memory(checker,
               {{"dx", spans_of(args.dx)},
                {"dweights", spans_of(args.dweights)},
                {"dw13", spans_of(args.dw13)},
                {"dw2", spans_of(args.dw2)},
                {"dbias13", spans_of(args.dbias13)},
                {"dbias2", spans_of(args.dbias2)},
                {"d_preact", spans_of(args.d_preact)},
                {"activated", spans_of(args.activated)}},
               others, args.options);
  return checker.status();
}

}  // namespace cadre::ops
