// What the Hopper grouped_gemm kernels take, and the way from a Problem and its Operands to their
// launch: a table of groups (sm80/prepare.h), maps of their matrices (grouped_maps.h), the product,
// and the portable kernel for a call in which the maps' maker found a matrix that doesn't fit.
#include <algorithm>
#include <string>

#include "core/text.h"
#include "cuda/sm80/family.h"
#include "cuda/sm80/prepare.h"
#include "cuda/sm90/families.h"
#include "cuda/sm90/grouped_maps.h"
#include "cuda/sm90/instances.h"
#include "cuda/sm90/launch.h"
#include "cuda/sm90/lists.h"
#include "cuda/tensor_map.h"

namespace cadre::sm90 {
namespace {

constexpr int64_t kMaxExtent = int64_t{1} << 30;  // coordinates of the copy engine

/// Empty, or why the copy engine can't take what the host knows of this operand.
std::string refuse_layout(const char* name, const plan::OperandLayout& layout, int64_t num_groups,
                          int64_t columns) {
  const auto size = static_cast<int64_t>(size_of(layout.dtype));
  if (layout.col_stride != 1) return text(name, ": column stride ", layout.col_stride, ", needs 1");
  if (layout.alignment_bytes < 16 && !is_unread_list(layout)) {
    return text(name, ": base isn't known to be a multiple of 16 bytes");
  }
  // Contiguous matrices of several widths have a stride each, which the device looks at.
  const bool own_strides = layout.contiguous && layout.row_stride == 0;
  if (!own_strides && (layout.row_stride <= 0 || layout.row_stride * size % 16 != 0)) {
    return text(name, ": row stride ", layout.row_stride, " elements (", layout.row_stride * size,
                " bytes) must be a positive multiple of 16 bytes");
  }
  if (!own_strides && (layout.row_stride < columns || layout.row_stride > kMaxExtent)) {
    return text(name, ": row stride ", layout.row_stride, " must be at least its ", columns,
                " columns and at most 2^30");
  }
  if (layout.placement == Placement::kStacked && num_groups > 1 &&
      layout.group_stride * size % 16 != 0) {
    return text(name, ": group stride ", layout.group_stride, " elements (",
                layout.group_stride * size, " bytes) must be a multiple of 16 bytes");
  }
  return {};
}

std::string refuse(const plan::Problem& problem, const cuda::DeviceProperties& device) {
  if (problem.op != plan::Op::kGroupedGemm) return text("has no ", plan::name_of(problem.op));
  if (device.major != 9) {
    return text("needs compute capability 9.0, ", device.name, " has ", device.major, ".",
                device.minor);
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
    return text("needs c of d's type ", name_of(output), ", not ",
                name_of(problem.epilogue.c.dtype));
  }
  if (std::max({problem.m, problem.k, problem.n}) > kMaxExtent) return "m, k or n is above 2^30";
  const auto vector = static_cast<int64_t>(16 / size_of(output));
  if (!problem.sizes_on_device && problem.n % vector != 0) {
    return text("d: the widest matrix has ", problem.n, " columns, which must be a multiple of ",
                vector);
  }
  const int64_t groups = problem.num_groups;
  std::string reason =
      refuse_layout("a", problem.lhs, groups, problem.transpose_lhs ? problem.m : problem.k);
  if (reason.empty()) {
    reason = refuse_layout("b", problem.rhs, groups, problem.transpose_rhs ? problem.k : problem.n);
  }
  if (reason.empty()) reason = refuse_layout("d", problem.out, groups, problem.n);
  if (reason.empty() && problem.epilogue.c.given()) {
    reason = refuse_layout("c", problem.epilogue.c, groups, problem.n);
  }
  return reason;
}

/// What a call has in its scratch, before the portable kernel's.
struct Scratch {
  GroupedVerdict* verdict;
  GroupedMaps* maps;
  size_t bytes;

  static constexpr size_t kAlignment = 256;
  static size_t rounded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  /// The table comes first: the portable family knows it as the whole of its scratch.
  static Scratch at(void* start, int64_t num_groups) {
    char* const begin = static_cast<char*>(start);
    const size_t table = rounded(sm80::GroupEntries::bytes(num_groups));
    const size_t maps = static_cast<size_t>(num_groups) * sizeof(GroupedMaps);
    return {reinterpret_cast<GroupedVerdict*>(begin + table),
            reinterpret_cast<GroupedMaps*>(begin + table + kAlignment),
            rounded(table + kAlignment + maps)};
  }
};

bool encode_patterns(const plan::Problem& problem, const void* anywhere,
                     GroupedMapsArguments* args) {
  using cuda::encode_tensor_map;
  const auto encode = [&](ElementKind kind, CUtensorMap* map) {
    const uint32_t columns = 128 / static_cast<uint32_t>(kind == ElementKind::kF32 ? 4 : 2);
    return encode_tensor_map(
        cuda::matrix_map(anywhere, map_type(kind), {64, columns}, columns, {64, columns}), map);
  };
  return encode(kind_of(problem.lhs.dtype), &args->operand_pattern) &&
         encode(kind_of(problem.out.dtype), &args->out_pattern);
}

class GroupedFamily final : public cuda::KernelFamily {
 public:
  std::span<const std::string_view> kernels() const override {
    static constexpr std::string_view kNames[] = {kGroupedShapes[0].name, kGroupedShapes[1].name};
    return kNames;
  }

  Status supports(const plan::Problem& problem,
                  const cuda::DeviceProperties& device) const override {
    std::string reason = refuse(problem, device);
    return reason.empty() ? Status{} : Status::unsupported(std::move(reason));
  }

  Status configure(const plan::Problem& problem, const cuda::DeviceProperties& /*device*/,
                   const char* pinned, plan::Config* config) const override {
    const ShapeFacts& facts = kGroupedShapes[problem.epilogue.has_beta ? 1 : 0];
    if (pinned != nullptr && pinned != facts.name) {
      return Status::unsupported(
          text(pinned, " is for calls with", problem.epilogue.has_beta ? "out" : "", " beta"));
    }
    static constexpr cuda::FamilyKernel kKernel{{}, &grouped_family};
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
    return Scratch::at(nullptr, problem.num_local_groups).bytes +
           sm80::portable_family().scratch_bytes(problem, {});
  }

  Status launch(const cuda::Launch& launch, const plan::Problem& problem,
                const plan::Config& config, const plan::Operands& operands) const override {
    const bool reads_c = problem.epilogue.has_beta;
    const ShapeFacts& facts = kGroupedShapes[reads_c ? 1 : 0];
    sm80::PrepareArguments prepared;
    if (Status status = sm80::prepare(launch, problem, config, operands, &prepared); !status.ok()) {
      return status;
    }
    const Scratch scratch = Scratch::at(launch.workspace.scratch(), problem.num_local_groups);
    GroupedMapsArguments maps;
    maps.table = prepared.table;
    maps.maps = scratch.maps;
    maps.verdict = scratch.verdict;
    maps.num_groups = problem.num_local_groups;
    maps.out_element_bytes = static_cast<int32_t>(size_of(problem.out.dtype));
    maps.transpose_a = problem.transpose_lhs;
    maps.transpose_b = problem.transpose_rhs;
    maps.reads_c = reads_c;
    if (!encode_patterns(problem, launch.workspace.scratch(), &maps)) {
      return Status::internal(text(launch.op, ": the driver rejected a tensor map"));
    }
    if (Status status = make_grouped_maps(launch, maps); !status.ok()) return status;

    const GroupedOrder order{.a_along_k = !problem.transpose_lhs,
                             .b_along_k = problem.transpose_rhs};
    const GroupedInstance instance = problem.lhs.dtype == DType::kBF16
                                         ? grouped_instance_bf16(order, reads_c)
                                         : grouped_instance_f16(order, reads_c);
    const GroupedArguments args{.verdict = scratch.verdict,
                                .maps = scratch.maps,
                                .table = prepared.table,
                                .tile_counter = launch.tile_counter,
                                .num_groups = static_cast<int>(problem.num_local_groups),
                                .output = kind_of(problem.out.dtype)};
    const cuda::GridShape grid{.blocks = static_cast<unsigned>(launch.sm_count),
                               .threads = kCtaThreads,
                               .shared_bytes = static_cast<unsigned>(instance.shared_bytes),
                               .after_prologue = true};
    Status status = cuda::launch_kernel(launch, facts.name, instance.kernel, grid, args);
    if (!status.ok() || known_to_fit(problem, operands)) return status;
    return launch_fallback(launch, problem, operands, &scratch.verdict->unfit, scratch.bytes);
  }

 private:
  /// Whether refuse() has seen all there is: equal matrices at addresses that the host has read.
  static bool known_to_fit(const plan::Problem& problem, const plan::Operands& operands) {
    const auto known = [](const GroupedTensor& tensor, const plan::OperandLayout& layout) {
      return !tensor.rows.varies() && !tensor.cols.varies() && !is_unread_list(layout) &&
             tensor.placement != Placement::kPacked;
    };
    return known(operands.lhs, problem.lhs) && known(operands.rhs, problem.rhs) &&
           known(operands.out, problem.out) &&
           (!problem.epilogue.c.given() || known(operands.epilogue.c, problem.epilogue.c));
  }
};

}  // namespace

const cuda::KernelFamily& grouped_family() {
  static const GroupedFamily family;
  return family;
}

}  // namespace cadre::sm90
