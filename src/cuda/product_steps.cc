// See product_steps.h.
#include "cuda/product_steps.h"

#include "cuda/rows/launchers.h"

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
  if (config.separate_activation && !problem.epilogue.preactivation.given()) {
    bytes += preactivation(problem).bytes();
  }
  return bytes;
}

Status launch_steps(const KernelFamily& family, Launch launch, const plan::Problem& problem,
                    const plan::Config& config, const plan::Operands& operands) {
  if (!config.copies_rows && !config.separate_activation) {
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
