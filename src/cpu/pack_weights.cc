// pack_weights: one packed matrix for each group, back to back.
#include "cadre/pack_weights.h"

#include "core/text.h"
#include "cpu/cache.h"
#include "cpu/isa.h"
#include "cpu/kernel_table.h"
#include "cpu/packed_weights.h"
#include "cpu/threads.h"
#include "plan/context_state.h"

namespace cadre {
namespace {

Status check(const PackWeightsArgs& args, DType lhs, DType out) {
  const GroupedTensor& rhs = args.rhs;
  if (rhs.placement != Placement::kStacked && rhs.placement != Placement::kList) {
    return Status::invalid("pack_weights: rhs is neither stacked nor a list, expected [g, k, n]");
  }
  if (rhs.device.kind != DeviceKind::kCpu || rhs.pointers_device.kind != DeviceKind::kCpu) {
    return Status::unsupported("pack_weights: rhs.device = cuda, expected the cpu");
  }
  if (rhs.rows.varies() || rhs.cols.varies()) {
    return Status::invalid("pack_weights: rhs.rows = per-group, expected one shape for all groups");
  }
  if (rhs.num_groups < 0 || rhs.rows.uniform < 0 || rhs.cols.uniform < 0) {
    return Status::invalid(text("pack_weights: rhs = [", rhs.num_groups, ", ", rhs.rows.uniform,
                                ", ", rhs.cols.uniform, "], expected sizes of 0 or more"));
  }
  const bool null_data =
      rhs.placement == Placement::kList ? rhs.pointers == nullptr : rhs.data == nullptr;
  if (null_data && rhs.num_groups * rhs.rows.uniform * rhs.cols.uniform > 0) {
    return Status::invalid("pack_weights: rhs.data = null, expected the weights");
  }
  const auto packable = [](DType dtype) { return is_float(dtype) || dtype == DType::kI8; };
  if (!packable(rhs.dtype)) {
    return Status::invalid(text("pack_weights: rhs.dtype = ", name_of(rhs.dtype),
                                ", expected f64, f32, bf16, f16 or i8"));
  }
  if (!packable(lhs)) {
    return Status::invalid(
        text("pack_weights: lhs_dtype = ", name_of(lhs), ", expected f64, f32, bf16, f16 or i8"));
  }
  if (!is_float(out) && out != DType::kI32) {
    return Status::invalid(
        text("pack_weights: out_dtype = ", name_of(out), ", expected f64, f32, bf16, f16 or i32"));
  }
  return {};
}

DType compute_type(DType lhs, DType rhs, DType out) {
  if (lhs == DType::kI8 && rhs == DType::kI8) return DType::kI32;
  const bool f64 = lhs == DType::kF64 || rhs == DType::kF64 || out == DType::kF64;
  return f64 ? DType::kF64 : DType::kF32;
}

cpu::MatrixRef matrix_of(const PackWeightsArgs& args, int64_t group) {
  const GroupedTensor& rhs = args.rhs;
  const int64_t row_stride =
      rhs.row_stride == 0 && rhs.placement == Placement::kList ? rhs.cols.uniform : rhs.row_stride;
  cpu::MatrixRef matrix{nullptr, rhs.dtype, row_stride, rhs.col_stride};
  const auto offset = group * rhs.group_stride * static_cast<int64_t>(size_of(rhs.dtype));
  matrix.data = rhs.placement == Placement::kList ? rhs.pointers[group]
                                                  : static_cast<char*>(rhs.data) + offset;
  if (args.transpose_rhs) std::swap(matrix.row_stride, matrix.col_stride);
  return matrix;
}

}  // namespace

PackedWeights::PackedWeights() = default;
PackedWeights::~PackedWeights() = default;
PackedWeights::PackedWeights(PackedWeights&&) noexcept = default;
PackedWeights& PackedWeights::operator=(PackedWeights&&) noexcept = default;

size_t PackedWeights::size_bytes() const {
  return state_ ? static_cast<size_t>(state_->group_bytes * state_->num_groups) : 0;
}

std::string_view PackedWeights::kernel() const {
  return state_ ? state_->layout.kernel->name : std::string_view();
}

Status pack_weights(Context& context, const PackWeightsArgs& args, PackedWeights* packed) {
  if (!context.status().ok()) return context.status();
  if (packed == nullptr) return Status::invalid("pack_weights: packed = null, expected an object");
  const GroupedTensor& rhs = args.rhs;
  const DType lhs = args.lhs_dtype == DType::kInvalid ? rhs.dtype : args.lhs_dtype;
  const DType out =
      args.out_dtype == DType::kInvalid ? default_output_dtype(lhs, rhs.dtype) : args.out_dtype;
  if (Status status = check(args, lhs, out); !status.ok()) return status;
  cpu::Isa isa = cpu::Isa::kScalar;
  if (Status status = cpu::resolve_isa(context.state().isa, &isa); !status.ok()) return status;

  const cpu::GemmKernel& kernel =
      *cpu::find_kernel(isa, lhs, rhs.dtype, compute_type(lhs, rhs.dtype, out));
  const int64_t k = args.transpose_rhs ? rhs.cols.uniform : rhs.rows.uniform;
  const int64_t n = args.transpose_rhs ? rhs.rows.uniform : rhs.cols.uniform;
  auto state = std::make_unique<PackedWeights::State>();
  state->dtype = rhs.dtype;
  state->num_groups = rhs.num_groups;
  state->layout =
      cpu::make_packed_layout(kernel, cpu::make_blocking(kernel, cpu::cache_sizes()), k, n);
  state->group_bytes = (state->layout.size_bytes() + 63) / 64 * 64;
  const auto total = static_cast<size_t>(state->group_bytes * rhs.num_groups);
  auto* data = static_cast<char*>(state->memory.reserve(total > 0 ? total : 1));
  if (data == nullptr) {
    return Status::internal(text("pack_weights: no memory for ", total, " bytes"));
  }
  for (int64_t group = 0; group < rhs.num_groups; ++group) {
    state->groups.push_back({state->layout, data + group * state->group_bytes});
  }
  const int64_t panels = state->layout.panels();
  const int64_t panels_of_group = state->layout.blocks() * panels;
  const cpu::PackedLayout& layout = state->layout;
  const int64_t group_bytes = state->group_bytes;
#pragma omp parallel for num_threads(cpu::thread_count(context.state().num_threads)) \
    schedule(static)
  for (int64_t i = 0; i < rhs.num_groups * panels_of_group; ++i) {
    const int64_t group = i / panels_of_group;
    const int64_t inside = i % panels_of_group;
    cpu::pack_panel(layout, matrix_of(args, group), inside / panels, inside % panels,
                    data + group * group_bytes);
  }
  packed->state_ = std::move(state);
  return {};
}

namespace cpu {

Status match_packed_weights(const PackedWeights& packed, const plan::Problem& problem,
                            const std::vector<GemmItem>& items, const GemmPlan& plan,
                            std::vector<const PackedMatrix*>* matrices) {
  const PackedWeights::State* state = packed.state();
  if (state == nullptr) {
    return Status::invalid("gmm: packed_rhs is empty, expected what pack_weights has filled");
  }
  const PackedLayout& layout = state->layout;
  if (state->dtype != problem.rhs.dtype || state->num_groups != problem.num_local_groups ||
      layout.k != problem.k || layout.n != problem.n) {
    return Status::invalid(
        text("gmm: packed_rhs = ", name_of(state->dtype), " [", state->num_groups, ", k ", layout.k,
             ", n ", layout.n, "], expected rhs = ", name_of(problem.rhs.dtype), " [",
             problem.num_local_groups, ", k ", problem.k, ", n ", problem.n, "]"));
  }
  if (layout.kernel != plan.kernel) return {};
  for (const GemmItem& item : items) {
    matrices->push_back(&state->groups[static_cast<size_t>(item.group)]);
  }
  return {};
}

}  // namespace cpu
}  // namespace cadre
