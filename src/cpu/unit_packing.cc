// Many rows, B packed in whole lines of its rows.
#include "cpu/unit_run.h"

namespace cadre::cpu {
namespace {

/// Lines of rows that are on their way while B is packed from them.
constexpr int64_t kRowAheadLines = 64;

}  // namespace

/// Panels of a block that are packed from rows: those of whole lines, where k is whole steps.
int64_t UnitRun::walked_panels(const Block& block) const {
  if (block.k % kernel_.k_step != 0) return 0;
  return block.full_panels / line_panels() * line_panels();
}

/// Those panels, in the order of addresses, as memory is fastest: spread over the products of the
/// block before, which is as large or larger.
RowWalk UnitRun::rows_of(const Block& block, char* b_memory) const {
  const auto size = static_cast<int64_t>(size_of(b_.dtype));
  RowWalk walk;
  walk.row_bytes = walked_panels(block) * kernel_.nr * size;
  if (walk.row_bytes == 0) return walk;
  walk.rows = static_cast<const char*>(element_at(b_, block.k0, block.panel * kernel_.nr));
  walk.k_bytes = b_.row_stride * size;
  walk.granules_left = block.k / kernel_.granule_k;
  walk.to = b_memory;
  walk.panel_bytes = b_panel_bytes(block.k);
  walk.ahead = {walk.rows, walk.row_bytes, walk.k_bytes, block.k};
  walk.wait = kRowAheadLines / kernel_.granule_k;
  const int64_t strips = walk.granules_left * walk.row_bytes / kStripBytes + walk.wait;
  const int64_t steps = tiles_ * block.panels * prefetch_steps(block.k);
  walk.per_step = ceil_div(strips * kStripUnit, steps);
  return walk;
}

}  // namespace cadre::cpu
