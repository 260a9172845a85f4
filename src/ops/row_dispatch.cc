// Checks and dispatch of the row ops.
#include "ops/row_dispatch.h"

#include <algorithm>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "ops/memory_span.h"
#include "plan/group_offsets.h"

namespace cadre::ops {
namespace {

/// Stops at the first index that is out of range.
void check_host_indices(Checker& checker, NamedView indices, std::string_view limit_name,
                        int64_t limit) {
  const TensorView& view = indices.view;
  const int64_t columns = view.rank == 2 ? view.shape[1] : 1;
  const int64_t column_stride = view.rank == 2 ? view.strides[1] : 0;
  for (int64_t i = 0; i < view.shape[0]; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t value =
          plan::read_index(view.data, view.dtype, i * view.strides[0] + j * column_stride);
      if (value >= -1 && value < limit) continue;
      const std::string at = view.rank == 2 ? text(i, ", ", j) : text(i);
      checker.fail(indices.argument, "[", at, "] = ", value, ", expected -1 or 0 to ", limit_name,
                   " - 1 = ", limit - 1);
      return;
    }
  }
}

bool repeats_an_address(const TensorView& view) {
  int64_t dims[3] = {1, 1, 1};
  int64_t strides[3] = {0, 0, 0};
  for (size_t i = 0; i < static_cast<size_t>(view.rank); ++i) {
    dims[i] = view.shape[i];
    strides[i] = view.strides[i];
  }
  return overlaps_itself(dims, strides);
}

Status select(Context& context, const plan::Problem& problem, const CallOptions& options,
              backend::Selection* selection) {
  if (!context.status().ok()) return context.status();
  return backend::Registry::instance().select(context.state(), problem, options.config, selection);
}

}  // namespace

void check_row_operand(Checker& checker, NamedView operand, int32_t rank,
                       const plan::Problem& problem) {
  checker.view(operand.argument, operand.view, rank);
  if (!checker.ok()) return;
  checker.expect(operand.view.device == problem.device, joined(operand.argument, ".device"),
                 device_name(operand.view.device), device_name(problem.device),
                 ", the device of the other tensors");
}

void check_row_indices(Checker& checker, NamedView indices, std::string_view limit_name,
                       int64_t limit) {
  if (!checker.ok()) return;
  const DType dtype = indices.view.dtype;
  checker.expect(dtype == DType::kI32 || dtype == DType::kI64, joined(indices.argument, ".dtype"),
                 name_of(dtype), "i32 or i64");
  if (checker.ok() && indices.view.device.kind == DeviceKind::kCpu) {
    check_host_indices(checker, indices, limit_name, limit);
  }
}

void check_row_memory(Checker& checker, std::initializer_list<NamedView> outputs,
                      std::initializer_list<NamedView> inputs) {
  if (!checker.ok()) return;
  std::vector<NamedSpans> others;
  for (const NamedView& input : inputs) {
    others.push_back({input.argument, spans_of(input.view)});
  }
  for (const NamedView& output : outputs) {
    if (!output.view.given()) continue;
    if (repeats_an_address(output.view)) {
      checker.fail(output.argument, " overlaps itself, expected every element at its own address");
      return;
    }
    check_overlap(checker, output.argument, spans_of(output.view), others);
    others.push_back({output.argument, spans_of(output.view)});
  }
}

DType row_compute_dtype(std::initializer_list<NamedView> views) {
  const bool f64 = std::any_of(views.begin(), views.end(), [](const NamedView& named) {
    return named.view.given() && named.view.dtype == DType::kF64;
  });
  return f64 ? DType::kF64 : DType::kF32;
}

Status run_rows(Context& context, const plan::Problem& problem, const plan::RowCall& call,
                const CallOptions& options) {
  backend::Selection selection;
  if (Status status = select(context, problem, options, &selection); !status.ok()) return status;
  return selection.backend->run_rows(context.state(), problem, selection.config, call, options);
}

Status rows_workspace_size(Context& context, const plan::Problem& problem,
                           const CallOptions& options, size_t* size_bytes) {
  *size_bytes = 0;
  backend::Selection selection;
  if (Status status = select(context, problem, options, &selection); !status.ok()) return status;
  *size_bytes = selection.backend->workspace_size(problem, selection.config);
  return {};
}

}  // namespace cadre::ops
