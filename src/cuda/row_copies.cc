// See row_copies.h.
#include "cuda/row_copies.h"

#include "cuda/rows/launchers.h"

namespace cadre::cuda {
namespace {

constexpr int64_t kAlignment = 256;

/// Elements from one row of a copy to the next: whole 16 bytes, for TMA.
int64_t copy_stride(int64_t columns, DType dtype) {
  const auto in_16_bytes = static_cast<int64_t>(16 / size_of(dtype));
  return (columns + in_16_bytes - 1) / in_16_bytes * in_16_bytes;
}

size_t copy_bytes(const plan::Problem& problem, const plan::RowSource& source, int64_t columns,
                  DType dtype) {
  if (!source.by_index()) return 0;
  const int64_t bytes =
      problem.m * copy_stride(columns, dtype) * static_cast<int64_t>(size_of(dtype));
  return static_cast<size_t>((bytes + kAlignment - 1) / kAlignment * kAlignment);
}

void see_copy(const plan::Problem& given, int64_t columns, plan::RowSource* source,
              plan::OperandLayout* layout) {
  if (!source->by_index()) return;
  *source = {.rows = given.m};
  *layout = {.placement = Placement::kRows,
             .dtype = layout->dtype,
             .row_stride = copy_stride(columns, layout->dtype),
             .alignment_bytes = 128};
}

Status copy(const plan::Problem& problem, int64_t columns, const TensorView& index, Launch* launch,
            GroupedTensor* tensor) {
  if (!index.given()) return {};
  const int64_t stride = copy_stride(columns, tensor->dtype);
  const TensorView rows =
      TensorView::strided(tensor->data, tensor->dtype, {tensor->rows.uniform, columns},
                          {tensor->row_stride, tensor->col_stride}, tensor->device);
  const TensorView out = TensorView::strided(launch->workspace.scratch(), tensor->dtype,
                                             {problem.m, columns}, {stride, 1}, tensor->device);
  if (Status status =
          rows::launch_permute(*launch, PermuteArgs{.x = rows, .source_row = index, .out = out});
      !status.ok()) {
    return status;
  }
  launch->workspace = launch->workspace.after(copy_bytes(
      problem, {.rows = tensor->rows.uniform, .index = index.dtype}, columns, tensor->dtype));
  *tensor = out;
  return {};
}

}  // namespace

plan::Problem after_copies(const plan::Problem& problem) {
  plan::Problem seen = problem;
  see_copy(problem, problem.k, &seen.lhs_rows, &seen.lhs);
  see_copy(problem, problem.n, &seen.rhs_rows, &seen.rhs);
  return seen;
}

size_t row_copy_bytes(const plan::Problem& problem) {
  return copy_bytes(problem, problem.lhs_rows, problem.k, problem.lhs.dtype) +
         copy_bytes(problem, problem.rhs_rows, problem.n, problem.rhs.dtype);
}

Status copy_rows(const plan::Problem& problem, Launch* launch, plan::Operands* operands) {
  if (Status status = copy(problem, problem.k, operands->lhs_index, launch, &operands->lhs);
      !status.ok()) {
    return status;
  }
  return copy(problem, problem.n, operands->rhs_index, launch, &operands->rhs);
}

}  // namespace cadre::cuda
