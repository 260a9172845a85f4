// What the Hopper grouped_gemm kernels take, FP8's tgmm and gmm with scales of blocks included, and
// the way from a Problem and its Operands to their launch: a table of groups (sm80/prepare.h), maps
// of their matrices (grouped_maps.h), the product, and the portable kernel for a call in which the
// maps' maker found a matrix that doesn't fit.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/text.h"
#include "cuda/sm80/family.h"
#include "cuda/sm80/prepare.h"
#include "cuda/sm90/families.h"
#include "cuda/sm90/grouped_maps.h"
#include "cuda/sm90/heuristic.h"
#include "cuda/sm90/instances.h"
#include "cuda/sm90/launch.h"
#include "cuda/sm90/lists.h"
#include "cuda/tensor_map.h"

namespace cadre::sm90 {
namespace {

constexpr int64_t kMaxExtent = int64_t{1} << 30;  // coordinates of the copy engine

struct GroupedKernel : cuda::FamilyKernel {
  GroupedShapeKind shape;
};

/// In the order of GroupedShapeKind.
constexpr auto kKernels = [] {
  std::array<GroupedKernel, kGroupedShapes.size()> kernels{};
  for (size_t i = 0; i < kernels.size(); ++i) {
    kernels[i] = {{{}, &grouped_family}, static_cast<GroupedShapeKind>(i)};
  }
  return kernels;
}();
constexpr auto kNames = [] {
  std::array<std::string_view, kGroupedShapes.size()> names{};
  for (size_t i = 0; i < names.size(); ++i) names[i] = kGroupedShapes[i].name;
  return names;
}();

GroupedShapeKind shape_of(const plan::Problem& problem) {
  if (is_fp8(problem.lhs.dtype)) {
    if (problem.lhs_scales.in_epilogue()) return GroupedShapeKind::kPromoted;
    return problem.rhs_scales.outer_block == 128 ? GroupedShapeKind::kBlocks
                                                 : GroupedShapeKind::kColumns;
  }
  return problem.epilogue.has_beta ? GroupedShapeKind::kWithC : GroupedShapeKind::kPlain;
}

/// gmm's weights [g, k, n] stored column by column are weights [g, n, k] stored row by row.
bool stores_columns(const plan::Problem& problem) {
  return problem.op == plan::Op::kGmm && !problem.transpose_rhs && problem.rhs.row_stride == 1;
}
plan::Problem by_rows(const plan::Problem& problem) {
  plan::Problem rows = problem;
  if (!stores_columns(problem)) return rows;
  rows.transpose_rhs = true;
  std::swap(rows.rhs.row_stride, rows.rhs.col_stride);
  return rows;
}

/// How the operands are stored; tgmm's column-wise copies are [k, rows] and [n, rows].
GroupedOrder order_of(const plan::Problem& problem) {
  const bool copies = problem.op == plan::Op::kTgmm;
  return {.a_along_k = copies || !problem.transpose_lhs,
          .b_along_k = copies || problem.transpose_rhs};
}

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

/// What gmm of FP8 needs beyond the others; empty when it has it.
std::string refuse_gmm(const plan::Problem& problem) {
  const plan::EpilogueForm& epilogue = problem.epilogue;
  if (problem.lhs_scales.in_epilogue()) return "takes gmm with scales of blocks alone";
  if (epilogue.bias.given() || epilogue.has_row_scale || epilogue.has_bias_scale ||
      epilogue.activates() || epilogue.gradient.given()) {
    return "takes gmm without bias, factors of rows and activation";
  }
  if (problem.out.placement != Placement::kRows ||
      (epilogue.c.given() && epilogue.c.placement != Placement::kRows)) {
    return "takes gmm with out and c in rows";
  }
  return {};
}

/// What FP8 operands need beyond the others; empty when they have it.
std::string refuse_fp8(const plan::Problem& problem) {
  if (problem.lhs_scales.mode == ScaleMode::kMx || problem.rhs_scales.mode == ScaleMode::kMx) {
    return "has no FP8 of mode mx";
  }
  if (problem.op == plan::Op::kTgmm) {
    if (problem.lhs_scales.columns && problem.rhs_scales.columns) return {};
    return "FP8 needs column-wise copies of both operands: wgmma reads rows of k alone";
  }
  const GroupedOrder order = order_of(problem);
  if (order.a_along_k && order.b_along_k) return {};
  return "FP8 needs a stored [m, k] and b stored [n, k]: wgmma reads rows of k alone";
}

std::string refuse(const plan::Problem& problem, const cuda::DeviceProperties& device) {
  const bool fp8 = is_fp8(problem.lhs.dtype);
  const bool copies = problem.op == plan::Op::kTgmm;
  if (problem.op != plan::Op::kGroupedGemm && !fp8) {
    return text("has no ", plan::name_of(problem.op));
  }
  if (device.major != 9) {
    return text("needs compute capability 9.0, ", device.name, " has ", device.major, ".",
                device.minor);
  }
  const DType element = problem.lhs.dtype;
  if (fp8) {
    if (std::string reason = refuse_fp8(problem); !reason.empty()) return reason;
    if (problem.op == plan::Op::kGmm) {
      if (std::string reason = refuse_gmm(problem); !reason.empty()) return reason;
    }
  } else if ((element != DType::kBF16 && element != DType::kF16) || problem.rhs.dtype != element) {
    return text("takes bf16 x bf16, f16 x f16 or FP8, not ", name_of(element), " x ",
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
  const bool grouped = problem.op == plan::Op::kGroupedGemm;
  const char* const out = grouped ? "d" : "out";
  if ((!grouped || !problem.sizes_on_device) && problem.n % vector != 0) {
    return text(out, ": the widest matrix has ", problem.n,
                " columns, which must be a multiple of ", vector);
  }
  const int64_t groups = problem.num_groups;
  const int64_t along_k = copies ? problem.m : problem.k;
  std::string reason = refuse_layout(grouped ? "a" : "lhs", problem.lhs, groups,
                                     problem.transpose_lhs ? problem.m : along_k);
  if (reason.empty()) {
    reason = refuse_layout(grouped ? "b" : "rhs", problem.rhs, groups,
                           order_of(problem).b_along_k ? along_k : problem.n);
  }
  if (reason.empty()) reason = refuse_layout(out, problem.out, groups, problem.n);
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
    const auto size = kind == ElementKind::kF32 ? 4 : static_cast<uint32_t>(operand_size(kind));
    const uint32_t columns = 128 / size;
    return encode_tensor_map(
        cuda::matrix_map(anywhere, map_type(kind), {64, columns}, columns, {64, columns}), map);
  };
  return encode(kind_of(problem.lhs.dtype), &args->operand_pattern) &&
         encode(kind_of(problem.out.dtype), &args->out_pattern);
}

GroupedInstance instance_of(const plan::Problem& problem, GroupedShapeKind shape) {
  const bool reads_c = facts_of(shape).reads_c;
  switch (problem.lhs.dtype) {
    case DType::kBF16:
      return grouped_instance_bf16(order_of(problem), reads_c);
    case DType::kF16:
      return grouped_instance_f16(order_of(problem), reads_c);
    case DType::kE5M2:
      return grouped_instance_e5m2_e4m3(shape);
    default:
      return problem.rhs.dtype == DType::kE5M2 ? grouped_instance_e4m3_e5m2(shape)
                                               : grouped_instance_e4m3_e4m3(shape);
  }
}

class GroupedFamily final : public cuda::KernelFamily {
 public:
  std::span<const std::string_view> kernels() const override { return kNames; }

  Status supports(const plan::Problem& problem,
                  const cuda::DeviceProperties& device) const override {
    std::string reason = refuse(by_rows(problem), device);
    return reason.empty() ? Status{} : Status::unsupported(std::move(reason));
  }

  Status configure(const plan::Problem& problem, const cuda::DeviceProperties& /*device*/,
                   const char* pinned, plan::Config* config) const override {
    const GroupedShapeKind shape = shape_of(problem);
    const ShapeFacts& facts = facts_of(shape);
    if (pinned != nullptr && pinned != facts.name) {
      return Status::unsupported(text(pinned, " isn't the kernel of this call: ", facts.name));
    }
    *config = {.kernel = facts.name,
               .choice = &kKernels[static_cast<size_t>(shape)],
               .tile_m = facts.rows_a,
               .tile_n = facts.width,
               .tile_k = static_cast<int32_t>(kRowBytes / size_of(problem.lhs.dtype)),
               .stages = facts.stages,
               .threads = kCtaThreads};
    return {};
  }

  size_t scratch_bytes(const plan::Problem& problem,
                       const plan::Config& /*config*/) const override {
    return Scratch::at(nullptr, entries_of(problem)).bytes +
           sm80::portable_family().scratch_bytes(problem, {});
  }

  Status launch(const cuda::Launch& launch, const plan::Problem& given, const plan::Config& config,
                const plan::Operands& given_operands) const override {
    const plan::Problem problem = by_rows(given);
    plan::Operands operands = given_operands;
    if (stores_columns(given)) std::swap(operands.rhs.row_stride, operands.rhs.col_stride);
    const auto shape = static_cast<const GroupedKernel*>(config.choice)->shape;
    sm80::PrepareArguments prepared;
    prepared.zeroes_other_rows = zeroes_other_rows(problem);
    if (Status status = sm80::prepare(launch, problem, config, operands, &prepared); !status.ok()) {
      return status;
    }
    const int64_t entries = entries_of(problem);
    const Scratch scratch = Scratch::at(launch.workspace.scratch(), entries);
    GroupedMapsArguments maps;
    maps.table = prepared.table;
    maps.maps = scratch.maps;
    maps.verdict = scratch.verdict;
    maps.num_groups = entries;
    maps.operand_element_bytes = static_cast<int32_t>(size_of(problem.lhs.dtype));
    maps.out_element_bytes = static_cast<int32_t>(size_of(problem.out.dtype));
    maps.transpose_a = !order_of(problem).a_along_k;
    maps.transpose_b = order_of(problem).b_along_k;
    maps.reads_c = problem.epilogue.has_beta;
    if (!encode_patterns(problem, launch.workspace.scratch(), &maps)) {
      return Status::internal(text(launch.op, ": the driver rejected a tensor map"));
    }
    if (Status status = make_grouped_maps(launch, maps); !status.ok()) return status;

    const GroupedInstance instance = instance_of(problem, shape);
    const GroupedArguments args{.verdict = scratch.verdict,
                                .maps = scratch.maps,
                                .table = prepared.table,
                                .a_scales = prepared.a_scales,
                                .b_scales = prepared.b_scales,
                                .tile_counter = launch.tile_counter,
                                .num_groups = static_cast<int>(entries),
                                .output = kind_of(problem.out.dtype),
                                .recorder = tile_recorder()};
    const cuda::GridShape grid{.blocks = static_cast<unsigned>(launch.sm_count),
                               .threads = kCtaThreads,
                               .shared_bytes = static_cast<unsigned>(instance.shared_bytes),
                               .after_prologue = true};
    Status status = cuda::launch_kernel(launch, facts_of(shape).name, instance.kernel, grid, args);
    if (!status.ok() || known_to_fit(problem, operands)) return status;
    return launch_fallback(launch, problem, operands, &scratch.verdict->unfit, scratch.bytes);
  }

 private:
  static bool zeroes_other_rows(const plan::Problem& problem) {
    return problem.op == plan::Op::kGmm && problem.tail == Tail::kZero &&
           !problem.epilogue.has_beta;
  }
  static int64_t entries_of(const plan::Problem& problem) {
    return sm80::table_groups(problem.num_local_groups, zeroes_other_rows(problem));
  }
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

bool takes_blocks_by_rows(const plan::Problem& problem, const cuda::DeviceProperties& device) {
  if (problem.op != plan::Op::kGmm || !is_fp8(problem.lhs.dtype)) return false;
  return rows_of_group(problem.m, problem.num_groups, problem.average_rows) > kFewRows &&
         refuse(by_rows(problem), device).empty();
}

const cuda::KernelFamily& grouped_family() {
  static const GroupedFamily family;
  return family;
}

}  // namespace cadre::sm90
