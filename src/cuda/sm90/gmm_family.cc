// From Problem and Operands to a GmmCall, and the reasons for which the kernels refuse a problem.
#include <algorithm>
#include <array>
#include <limits>

#include "core/activation_math.h"
#include "core/text.h"
#include "cuda/rows/launchers.h"
#include "cuda/sm90/families.h"
#include "cuda/sm90/launch.h"
#include "cuda/sm90/lists.h"

namespace cadre::sm90 {
namespace {

struct GmmKernel : cuda::FamilyKernel {
  GmmShapeKind shape;
};

/// In the order of GmmShapeKind.
constexpr auto kKernels = [] {
  std::array<GmmKernel, kGmmShapes.size()> kernels{};
  for (size_t i = 0; i < kernels.size(); ++i) {
    kernels[i] = {{{}, &gmm_family}, static_cast<GmmShapeKind>(i)};
  }
  return kernels;
}();
constexpr auto kNames = [] {
  std::array<std::string_view, kGmmShapes.size()> names{};
  for (size_t i = 0; i < names.size(); ++i) names[i] = kGmmShapes[i].name;
  return names;
}();

GmmShapeKind shape_called(std::string_view name) {
  return static_cast<GmmShapeKind>(std::find(kNames.begin(), kNames.end(), name) - kNames.begin());
}

/// rhs as the kernel sees it: a matrix stored column by column is its transpose stored row by row.
struct WeightsLayout {
  bool transposed;
  int64_t row_stride;
};

bool weights_layout(const plan::Problem& problem, WeightsLayout* layout) {
  const plan::OperandLayout& rhs = problem.rhs;
  if (rhs.col_stride == 1) {
    *layout = {problem.transpose_rhs, rhs.row_stride};
    return true;
  }
  *layout = {!problem.transpose_rhs, rhs.col_stride};
  return rhs.row_stride == 1;
}

/// What the copy engine must know of an operand's matrices.
struct Rows {
  int64_t columns;  ///< elements of a row
  int64_t stride;
  int64_t groups = 1;  ///< of a stacked operand
};

/// Why an operand can't be read or written by the copy engine; empty when it can.
std::string refuse_operand(std::string_view name, const plan::OperandLayout& layout,
                           const Rows& rows) {
  constexpr int64_t kMaxStrideBytes = int64_t{1} << 34;  // the ragged map's own limit, below TMA's
  const auto size = static_cast<int64_t>(size_of(layout.dtype));
  if (layout.alignment_bytes < 16 && !is_unread_list(layout)) {
    return text(name, ": base isn't known to be a multiple of 16 bytes");
  }
  if (rows.stride < rows.columns) {
    return text(name, ": row stride ", rows.stride, " must be at least its ", rows.columns,
                " columns");
  }
  if (rows.stride >= kMaxStrideBytes / size || rows.stride * size % 16 != 0) {
    return text(name, ": row stride ", rows.stride, " elements (", rows.stride * size,
                " bytes) must be a multiple of 16 bytes below 2^34");
  }
  if (layout.placement != Placement::kStacked || rows.groups == 1) return {};
  if (layout.group_stride < 1 || layout.group_stride >= kMaxStrideBytes * 32 / size ||
      layout.group_stride * size % 16 != 0) {
    return text(name, ": group stride ", layout.group_stride,
                " elements must be a positive multiple of 16 bytes below 2^39");
  }
  return {};
}

/// Columns of out.
int64_t out_columns(const plan::Problem& problem) {
  return problem.n / problem.epilogue.activation.columns();
}

ActivationForm form_of(const Activation& activation) {
  if (activation.kind == ActivationKind::kNone) return ActivationForm::kNone;
  if (!activation.gated()) return ActivationForm::kEach;
  return activation.layout == GateLayout::kInterleaved ? ActivationForm::kPairs
                                                       : ActivationForm::kHalves;
}

/// Why the epilogue doesn't apply the activation; empty when it does.
std::string refuse_activation(const plan::Problem& problem, bool rows_of_k) {
  const Activation& activation = problem.epilogue.activation;
  const plan::OperandLayout& preactivation = problem.epilogue.preactivation;
  if (problem.out.dtype != problem.lhs.dtype) return "an activation's result has lhs's type";
  if (out_columns(problem) % 8 != 0) {
    return "an activation's result must have a multiple of 8 columns";
  }
  if (activation.kind == ActivationKind::kGegluErf &&
      !takes_normal(form_of(activation), rows_of_k)) {
    return "geglu (erf) of concatenated gates needs rhs [g, n, k]";
  }
  if (!preactivation.given()) return {};
  if (preactivation.col_stride != 1) return "preactivation: rows aren't contiguous";
  return refuse_operand("preactivation", preactivation, {problem.n, preactivation.row_stride});
}

ActivationArguments activation_arguments(const Activation& activation) {
  ActivationArguments args{.limit = std::numeric_limits<float>::infinity()};
  switch (activation.kind) {
    case ActivationKind::kGeluTanh:
    case ActivationKind::kGegluTanh:
      args.is_cubic = true;
      args.linear = kGeluTwice<float>;
      args.cubic = kGeluCubic<float>;
      break;
    case ActivationKind::kGeluErf:
    case ActivationKind::kGegluErf:
      args.function = ActivationFunction::kNormal;
      break;
    case ActivationKind::kRelu2:
      args.function = ActivationFunction::kSquare;
      break;
    case ActivationKind::kClampedSwiglu:
      args.limit = static_cast<float>(activation.limit);
      args.linear = static_cast<float>(activation.alpha);
      args.up_offset = static_cast<float>(activation.up_offset);
      break;
    default:  // silu and swiglu
      break;
  }
  return args;
}

/// Why the epilogue doesn't make the gradient of an activation; empty when it does. Nothing here
/// may depend on the number of rows: a row's dot product would.
std::string refuse_gradient(const plan::Problem& problem) {
  const plan::ActivationGradientForm& gradient = problem.epilogue.gradient;
  const plan::EpilogueForm& epilogue = problem.epilogue;
  if (is_fp8(problem.lhs.dtype) || problem.out.dtype != problem.lhs.dtype ||
      gradient.preact.dtype != problem.out.dtype) {
    return "the gradient of an activation needs lhs, out and preact of one 16-bit type";
  }
  if (problem.n % 8 != 0) return "a gradient's activation must have a multiple of 8 columns";
  if (epilogue.has_alpha || epilogue.has_beta || epilogue.bias.given() || epilogue.has_row_scale ||
      epilogue.has_bias_scale) {
    return "with the gradient of an activation there is nothing else in the epilogue";
  }
  if (problem.tail != Tail::kZero || problem.out.placement != Placement::kRows) {
    return "the gradient of an activation needs out in rows and tail = zero";
  }
  if (gradient.row_scale == DType::kF64 || gradient.row_dot != DType::kF32) {
    return "the gradient of an activation computes in f32 and writes row_dot in f32";
  }
  if (has_unread_list(problem)) return "rhs in a list on the device may be unaligned";
  const int64_t columns = problem.n * gradient.activation.columns();
  for (const plan::OperandLayout* layout : {&gradient.preact, &gradient.d_preact}) {
    if (!layout->given()) continue;
    const char* const name = layout == &gradient.preact ? "preact" : "d_preact";
    if (layout->dtype != problem.out.dtype) return text(name, " must be of out's type");
    if (layout->col_stride != 1) return text(name, ": rows aren't contiguous");
    std::string reason = refuse_operand(name, *layout, {columns, layout->row_stride});
    if (!reason.empty()) return reason;
  }
  return {};
}

/// What FP8 operands need beyond the others; empty when they have it.
std::string refuse_fp8(const plan::Problem& problem) {
  const DType out = problem.out.dtype;
  if (out != DType::kBF16 && out != DType::kF16 && out != DType::kF32) {
    return "out of FP8 operands must be bf16, f16 or f32";
  }
  if (problem.epilogue.activates()) return "an activation of FP8 products follows them";
  const plan::ScaleForm& lhs = problem.lhs_scales;
  const plan::ScaleForm& rhs = problem.rhs_scales;
  if (lhs.mode == ScaleMode::kMx || rhs.mode == ScaleMode::kMx) {
    return "has no FP8 of mode mx";
  }
  WeightsLayout weights{};
  if (weights_layout(problem, &weights) && !weights.transposed) {
    return "FP8 needs rhs stored [g, n, k]: wgmma reads rows of k alone";
  }
  if (has_unread_list(problem)) return "FP8 in lists on the device may be unaligned";
  return {};
}

Promotion promotion_of(const plan::Problem& problem) {
  if (!problem.lhs_scales.in_epilogue()) return Promotion::kScaled;
  return problem.fast_accumulation ? Promotion::kNone : Promotion::kSums;
}

std::string refuse(const plan::Problem& problem) {
  if (problem.op != plan::Op::kGmm) return "computes gmm alone";
  const DType dtype = problem.lhs.dtype;
  const DType out = problem.out.dtype;
  if (is_fp8(dtype)) {
    if (std::string reason = refuse_fp8(problem); !reason.empty()) return reason;
  } else if (dtype != problem.rhs.dtype || (dtype != DType::kBF16 && dtype != DType::kF16)) {
    return "lhs and rhs must both be bf16, both be f16 or both be FP8";
  } else if (out != dtype && out != DType::kF32) {
    return "out must be of lhs's type or f32";
  }
  if (problem.compute != DType::kF32) return "computes in f32 alone";
  if (problem.m < 1 || problem.n < 1 || problem.k < 1 || problem.num_local_groups < 1) {
    return "m, n, k and rhs.num_groups must be at least 1";
  }
  // Coordinates of the copy engine and tile numbers within a group are 32-bit.
  constexpr int64_t kMaxExtent = 0x7fff0000;
  if (problem.m > kMaxExtent || problem.n > kMaxExtent || problem.k > kMaxExtent ||
      problem.num_groups > kMaxExtent ||
      (problem.m / 64 + 1) * (problem.n / 128 + 1) > kMaxExtent) {
    return "m, n, k or num_groups is beyond 32-bit coordinates";
  }
  if (problem.lhs.col_stride != 1) return "lhs: rows aren't contiguous";
  if (problem.out.col_stride != 1) return "out: rows aren't contiguous";
  WeightsLayout weights{};
  if (!weights_layout(problem, &weights)) return "rhs: neither rows nor columns are contiguous";
  const int64_t rhs_columns = weights.transposed ? problem.k : problem.n;
  std::string reason = refuse_operand("lhs", problem.lhs, {problem.k, problem.lhs.row_stride});
  if (reason.empty()) {
    reason = refuse_operand("rhs", problem.rhs,
                            {rhs_columns, weights.row_stride, problem.num_local_groups});
  }
  if (reason.empty()) {
    reason = refuse_operand("out", problem.out, {out_columns(problem), problem.out.row_stride});
  }
  if (reason.empty() && problem.epilogue.activates()) {
    reason = refuse_activation(problem, weights.transposed);
  }
  if (reason.empty() && problem.epilogue.gradient.given()) reason = refuse_gradient(problem);
  if (reason.empty() && problem.epilogue.has_beta && problem.epilogue.c.given()) {
    if (problem.epilogue.c.dtype != problem.out.dtype) return "c must be of out's type";
    if (problem.epilogue.c.col_stride != 1) return "c: rows aren't contiguous";
    reason = refuse_operand("c", problem.epilogue.c, {problem.n, problem.epilogue.c.row_stride});
  }
  return reason;
}

GmmExtent extent_of(const plan::Problem& problem) {
  return {.m = problem.m,
          .n = problem.n,
          .k = problem.k,
          .num_groups = problem.num_groups,
          .average_rows = problem.average_rows,
          .output = {.is_f32 = problem.out.dtype == DType::kF32,
                     .has_c = problem.epilogue.has_beta,
                     .activation = form_of(problem.epilogue.activation),
                     .gradient_of = form_of(problem.epilogue.gradient.activation)},
          .sums = is_fp8(problem.lhs.dtype) ? GmmSums{true, promotion_of(problem)} : GmmSums{}};
}

ScaleBlocks scale_blocks(const Scales& scales, const plan::ScaleForm& form, void* const* list) {
  return {.data = scales.values.data,
          .is_e8m0 = form.dtype == DType::kE8M0,
          .group_stride = form.group_stride,
          .list = list,
          .outer_stride = form.outer_stride,
          .inner_stride = form.inner_stride};
}

/// The scales of FP8 operands: of blocks, or factors of whole rows and columns.
void add_scales(const plan::Problem& problem, const plan::Operands& operands,
                cuda::CarriedWords* words, GmmCall* call) {
  const Scales& lhs = operands.lhs_scales;
  const Scales& rhs = operands.rhs_scales;
  void* const* list = rhs.pointers;
  if (list != nullptr && rhs.pointers_device.kind == DeviceKind::kCpu) {
    list = words->add(rhs.pointers, problem.num_local_groups);
  }
  if (promotion_of(problem) == Promotion::kScaled) {
    call->block_scales = {scale_blocks(lhs, problem.lhs_scales, nullptr),
                          scale_blocks(rhs, problem.rhs_scales, list)};
    return;
  }
  EpilogueArguments& epilogue = call->epilogue;
  epilogue.lhs_scale = {.data = lhs.values.data, .stride = problem.lhs_scales.outer_stride};
  epilogue.rhs_scale = {.data = rhs.values.data, .stride = problem.rhs_scales.outer_stride};
  epilogue.rhs_scale_group_stride = problem.rhs_scales.group_stride;
  epilogue.rhs_scale_list = list;
}

EpilogueArguments epilogue_arguments(const plan::Operands& operands, cuda::CarriedWords* words) {
  EpilogueArguments epilogue;
  epilogue.out = kind_of(operands.out.dtype);
  epilogue.alpha = group_factor(operands.epilogue.alpha);
  epilogue.beta = group_factor(operands.epilogue.beta);
  if (operands.epilogue.bias.placement != Placement::kAbsent) {
    epilogue.bias.kind = kind_of(operands.epilogue.bias.dtype);
    epilogue.bias.data = operands.epilogue.bias.data;
    epilogue.bias.stride = operands.epilogue.bias.col_stride;
    epilogue.bias_group_stride = operands.epilogue.bias.group_stride;
    epilogue.bias_list = words->add_list(operands.epilogue.bias);
  }
  epilogue.row_scale = factor_vector(operands.epilogue.row_scale);
  epilogue.bias_scale = factor_vector(operands.epilogue.bias_scale);
  return epilogue;
}

/// Parts of rows' dot products, of 16 columns each.
int64_t dot_parts(const plan::Problem& problem) {
  return problem.epilogue.gradient.has_row_dot ? (problem.n + 15) / 16 : 0;
}

size_t list_scratch_bytes(const plan::Problem& problem) {
  int64_t lists = problem.rhs.placement == Placement::kList ? 1 : 0;
  if (problem.out.placement == Placement::kList) {
    lists += problem.epilogue.has_beta ? 2 : 1;
  } else if (problem.epilogue.c.placement == Placement::kList) {
    lists += 1;
  }
  return gmm_scratch_bytes(lists, problem.num_local_groups);
}

size_t own_scratch_bytes(const plan::Problem& problem) {
  return list_scratch_bytes(problem) +
         static_cast<size_t>(dot_parts(problem) * problem.m) * sizeof(float);
}

/// The gradient of an activation: its own row_scale takes the place of the formula's, which is 1.
void add_gradient(const cuda::Launch& launch, const plan::Problem& problem,
                  const plan::Operands& operands, GmmCall* call) {
  const plan::ActivationGradient& gradient = operands.epilogue.gradient;
  GradientArguments& args = call->epilogue.gradient;
  args.activation = gradient.activation;
  args.writes_d_preact = gradient.d_preact.given();
  if (dot_parts(problem) > 0) {
    char* const scratch = static_cast<char*>(launch.workspace.scratch());
    args.dots = reinterpret_cast<float*>(scratch + list_scratch_bytes(problem));
  }
  call->epilogue.row_scale = factor_vector(gradient.row_scale);
  call->preactivation = gradient.preact.data;
  call->preactivation_stride = problem.epilogue.gradient.preact.row_stride;
  if (!args.writes_d_preact) return;
  call->d_preactivation = gradient.d_preact.data;
  call->d_preactivation_stride = problem.epilogue.gradient.d_preact.row_stride;
}

class GmmFamily final : public cuda::KernelFamily {
 public:
  std::span<const std::string_view> kernels() const override { return kNames; }

  Status supports(const plan::Problem& problem,
                  const cuda::DeviceProperties& device) const override {
    if (device.major != 9) {
      return Status::unsupported(text("needs compute capability 9.0, ", device.name, " has ",
                                      device.major, ".", device.minor));
    }
    std::string reason = refuse(problem);
    return reason.empty() ? Status{} : Status::unsupported(std::move(reason));
  }

  Status configure(const plan::Problem& problem, const cuda::DeviceProperties& device,
                   const char* pinned, plan::Config* config) const override {
    const GmmExtent extent = extent_of(problem);
    if (pinned == nullptr && problem.epilogue.activates() && problem.average_rows <= kFewRows) {
      return Status::unsupported("with few rows the activation follows the product");
    }
    if (pinned == nullptr && takes_blocks_by_rows(problem, device)) {
      return Status::unsupported(
          "with many rows, results of FP8 with scales of blocks lie by rows");
    }
    const GmmShapeKind shape =
        pinned != nullptr ? shape_called(pinned) : choose_gmm_config(extent, device.sm_count).shape;
    if (!takes_output(shape, extent.output)) {
      return Status::unsupported(text(pinned, " writes no such output"));
    }
    if (!takes_sums(shape, extent.sums)) {
      return Status::unsupported(text(pinned, " makes no sums of ", name_of(problem.lhs.dtype),
                                      " with scales of mode ", name_of(problem.lhs_scales.mode)));
    }
    const ShapeFacts& facts = facts_of(shape);
    *config = {.kernel = facts.name,
               .choice = &kKernels[static_cast<size_t>(shape)],
               .tile_m = facts.width,
               .tile_n = facts.rows_a,
               .tile_k = static_cast<int32_t>(kRowBytes / size_of(problem.lhs.dtype)),
               .stages = facts.stages,
               .threads = kCtaThreads};
    return {};
  }

  size_t scratch_bytes(const plan::Problem& problem,
                       const plan::Config& /*config*/) const override {
    return scratch_with_fallback(problem, own_scratch_bytes(problem));
  }

  Status launch(const cuda::Launch& launch, const plan::Problem& problem,
                const plan::Config& config, const plan::Operands& operands) const override {
    WeightsLayout weights{};
    weights_layout(problem, &weights);
    cuda::CarriedWords words(launch);
    GmmCall call;
    call.element = kind_of(problem.lhs.dtype);
    call.rhs_element = kind_of(problem.rhs.dtype);
    call.transposed_rhs = weights.transposed;
    call.m = problem.m;
    call.n = out_columns(problem);
    call.k = problem.k;
    call.lhs = operands.lhs.data;
    call.lhs_stride = operands.lhs.row_stride;
    call.rhs = operands.rhs.data;
    call.rhs_group_stride = operands.rhs.group_stride;
    call.rhs_row_stride = weights.row_stride;
    call.rhs_list = words.add_list(operands.rhs);
    call.out = operands.out.data;
    call.out_stride = problem.out.row_stride;
    call.out_list = words.add_list(operands.out);
    call.epilogue = epilogue_arguments(operands, &words);
    call.epilogue.has_c = problem.epilogue.has_beta;
    if (problem.lhs_scales.given()) add_scales(problem, operands, &words, &call);
    if (problem.epilogue.activates()) {
      call.epilogue.activation = activation_arguments(problem.epilogue.activation);
      call.epilogue.activation.writes_input = problem.epilogue.preactivation.given();
      call.preactivation = operands.epilogue.preactivation.data;
      call.preactivation_stride = problem.epilogue.preactivation.row_stride;
    }
    if (problem.epilogue.gradient.given()) add_gradient(launch, problem, operands, &call);
    if (problem.epilogue.has_beta) {
      call.c = operands.epilogue.c.data;
      call.c_stride =
          problem.epilogue.c.given() ? problem.epilogue.c.row_stride : problem.out.row_stride;
      call.c_list =
          problem.epilogue.c.given() ? words.add_list(operands.epilogue.c) : call.out_list;
      if (problem.epilogue.c.placement == Placement::kList)
        call.list_rows = operands.epilogue.c.rows.uniform;
    }
    if (problem.out.placement == Placement::kList) {
      call.list_rows = std::min(call.list_rows, operands.out.rows.uniform);
    }
    call.groups = cuda::group_inputs(launch, problem, operands.group_sizes, operands.host_offsets,
                                     operands.group_offset, &words);
    call.zero_other_rows = problem.tail == Tail::kZero && !problem.epilogue.has_beta &&
                           problem.out.placement == Placement::kRows;
    call.tile_counter = launch.tile_counter;
    if (Status status = words.send(); !status.ok()) return status;
    GmmConfig chosen{.shape = static_cast<const GmmKernel*>(config.choice)->shape};
    chosen.ctas = gmm_ctas(extent_of(problem), chosen.shape, launch.sm_count);
    Status status = launch_gmm(launch, call, chosen);
    if (status.ok() && dot_parts(problem) > 0) {
      return rows::launch_sum_parts(launch, call.epilogue.gradient.dots, dot_parts(problem),
                                    operands.epilogue.gradient.row_dot);
    }
    if (!status.ok() || !has_unread_list(problem)) return status;
    return launch_fallback(launch, problem, operands, list_verdict(launch),
                           own_scratch_bytes(problem));
  }
};

}  // namespace

const cuda::KernelFamily& gmm_family() {
  static const GmmFamily family;
  return family;
}

}  // namespace cadre::sm90
