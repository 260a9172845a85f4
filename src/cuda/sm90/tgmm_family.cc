// What the Hopper tgmm kernels take, and the way from a Problem and its Operands to their launch.
#include <algorithm>
#include <string>

#include "core/text.h"
#include "cuda/sm90/families.h"
#include "cuda/sm90/launch.h"
#include "cuda/sm90/lists.h"
#include "plan/grouped_dims.h"

namespace cadre::sm90 {
namespace {

constexpr int64_t kMaxExtent = int64_t{1} << 30;  // coordinates of the copy engine

/// Empty, or why the copy engine can't read or write this operand.
std::string refuse_layout(const char* name, const plan::OperandLayout& layout) {
  const auto size = static_cast<int64_t>(size_of(layout.dtype));
  if (layout.col_stride != 1) return text(name, ".col_stride = ", layout.col_stride, ", needs 1");
  if (layout.alignment_bytes < 16 && !is_unread_list(layout)) {
    return text(name, " is aligned to ", layout.alignment_bytes, " bytes, needs 16");
  }
  if (layout.row_stride <= 0 || layout.row_stride * size % 16 != 0) {
    return text(name, ".row_stride = ", layout.row_stride, " x ", size,
                " bytes, needs a positive multiple of 16");
  }
  if (layout.placement == Placement::kStacked &&
      (layout.group_stride < 0 || layout.group_stride * size % 16 != 0)) {
    return text(name, ".group_stride = ", layout.group_stride, " x ", size,
                " bytes, needs a multiple of 16");
  }
  return {};
}

std::string refuse(const plan::Problem& problem, const cuda::DeviceProperties& device) {
  if (problem.op != plan::Op::kTgmm) return text("has no ", plan::name_of(problem.op));
  if (device.major != 9) {
    return text("needs compute capability 9.0, this device has ", device.major, ".", device.minor);
  }
  const DType element = problem.lhs.dtype;
  if ((element != DType::kBF16 && element != DType::kF16) || problem.rhs.dtype != element) {
    return text("takes bf16 x bf16 or f16 x f16, not ", name_of(element), " x ",
                name_of(problem.rhs.dtype));
  }
  const DType output = problem.out.dtype;
  if (output != DType::kBF16 && output != DType::kF16 && output != DType::kF32) {
    return text("writes bf16, f16 or f32, not ", name_of(output));
  }
  if (problem.epilogue.c.given() && problem.epilogue.c.dtype != output) {
    return text("needs c of out's type ", name_of(output), ", not ",
                name_of(problem.epilogue.c.dtype));
  }
  if (std::max({problem.m, problem.k, problem.n}) > kMaxExtent) return "m, k or n is above 2^30";
  std::string reason = refuse_layout("lhs", problem.lhs);
  if (reason.empty()) reason = refuse_layout("rhs", problem.rhs);
  if (reason.empty()) reason = refuse_layout("out", problem.out);
  if (reason.empty() && problem.epilogue.c.given()) reason = refuse_layout("c", problem.epilogue.c);
  return reason;
}

/// The lowest matrix, or where the host can't know it an address below all of them.
const void* lowest_matrix(const GroupedTensor& tensor) {
  if (tensor.placement != Placement::kList) return tensor.data;
  if (tensor.pointers_device.kind == DeviceKind::kCuda) {
    return reinterpret_cast<const void*>(uintptr_t{1} << 20);
  }
  return *std::min_element(tensor.pointers, tensor.pointers + tensor.num_groups);
}

TgmmResult result_of(const GroupedTensor& tensor, cuda::CarriedWords* words) {
  return {.base = lowest_matrix(tensor),
          .pointers = words->add_list(tensor),
          .group_stride = tensor.group_stride,
          .row_stride = plan::row_stride_of(tensor, plan::dims_of(tensor, 0))};
}

class TgmmFamily final : public cuda::KernelFamily {
 public:
  std::span<const std::string_view> kernels() const override {
    static constexpr std::string_view kNames[] = {kTgmmShapes[0].name, kTgmmShapes[1].name};
    return kNames;
  }

  Status supports(const plan::Problem& problem,
                  const cuda::DeviceProperties& device) const override {
    std::string reason = refuse(problem, device);
    return reason.empty() ? Status{} : Status::unsupported(std::move(reason));
  }

  Status configure(const plan::Problem& problem, const cuda::DeviceProperties& /*device*/,
                   const char* pinned, plan::Config* config) const override {
    // One tile won on every shape that was measured (docs/kernels.md), so only beta decides.
    const ShapeFacts& facts = kTgmmShapes[problem.epilogue.has_beta ? 1 : 0];
    if (pinned != nullptr && pinned != facts.name) {
      return Status::unsupported(
          text(pinned, " is for calls with", problem.epilogue.has_beta ? "out" : "", " beta"));
    }
    static constexpr cuda::FamilyKernel kKernel{{}, &tgmm_family};
    *config = {.kernel = facts.name,
               .choice = &kKernel,
               .tile_m = facts.rows_a,
               .tile_n = facts.width,
               .tile_k = 64,
               .stages = facts.stages,
               .threads = kCtaThreads};
    return {};
  }

  size_t scratch_bytes(const plan::Problem& problem,
                       const plan::Config& /*config*/) const override {
    return scratch_with_fallback(problem, tgmm_plan_bytes(problem.num_local_groups));
  }

  Status launch(const cuda::Launch& launch, const plan::Problem& problem,
                const plan::Config& /*config*/, const plan::Operands& operands) const override {
    cuda::CarriedWords words(launch);
    TgmmCall call;
    call.element = kind_of(problem.lhs.dtype);
    call.output = kind_of(problem.out.dtype);
    call.k = problem.k;
    call.n = problem.n;
    call.lhs = operands.lhs.data;
    call.lhs_stride = operands.lhs.row_stride;
    call.rhs = operands.rhs.data;
    call.rhs_stride = operands.rhs.row_stride;
    call.out = result_of(operands.out, &words);
    call.c = problem.epilogue.c.given() ? result_of(operands.epilogue.c, &words) : call.out;
    call.groups = cuda::group_inputs(launch, problem, operands.group_sizes, operands.host_offsets,
                                     operands.group_offset, &words);
    call.alpha = group_factor(operands.epilogue.alpha);
    call.beta = group_factor(operands.epilogue.beta);
    if (Status status = words.send(); !status.ok()) return status;
    const TgmmWorkspace workspace = {
        .offsets = launch.workspace.offsets(),
        .plan = static_cast<TgmmPlan*>(launch.workspace.scratch()),
        .tile_counter = launch.tile_counter,
    };
    Status status = launch_tgmm(launch, call, problem.epilogue.has_beta, workspace);
    if (!status.ok() || !has_unread_list(problem)) return status;
    return launch_fallback(launch, problem, operands, &workspace.plan->unaligned,
                           tgmm_plan_bytes(problem.num_local_groups));
  }
};

}  // namespace

const cuda::KernelFamily& tgmm_family() {
  static const TgmmFamily family;
  return family;
}

}  // namespace cadre::sm90
