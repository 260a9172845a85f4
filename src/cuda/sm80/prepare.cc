// Fills PrepareArguments from a call.
#include "cuda/sm80/prepare.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "plan/group_offsets.h"

namespace cadre::sm80 {
namespace {

ExtentArguments extent_arguments(const Extent& extent, cuda::CarriedWords* words) {
  ExtentArguments args{.uniform = extent.uniform, .max = extent.max};
  if (!extent.varies()) return args;
  const GroupSizes& values = extent.per_group;
  if (values.device.kind == DeviceKind::kCuda) {
    args.values = values.data;
    args.form = cuda::form_of(values.dtype);
    return args;
  }
  // Host values were checked by the op.
  std::vector<int64_t> wide(static_cast<size_t>(values.count));
  for (int64_t i = 0; i < values.count; ++i) {
    wide[static_cast<size_t>(i)] = plan::read_index(values.data, values.dtype, i);
  }
  args.values = words->add(wide.data(), values.count);
  args.max = INT64_MAX;
  return args;
}

TensorArguments tensor_arguments(const GroupedTensor& tensor, cuda::CarriedWords* words) {
  TensorArguments args{.placement = tensor.placement,
                       .element_bytes = static_cast<int32_t>(size_of(tensor.dtype)),
                       .data = static_cast<char*>(tensor.data),
                       .pointers = words->add_list(tensor),
                       .group_stride = tensor.group_stride,
                       .row_stride = tensor.row_stride,
                       .col_stride = tensor.col_stride,
                       .contiguous = tensor.contiguous,
                       .capacity = tensor.capacity};
  if (tensor.contiguous && !tensor.cols.varies()) args.row_stride = tensor.cols.uniform;
  args.rows = extent_arguments(tensor.rows, words);
  args.cols = extent_arguments(tensor.cols, words);
  if (tensor.placement == Placement::kPacked) {
    args.offsets = extent_arguments(tensor.offsets, words);
  }
  return args;
}

ScalarArguments scalar_arguments(const GroupScalars& scalars) {
  ScalarArguments args{.uniform = scalars.uniform};
  if (!scalars.varies()) return args;
  args.values = scalars.per_group.data;
  args.stride = scalars.per_group.strides[0];
  args.is_f64 = scalars.per_group.dtype == DType::kF64;
  return args;
}

ScaleArguments scale_arguments(const plan::Problem& problem, const plan::ScaleForm& form,
                               const Scales& scales, bool of_lhs, cuda::CarriedWords* words) {
  if (!form.given()) return {};
  ScaleArguments args{.data = static_cast<const char*>(scales.values.data),
                      .is_e8m0 = form.dtype == DType::kE8M0,
                      .outer_block = form.outer_block,
                      .inner_block = plan::inner_block_of(form.mode),
                      .group_stride = form.group_stride,
                      .outer_stride = form.outer_stride,
                      .inner_stride = form.inner_stride};
  if (form.list) {
    const bool on_device = scales.pointers_device.kind == DeviceKind::kCuda;
    args.pointers =
        on_device ? scales.pointers : words->add(scales.pointers, problem.num_local_groups);
  }
  if (form.columns) {
    // A line is a group's or a block's; lines of blocks are told apart by where the group begins.
    args.begin_stride = args.inner_block == 0 ? form.group_stride : form.inner_stride;
    args.group_stride = 0;
  } else if (problem.op == plan::Op::kGmm && of_lhs) {
    args.group_stride = 0;
    args.begin_stride = problem.lhs_rows.by_index() ? 0 : form.outer_stride;
  } else if (problem.op == plan::Op::kTgmm) {
    args.group_stride = 0;
  }
  return args;
}

/// The copies have the same groups, so the smaller one bounds both.
ColumnArguments column_arguments(const plan::Problem& problem, const plan::Operands& operands) {
  ColumnArguments args{.a = problem.lhs_scales.columns,
                       .b = problem.rhs_scales.columns,
                       .capacity = INT64_MAX,
                       .lines = INT64_MAX};
  for (const auto& [form, tensor] : {std::pair{&problem.lhs_scales, &operands.lhs},
                                     std::pair{&problem.rhs_scales, &operands.rhs}}) {
    if (!form->columns) continue;
    args.capacity = std::min(args.capacity, tensor->cols.uniform);
    args.line_rows = plan::inner_block_of(form->mode);
    if (args.line_rows != 0) args.lines = std::min(args.lines, form->lines);
  }
  return args;
}

}  // namespace

Status prepare(const cuda::Launch& launch, const plan::Problem& problem, const plan::Config& config,
               const plan::Operands& operands, PrepareArguments* args) {
  cuda::CarriedWords words(launch);
  args->op = problem.op;
  args->transpose_a = problem.transpose_lhs;
  args->transpose_b = problem.transpose_rhs;
  args->reads_c = problem.epilogue.has_beta;
  if (problem.op == plan::Op::kGroupedGemm) {
    args->groups = {.num_groups = problem.num_groups,
                    .num_local = problem.num_local_groups,
                    .fault = launch.fault};
  } else {
    args->groups = cuda::group_inputs(launch, problem, operands.group_sizes, operands.host_offsets,
                                      operands.group_offset, &words);
  }
  args->offsets = launch.workspace.offsets();
  args->n = problem.n;
  args->k = problem.k;
  args->a = tensor_arguments(operands.lhs, &words);
  args->by_index = problem.lhs_rows.by_index() || problem.rhs_rows.by_index();
  args->b = tensor_arguments(operands.rhs, &words);
  args->d = tensor_arguments(operands.out, &words);
  // Without C of its own (or with one that is out) nothing more has to be carried.
  args->c = problem.epilogue.has_beta && problem.epilogue.c.given()
                ? tensor_arguments(operands.epilogue.c, &words)
                : args->d;
  args->bias = tensor_arguments(operands.epilogue.bias, &words);
  args->columns = column_arguments(problem, operands);
  args->a_scales = scale_arguments(problem, problem.lhs_scales, operands.lhs_scales, true, &words);
  args->b_scales = scale_arguments(problem, problem.rhs_scales, operands.rhs_scales, false, &words);
  args->alpha = scalar_arguments(operands.epilogue.alpha);
  args->beta = scalar_arguments(operands.epilogue.beta);
  args->tile_m = config.tile_m;
  args->tile_n = config.tile_n;
  args->only_if = launch.only_if;
  args->table = GroupEntries::at(launch.workspace.scratch(),
                                 table_groups(problem.num_local_groups, args->zeroes_other_rows));
  if (Status status = words.send(); !status.ok()) return status;
  return launch_prepare(launch, *args);
}

}  // namespace cadre::sm80
