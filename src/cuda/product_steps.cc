// See product_steps.h.
#include "cuda/product_steps.h"

#include <algorithm>

#include "cuda/rows/launchers.h"
#include "cuda/rows/quantize_bands.h"

namespace cadre::cuda {
namespace {

constexpr int64_t kAlignment = 256;

/// A matrix of m rows in the workspace.
struct ScratchRows {
  int64_t m;
  int64_t columns;
  DType dtype;

  /// Elements from one row to the next: whole 16 bytes, for TMA.
  int64_t stride() const {
    const auto in_16_bytes = static_cast<int64_t>(16 / size_of(dtype));
    return (columns + in_16_bytes - 1) / in_16_bytes * in_16_bytes;
  }
  size_t bytes() const {
    const int64_t used = m * stride() * static_cast<int64_t>(size_of(dtype));
    return static_cast<size_t>((used + kAlignment - 1) / kAlignment * kAlignment);
  }
  plan::OperandLayout layout() const {
    return {.placement = Placement::kRows,
            .dtype = dtype,
            .row_stride = stride(),
            .alignment_bytes = 128};
  }
  /// At the beginning of the scratch, which begins behind it afterwards.
  TensorView take(Launch* launch, Device device) const {
    void* data = launch->workspace.scratch();
    launch->workspace = launch->workspace.after(bytes());
    return TensorView::strided(data, dtype, {m, columns}, {stride(), 1}, device);
  }
};

ScratchRows lhs_copy(const plan::Problem& p) { return {p.m, p.k, p.lhs.dtype}; }
ScratchRows rhs_copy(const plan::Problem& p) { return {p.m, p.n, p.rhs.dtype}; }
ScratchRows preactivation(const plan::Problem& p) { return {p.m, p.n, p.out.dtype}; }

Status copy_rows(const ScratchRows& copy, const TensorView& index, Launch* launch,
                 GroupedTensor* tensor) {
  if (!index.given()) return {};
  const TensorView rows =
      TensorView::strided(tensor->data, tensor->dtype, {tensor->rows.uniform, copy.columns},
                          {tensor->row_stride, tensor->col_stride}, tensor->device);
  const TensorView out = copy.take(launch, tensor->device);
  *tensor = out;
  return rows::launch_permute(*launch, {.x = rows, .source_row = index, .out = out});
}

/// The scales of gmm's rows, which are taken by the same index; none where one scale is for all.
bool has_row_scales(const plan::Problem& p) {
  return p.lhs_rows.by_index() && p.lhs_scales.given() && p.lhs_scales.mode != ScaleMode::kTensor;
}
ScratchRows scale_copy(const plan::Problem& p) {
  const int64_t block = plan::inner_block_of(p.lhs_scales.mode);
  return {p.m, block == 0 ? 1 : (p.k + block - 1) / block, p.lhs_scales.dtype};
}

Status copy_scales(const plan::Problem& problem, const TensorView& index, Launch* launch,
                   Scales* scales) {
  const ScratchRows copy = scale_copy(problem);
  const plan::ScaleForm& form = problem.lhs_scales;
  const TensorView rows =
      TensorView::strided(scales->values.data, form.dtype, {problem.lhs_rows.rows, copy.columns},
                          {form.outer_stride, form.inner_stride}, problem.device);
  const TensorView out = copy.take(launch, problem.device);
  *scales = Scales(scales->mode, out);
  return rows::launch_permute(*launch, {.x = rows, .source_row = index, .out = out});
}

// Widening. tgmm's rows come out of their column-wise copies in their own order, as many as a copy
// has room for; weights are the rows of all groups.
ScratchRows widened_lhs(const plan::Problem& p) { return {p.m, p.k, DType::kBF16}; }
ScratchRows widened_rhs(const plan::Problem& p) {
  if (p.op == plan::Op::kTgmm) return {p.m, p.n, DType::kBF16};
  return {p.num_local_groups * p.n, p.k, DType::kBF16};
}
plan::OperandLayout widened_weights(const plan::Problem& p) {
  plan::OperandLayout layout = widened_rhs(p).layout();
  layout.placement = Placement::kStacked;
  layout.group_stride = p.n * layout.row_stride;
  return layout;
}

/// dequantize as a step of tgmm, whose groups it needs, or of gmm.
plan::Problem widening_of(const plan::Problem& product, const plan::ScaleForm& form, int64_t m,
                          int64_t n) {
  plan::Problem rows;
  rows.op = plan::Op::kDequantize;
  rows.device = product.device;
  rows.m = m;
  rows.n = n;
  rows.lhs_scales = form;
  rows.num_groups = rows.num_local_groups = 1;
  if (product.op != plan::Op::kTgmm) return rows;
  rows.num_groups = rows.num_local_groups = product.num_groups;
  rows.sizes_on_device = product.sizes_on_device;
  rows.sizes_dtype = product.sizes_dtype;
  return rows;
}

/// tgmm's bands, behind both operands.
size_t bands_room(const plan::Problem& p) {
  const size_t bands = rows::bands_bytes(widening_of(p, p.lhs_scales, p.m, p.k));
  return (bands + kAlignment - 1) / kAlignment * kAlignment;
}

size_t widening_bytes(const plan::Problem& p) {
  return widened_lhs(p).bytes() + widened_rhs(p).bytes() + bands_room(p);
}

/// What both column-wise copies hold: a group that is beyond one of them has no rows in either.
rows::ColumnRoom column_room(const plan::Problem& p, const plan::Operands& operands) {
  return {.capacity = std::min(operands.lhs.cols.uniform, operands.rhs.cols.uniform),
          .lines = std::min(p.lhs_scales.lines, p.rhs_scales.lines),
          .line_rows = plan::inner_block_of(p.lhs_scales.mode)};
}

Status widen_rows(const Launch& launch, const plan::Problem& problem, const plan::ScaleForm& form,
                  const plan::Operands& operands, const GroupedTensor& codes, const Scales& scales,
                  const TensorView& out) {
  const bool copies = problem.op == plan::Op::kTgmm;
  ScaledTensor x(
      TensorView::strided(codes.data, codes.dtype, {codes.rows.uniform, codes.cols.uniform},
                          {codes.row_stride, codes.col_stride}, problem.device),
      scales);
  x.columns = copies;
  DequantizeArgs args{.x = x, .out = out};
  rows::ColumnRoom room;
  if (copies) {
    args.group_sizes = operands.group_sizes;
    room = column_room(problem, operands);
  }
  return rows::launch_dequantize(launch, widening_of(problem, form, out.shape[0], out.shape[1]),
                                 args, room);
}

Status widen_weights(const Launch& launch, const plan::Problem& problem,
                     const plan::Operands& operands, const GroupedTensor& out) {
  const GroupedTensor& codes = operands.rhs;
  const std::initializer_list<int64_t> shape = {problem.num_local_groups, problem.n, problem.k};
  plan::Problem rows = widening_of(problem, problem.rhs_scales, problem.n, problem.k);
  rows.num_groups = rows.num_local_groups = problem.num_local_groups;
  // Weights [g, k, n] are read along their columns.
  const bool as_it_lies = problem.transpose_rhs;
  const ScaledTensor x(
      TensorView::strided(codes.data, codes.dtype, shape,
                          {codes.group_stride, as_it_lies ? codes.row_stride : codes.col_stride,
                           as_it_lies ? codes.col_stride : codes.row_stride},
                          problem.device),
      operands.rhs_scales);
  return rows::launch_dequantize(
      launch, rows,
      {.x = x,
       .out = TensorView::strided(out.data, out.dtype, shape, {out.group_stride, out.row_stride, 1},
                                  problem.device)},
      {});
}

/// Both operands become bf16 at the beginning of the scratch.
Status widen(const plan::Problem& problem, Launch* launch, plan::Operands* operands) {
  const TensorView lhs = widened_lhs(problem).take(launch, problem.device);
  const TensorView rhs = widened_rhs(problem).take(launch, problem.device);
  Status status = widen_rows(*launch, problem, problem.lhs_scales, *operands, operands->lhs,
                             operands->lhs_scales, lhs);
  if (!status.ok()) return status;
  GroupedTensor weights = rhs;
  if (problem.op == plan::Op::kTgmm) {
    status = widen_rows(*launch, problem, problem.rhs_scales, *operands, operands->rhs,
                        operands->rhs_scales, rhs);
  } else {
    weights =
        TensorView::strided(rhs.data, rhs.dtype, {problem.num_local_groups, problem.n, problem.k},
                            {problem.n * rhs.strides[0], rhs.strides[0], 1}, problem.device);
    status = widen_weights(*launch, problem, *operands, weights);
  }
  launch->workspace = launch->workspace.after(bands_room(problem));
  operands->lhs = lhs;
  operands->rhs = weights;
  operands->lhs_scales = operands->rhs_scales = {};
  return status;
}

Status activate(const Launch& launch, const plan::Problem& problem, const plan::Operands& operands,
                const TensorView& preact) {
  const Activation& activation = operands.epilogue.activation;
  plan::Problem rows;
  rows.op = plan::Op::kActivate;
  rows.device = problem.device;
  rows.m = problem.m;
  rows.n = problem.n / activation.columns();
  rows.compute = problem.compute;
  const GroupedTensor& out = operands.out;
  return rows::launch_activate(
      launch, rows,
      {.preact = preact,
       .activation = activation,
       .out = TensorView::strided(out.data, out.dtype, {rows.m, rows.n},
                                  {out.row_stride, out.col_stride}, out.device)});
}

}  // namespace

bool can_widen(const plan::Problem& problem) {
  const bool mx =
      problem.lhs_scales.mode == ScaleMode::kMx && problem.rhs_scales.mode == ScaleMode::kMx;
  if (!mx || std::min({problem.m, problem.n, problem.k, problem.num_local_groups}) < 1) {
    return false;
  }
  if (problem.op == plan::Op::kTgmm) {
    return problem.lhs_scales.columns && problem.rhs_scales.columns;
  }
  return problem.op == plan::Op::kGmm && !problem.rhs_scales.list &&
         problem.rhs.placement == Placement::kStacked;
}

plan::Problem kernel_problem(const plan::Problem& problem, const ProductSteps& steps) {
  plan::Problem seen = problem;
  if (steps.copies_rows && seen.lhs_rows.by_index()) {
    seen.lhs = lhs_copy(problem).layout();
    seen.lhs_rows = {.rows = problem.m};
    if (has_row_scales(problem)) {
      seen.lhs_scales.outer_stride = scale_copy(problem).stride();
      seen.lhs_scales.inner_stride = 1;
    }
  }
  if (steps.copies_rows && seen.rhs_rows.by_index()) {
    seen.rhs = rhs_copy(problem).layout();
    seen.rhs_rows = {.rows = problem.m};
  }
  if (steps.widens) {
    seen.lhs = widened_lhs(problem).layout();
    seen.rhs =
        problem.op == plan::Op::kTgmm ? widened_rhs(problem).layout() : widened_weights(problem);
    seen.lhs_scales = seen.rhs_scales = {};
    if (problem.op == plan::Op::kGmm) seen.transpose_rhs = true;
  }
  if (steps.separate_activation) {
    const plan::OperandLayout& given = problem.epilogue.preactivation;
    seen.out = given.given() ? given : preactivation(problem).layout();
    seen.epilogue.activation = {};
    seen.epilogue.preactivation = {};
  }
  return seen;
}

size_t step_bytes(const plan::Problem& problem, const plan::Config& config) {
  size_t bytes = 0;
  if (config.copies_rows && problem.lhs_rows.by_index()) bytes += lhs_copy(problem).bytes();
  if (config.copies_rows && has_row_scales(problem)) bytes += scale_copy(problem).bytes();
  if (config.copies_rows && problem.rhs_rows.by_index()) bytes += rhs_copy(problem).bytes();
  if (config.widens) bytes += widening_bytes(problem);
  if (config.separate_activation && !problem.epilogue.preactivation.given()) {
    bytes += preactivation(problem).bytes();
  }
  return bytes;
}

Status launch_steps(const KernelFamily& family, Launch launch, const plan::Problem& problem,
                    const plan::Config& config, const plan::Operands& operands) {
  if (!config.copies_rows && !config.widens && !config.separate_activation) {
    return family.launch(launch, problem, config, operands);
  }
  plan::Operands seen = operands;
  Status status;
  if (config.copies_rows) {
    status = copy_rows(lhs_copy(problem), operands.lhs_index, &launch, &seen.lhs);
    if (status.ok() && has_row_scales(problem)) {
      status = copy_scales(problem, operands.lhs_index, &launch, &seen.lhs_scales);
    }
    if (status.ok()) status = copy_rows(rhs_copy(problem), operands.rhs_index, &launch, &seen.rhs);
    if (!status.ok()) return status;
  }
  if (config.widens) {
    const plan::Problem rows = kernel_problem(problem, {.copies_rows = config.copies_rows});
    if (status = widen(rows, &launch, &seen); !status.ok()) return status;
  }
  TensorView preact = operands.epilogue.preactivation;
  if (config.separate_activation) {
    if (!preact.given()) preact = preactivation(problem).take(&launch, problem.device);
    seen.out = seen.epilogue.c = preact;
    seen.epilogue.activation = {};
    seen.epilogue.preactivation = {};
  }
  const plan::Problem kernel = kernel_problem(problem, ProductSteps::of(config));
  if (status = family.launch(launch, kernel, config, seen); !status.ok()) return status;
  return config.separate_activation ? activate(launch, problem, operands, preact) : Status{};
}

}  // namespace cadre::cuda
