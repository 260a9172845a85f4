// From Problem and Operands to a GmmCall. Why the kernels refuse a problem: gmm_refusals.cc.
#include <algorithm>
#include <array>
#include <limits>

#include "core/activation_math.h"
#include "core/text.h"
#include "cuda/rows/launchers.h"
#include "cuda/sm90/families.h"
#include "cuda/sm90/gmm_refusals.h"
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
    std::string reason = refuse_gmm(problem);
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
