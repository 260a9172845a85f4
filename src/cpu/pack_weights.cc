// One packed matrix for each group, back to back.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/text.h"
#include "cpu/cache.h"
#include "cpu/isa.h"
#include "cpu/kernel_table.h"
#include "cpu/packed_weights.h"
#include "cpu/threads.h"
#include "plan/grouped_dims.h"

namespace cadre::cpu {
namespace {

MatrixRef matrix_of(const PackWeightsArgs& args, int64_t group) {
  const GroupedTensor& rhs = args.rhs;
  MatrixRef matrix{nullptr, rhs.dtype, rhs.row_stride, rhs.col_stride};
  if (rhs.placement == Placement::kList) {
    matrix.data = rhs.pointers[group];
    matrix.row_stride = plan::row_stride_of(rhs, plan::dims_of(rhs, group));
  } else {
    const auto element_bytes = static_cast<int64_t>(size_of(rhs.dtype));
    matrix.data = static_cast<char*>(rhs.data) + group * rhs.group_stride * element_bytes;
  }
  if (args.transpose_rhs) std::swap(matrix.row_stride, matrix.col_stride);
  return matrix;
}

/// At least what all groups take, with every k and n rounded up to whole blocks and panels. In
/// floating point, where no shape overflows.
double bytes_at_most(const PackedLayout& layout, int64_t num_groups) {
  const GemmKernel& kernel = *layout.kernel;
  const double granules =
      (static_cast<double>(layout.k) + static_cast<double>(layout.k_block)) / kernel.granule_k;
  const double columns = static_cast<double>(layout.n) + kernel.nr;
  const double matrix = granules * columns * kernel.granule_bytes + 64;
  return static_cast<double>(num_groups) * (matrix + sizeof(PackedMatrix));
}

/// What there can be at most. The system may well grant more and end the process as it is used.
double machine_bytes() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

}  // namespace

Status make_packed_weights(const detail::ContextState& context, const PackWeightsArgs& args,
                           DType compute, std::unique_ptr<PackedWeights::State>* packed) {
  Isa isa = Isa::kScalar;
  if (Status status = resolve_isa(context.isa, &isa); !status.ok()) return status;
  const GroupedTensor& rhs = args.rhs;
  const GemmKernel& kernel = *find_kernel(isa, args.lhs_dtype, rhs.dtype, compute);
  auto state = std::make_unique<CpuPackedWeights>();
  state->dtype = rhs.dtype;
  state->num_groups = rhs.num_groups;
  state->k = args.transpose_rhs ? rhs.cols.uniform : rhs.rows.uniform;
  state->n = args.transpose_rhs ? rhs.rows.uniform : rhs.cols.uniform;
  state->kernel = kernel.name;
  const PackedLayout layout =
      make_packed_layout(kernel, make_blocking(kernel, cache_sizes()), state->k, state->n);
  if (const double bytes = bytes_at_most(layout, rhs.num_groups); bytes > machine_bytes()) {
    return Status::internal(text("pack_weights: no memory for ", rhs.num_groups,
                                 " packed matrices of [", state->k, ", ", state->n, "], ",
                                 bytes / 1e9, " GB"));
  }
  const int64_t group_bytes = (layout.size_bytes() + 63) / 64 * 64;
  state->size_bytes = static_cast<size_t>(group_bytes * rhs.num_groups);
  auto* data = static_cast<char*>(state->memory.reserve(std::max<size_t>(state->size_bytes, 1)));
  if (data == nullptr) {
    return Status::internal(text("pack_weights: no memory for ", state->size_bytes, " bytes"));
  }
  state->groups.reserve(static_cast<size_t>(rhs.num_groups));
  for (int64_t group = 0; group < rhs.num_groups; ++group) {
    state->groups.push_back({layout, data + group * group_bytes});
  }
  const int64_t panels = layout.panels();
  const int64_t panels_of_group = state->k == 0 ? 0 : layout.blocks() * panels;
  const int threads = usable_threads(context.num_threads);
  for_each_index(threads, rhs.num_groups * panels_of_group, [&](int64_t i) {
    const int64_t group = i / panels_of_group;
    const int64_t inside = i % panels_of_group;
    pack_panel(layout, matrix_of(args, group), {}, inside / panels, inside % panels,
               data + group * group_bytes);
  });
  *packed = std::move(state);
  return {};
}

std::vector<const PackedMatrix*> packed_matrices(const PackedWeights& packed,
                                                 const std::vector<GemmItem>& items,
                                                 const GemmPlan& plan) {
  // Nobody else packs.
  const auto& state = static_cast<const CpuPackedWeights&>(*packed.state());
  std::vector<const PackedMatrix*> matrices;
  if (state.groups.empty() || state.groups.front().layout.kernel != plan.kernel) return matrices;
  matrices.reserve(items.size());
  for (const GemmItem& item : items) {
    matrices.push_back(&state.groups[static_cast<size_t>(item.group)]);
  }
  return matrices;
}

}  // namespace cadre::cpu
