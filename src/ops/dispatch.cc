// What the ops share after their checks.
#include "ops/dispatch.h"

#include <algorithm>

#include "backend/registry.h"
#include "ops/memory_span.h"
#include "ops/row_dispatch.h"
#include "plan/group_offsets.h"
#include "plan/grouped_dims.h"

namespace cadre::ops {
namespace {

/// More than any vector load or TMA box asks for; a larger alignment changes no choice.
constexpr uintptr_t kMaxAlignment = 128;

int32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer) | kMaxAlignment;
  return static_cast<int32_t>(address & (~address + 1));
}

/// Of a list: what divides every pointer, or 1 where they lie on a device.
int32_t alignment_of(void* const* pointers, int64_t count, Device pointers_device) {
  if (pointers_device.kind != DeviceKind::kCpu) return 1;
  uintptr_t bits = 0;
  for (int64_t i = 0; i < count; ++i) bits |= reinterpret_cast<uintptr_t>(pointers[i]);
  return alignment_of(reinterpret_cast<const void*>(bits));
}

/// Packed buffers of one shape: every matrix starts at the same element. False where it lies on a
/// device, unless both take it from the same array.
bool same_positions(const GroupedTensor& a, const GroupedTensor& b) {
  if (a.offsets.per_group.data == b.offsets.per_group.data) return true;
  if (!a.offsets.varies() || !b.offsets.varies() || plan::on_device(a.offsets) ||
      plan::on_device(b.offsets)) {
    return false;
  }
  for (int64_t i = 0; i < a.num_groups; ++i) {
    if (plan::value_of(a.offsets, i) != plan::value_of(b.offsets, i)) return false;
  }
  return true;
}

bool same_memory(const GroupedTensor& a, const GroupedTensor& b) {
  if (a.placement != b.placement || a.dtype != b.dtype || a.data != b.data ||
      a.group_stride != b.group_stride || a.row_stride != b.row_stride ||
      a.col_stride != b.col_stride || a.contiguous != b.contiguous) {
    return false;
  }
  if (a.placement == Placement::kPacked) return same_positions(a, b);
  if (a.placement != Placement::kList) return true;
  if (a.pointers == b.pointers) return true;
  return a.pointers_device.kind == DeviceKind::kCpu && b.pointers_device.kind == DeviceKind::kCpu &&
         std::equal(a.pointers, a.pointers + a.num_groups, b.pointers, b.pointers + b.num_groups);
}

Status select(Context& context, const Call& call, const CallOptions& options,
              backend::Selection* selection) {
  if (!context.status().ok()) return context.status();
  if (call.nothing_to_do) {
    return backend::Registry::instance().check_pinned(call.problem.op, options.config);
  }
  return backend::Registry::instance().select(context.state(), call.problem, options.config,
                                              selection);
}

}  // namespace

plan::OperandLayout layout_of(const GroupedTensor& tensor) {
  plan::OperandLayout layout{.placement = tensor.placement,
                             .dtype = tensor.dtype,
                             .group_stride = tensor.group_stride,
                             .row_stride = tensor.contiguous && !tensor.cols.varies()
                                               ? tensor.cols.uniform
                                               : tensor.row_stride,
                             .col_stride = tensor.col_stride,
                             .contiguous = tensor.contiguous};
  layout.alignment_bytes =
      tensor.placement == Placement::kList
          ? alignment_of(tensor.pointers, tensor.num_groups, tensor.pointers_device)
          : alignment_of(tensor.data);
  return layout;
}

int32_t alignment_of(const Scales& scales, int64_t num_groups) {
  return scales.pointers != nullptr
             ? alignment_of(scales.pointers, num_groups, scales.pointers_device)
             : alignment_of(scales.values.data);
}

plan::OperandLayout layout_of(const TensorView& view) { return layout_of(GroupedTensor(view)); }

DType compute_dtype(DType lhs, DType rhs, DType out) {
  if (lhs == DType::kI8 && rhs == DType::kI8) return DType::kI32;
  const bool f64 = lhs == DType::kF64 || rhs == DType::kF64 || out == DType::kF64;
  return f64 ? DType::kF64 : DType::kF32;
}

void check_sizes(Checker& checker, const GroupSizes& sizes, const GroupOffset& group_offset,
                 Tail tail, plan::Problem* problem, std::vector<int64_t>* offsets) {
  const auto tail_value = static_cast<int32_t>(tail);
  checker.expect(tail_value >= 0 && tail_value <= 2, "tail", tail_value,
                 "0 (zero), 1 (untouched) or 2 (forbid)");
  checker.index_array("group_sizes", sizes, problem->device);
  checker.group_offset(group_offset, problem->num_local_groups, sizes.count, problem->device);
  if (!checker.ok()) return;
  problem->num_groups = sizes.count;
  problem->sizes_dtype = sizes.dtype;
  problem->sizes_on_device = sizes.device.kind == DeviceKind::kCuda;
  problem->offset_on_device = group_offset.device_value != nullptr;
  problem->tail = tail;
  if (problem->offset_on_device && problem->device.kind == DeviceKind::kCpu) {
    checker.fail("group_offset is a device value, expected a host value for tensors on the cpu");
  }
  if (problem->sizes_on_device || !checker.ok()) return;
  checker.take(plan::make_group_offsets(checker.op(), sizes, problem->m, tail, offsets));
}

int64_t check_row_source(Checker& checker, std::string_view argument, int64_t rows,
                         const TensorView& index, const plan::Problem& problem,
                         plan::RowSource* source) {
  *source = {.rows = rows};
  if (!index.given()) return rows;
  const std::string name = text(argument, "_rows");
  check_row_operand(checker, {name, index}, 1, problem);
  check_row_indices(checker, {name, index}, text(argument, ".shape[0]"), rows);
  source->index = index.dtype;
  return index.shape[0];
}

void check_scalars(Checker& checker, const ScalarArgs& args, Call* call) {
  plan::Problem& problem = call->problem;
  plan::Operands& operands = call->operands;
  checker.scalars("alpha", args.alpha, problem.num_local_groups, problem.device);
  checker.scalars("beta", args.beta, problem.num_local_groups, problem.device);
  if (args.accumulate &&
      (args.beta.varies() || (args.beta.uniform != 0 && args.beta.uniform != 1))) {
    checker.fail("accumulate = true and beta is given, expected one of them");
  }
  operands.epilogue.alpha = args.alpha;
  operands.epilogue.beta = args.accumulate ? GroupScalars(1.0) : args.beta;
  operands.epilogue.c = args.c.given() ? args.c : operands.out;
  problem.epilogue.has_alpha = args.alpha.varies() || args.alpha.uniform != 1;
  problem.epilogue.has_beta =
      operands.epilogue.beta.varies() || operands.epilogue.beta.uniform != 0;
  if (!checker.ok()) return;
  if (args.c.given()) {
    checker.same_device("c", args.c.device, "out", operands.out.device);
    if (operands.out.dtype == DType::kI32) {
      checker.expect(args.c.dtype == DType::kI32, "c.dtype", name_of(args.c.dtype),
                     "i32 because out.dtype = i32");
    } else {
      checker.float_dtype("c", args.c.dtype);
    }
    if (problem.epilogue.has_beta && !same_memory(args.c, operands.out))
      problem.epilogue.c = layout_of(args.c);
  }
  if (operands.out.dtype != DType::kI32) return;
  checker.expect(!problem.epilogue.has_alpha, "alpha", "given", "1 because out.dtype = i32");
  checker.expect(!operands.epilogue.beta.varies() &&
                     (operands.epilogue.beta.uniform == 0 || operands.epilogue.beta.uniform == 1),
                 "beta", operands.epilogue.beta.uniform, "0 or 1 because out.dtype = i32");
}

void check_options(Checker& checker, const CallOptions& options, plan::Problem* problem) {
  const auto precision = static_cast<int32_t>(options.precision);
  checker.expect(precision == 0 || precision == 1, "options.precision", precision,
                 "0 (default) or 1 (tf32)");
  checker.expect(options.average_rows >= 0, "options.average_rows", options.average_rows,
                 "0 or more");
  if (options.workspace == nullptr) {
    checker.expect(options.workspace_size_bytes == 0, "options.workspace", "null",
                   options.workspace_size_bytes, " bytes of workspace");
  }
  problem->precision = options.precision;
  problem->fast_accumulation = options.fast_accumulation && problem->lhs_scales.given();
  problem->average_rows = options.average_rows;
  if (problem->average_rows == 0 && problem->num_groups > 0) {
    problem->average_rows = problem->m / problem->num_groups;
  }
}

std::vector<int64_t> local_group_rows(const Call& call) {
  const std::vector<int64_t>& offsets = call.operands.host_offsets;
  std::vector<int64_t> rows;
  if (offsets.empty() || call.problem.offset_on_device) return rows;
  const auto* first = offsets.data() + call.operands.group_offset.value;
  for (int64_t i = 0; i < call.problem.num_local_groups; ++i) {
    rows.push_back(first[i + 1] - first[i]);
  }
  return rows;
}

void check_overlaps(Checker& checker, const Call& call, std::string_view output) {
  if (!checker.ok()) return;
  // A list of gmm's results declares room for the largest group; only a group's own rows count.
  const std::vector<int64_t> local_rows = local_group_rows(call);
  const auto spans_of_result = [&](GroupedTensor tensor) {
    if (call.problem.op == plan::Op::kGmm && tensor.placement == Placement::kList &&
        !local_rows.empty()) {
      tensor.rows = GroupSizes(local_rows.data(), DType::kI64, tensor.num_groups);
    }
    return spans_of(tensor);
  };
  const plan::Operands& operands = call.operands;
  const plan::Epilogue& epilogue = operands.epilogue;
  const bool own_names = call.problem.op == plan::Op::kGroupedGemm;
  const int64_t groups = call.problem.num_local_groups;
  const auto against_inputs = [&](OverlapCheck& check) {
    const auto input = [&check](std::string_view argument, const auto& tensor) {
      if (tensor.given()) check.input(argument, spans_of(tensor));
    };
    const auto indices = [&check](std::string_view argument, const GroupSizes& sizes) {
      check.input(argument,
                  spans_of(TensorView::contiguous(sizes.data, sizes.dtype, {sizes.count})));
    };
    input(own_names ? "a" : "lhs", operands.lhs);
    input(own_names ? "b" : "rhs", operands.rhs);
    check.input(own_names ? "a.scales" : "lhs.scales", spans_of(operands.lhs_scales, groups));
    check.input(own_names ? "b.scales" : "rhs.scales", spans_of(operands.rhs_scales, groups));
    input("lhs_rows", operands.lhs_index);
    input("rhs_rows", operands.rhs_index);
    input("bias", epilogue.bias);
    input("bias_scale", epilogue.bias_scale);
    input("row_scale", epilogue.row_scale);
    input("alpha", epilogue.alpha.per_group);
    input("beta", epilogue.beta.per_group);
    indices("group_sizes", operands.group_sizes);
    const GroupOffset& offset = operands.group_offset;
    if (offset.device_value != nullptr) {
      indices("group_offset", {offset.device_value, offset.dtype, 1});
    }
  };
  const GroupedTensor& out = operands.out;
  check_elements_apart(checker, output, out);
  OverlapCheck check(checker, output, spans_of_result(out));
  against_inputs(check);
  if (!same_memory(epilogue.c, out)) check.input("c", spans_of_result(epilogue.c));
  if (!epilogue.preactivation.given()) return;
  check_elements_apart(checker, "preactivation", epilogue.preactivation);
  OverlapCheck beside(checker, "preactivation", spans_of(epilogue.preactivation));
  against_inputs(beside);
  beside.input(output, spans_of_result(out));
}

Status run(Context& context, const Call& call, const CallOptions& options) {
  backend::Selection selection;
  if (Status status = select(context, call, options, &selection); !status.ok()) return status;
  if (call.nothing_to_do) return {};
  return selection.backend->run(context.state(), call.problem, selection.config, call.operands,
                                options);
}

Status workspace_size(Context& context, const Call& call, const CallOptions& options,
                      size_t* size_bytes) {
  *size_bytes = 0;
  backend::Selection selection;
  if (Status status = select(context, call, options, &selection); !status.ok()) return status;
  if (call.nothing_to_do) return {};
  *size_bytes = selection.backend->workspace_size(call.problem, selection.config);
  return {};
}

}  // namespace cadre::ops
