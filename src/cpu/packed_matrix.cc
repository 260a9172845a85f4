// Offsets within a packed matrix.
#include "cpu/packed_matrix.h"

#include <algorithm>
#include <bit>

#include "cpu/panel_sizes.h"
#include "cpu/row_gather.h"

namespace cadre::cpu {
namespace {

int64_t bytes_of_panel(const GemmKernel& kernel, int64_t k) {
  return granules_of(kernel, k) * b_granule_bytes(kernel);
}

}  // namespace

int64_t PackedLayout::blocks() const { return std::max<int64_t>(ceil_div(k, k_block), 1); }

int64_t PackedLayout::panels() const { return ceil_div(n, kernel->nr); }

int64_t PackedLayout::k_of(int64_t block) const { return std::min(k_block, k - block * k_block); }

int64_t PackedLayout::panel_bytes(int64_t block) const {
  return bytes_of_panel(*kernel, k_of(block));
}

int64_t PackedLayout::offset_bytes(int64_t block, int64_t panel) const {
  return block * panels() * bytes_of_panel(*kernel, k_block) + panel * panel_bytes(block);
}

int64_t PackedLayout::size_bytes() const { return offset_bytes(blocks() - 1, panels()); }

PackedLayout make_packed_layout(const GemmKernel& kernel, const Blocking& blocking, int64_t k,
                                int64_t n) {
  const auto granules = static_cast<uint64_t>(blocking.k_block / kernel.granule_k);
  return {&kernel, k, n, static_cast<int64_t>(std::bit_floor(granules)) * kernel.granule_k};
}

void pack_panel(const PackedLayout& layout, const MatrixRef& b, const RowIndex& rows, int64_t block,
                int64_t panel, char* data) {
  const int nr = layout.kernel->nr;
  pack_panel_of(*layout.kernel, b, rows, {},
                {block * layout.k_block, panel * nr, layout.k_of(block),
                 std::min<int64_t>(nr, layout.n - panel * nr)},
                data + layout.offset_bytes(block, panel), 0);
}

}  // namespace cadre::cpu
