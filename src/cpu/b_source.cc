// How panels of B are read, packed and asked for ahead.
#include "cpu/b_source.h"

namespace cadre::cpu {

BSource::BSource(const WorkUnit& unit, const GemmKernel& kernel)
    : kernel_(kernel),
      scales_(unit.item->b_scales),
      b_(part(unit.item->b, 0, unit.n_begin)),
      index_(unit.item->b_rows),
      packed_(unit.packed),
      cols_(unit.n_end - unit.n_begin),
      first_col_(unit.n_begin),
      first_panel_(unit.n_begin / kernel.nr),
      half_cols_(unit.item->is_paired() ? unit.item->result_cols() : 0),
      resident_(unit.resident),
      column_rows_(unit.resident && lies_in_columns() && takes_dtype() && columns_are_of_one_scale()
                       ? kernel.column_rows
                       : 0) {}

void BSource::scales(int64_t panel, int64_t panels, int64_t inner, float* to) const {
  const int64_t block = scales_.outer_block;
  for (int64_t i = panel; i < panel + panels; ++i) {
    const int64_t first = first_col_ + column_of(i);
    const int64_t end = first + panel_cols(i);
    for (int64_t col = first; col < end;) {
      const int64_t same_end = std::min((col / block + 1) * block, end);
      const float scale = scale_factor(scales_, col / block, inner);
      for (; col < same_end; ++col) *to++ = scale;
    }
    for (int64_t col = end; col < first + kernel_.nr; ++col) *to++ = 0.0f;
  }
}

bool BSource::reads_in_place(int64_t k, int64_t tiles) const {
  if (column_rows_ > 0) return k % kernel_.column_k == 0;
  // A kernel that multiplies faster than it packs packs whole blocks or parts of panels for its row
  // tiles, with nothing in between.
  if ((!resident_ || tiles > 1) && kernel_.tuning.pack_cost >= kernel_.mr) return false;
  return reads_rows() && k % kernel_.k_step == 0;
}

void BSource::point_at(int64_t k0, int64_t panel, char* packed, TileArgs* args) const {
  args->b = at(k0, panel);
  args->b_panel_bytes = kernel_.nr * column_bytes();
  args->b_dtype = b_.dtype;
  args->b_k_bytes = k_bytes();
  args->b_column_bytes = column_bytes();
  args->b_granule_bytes = args->b_k_bytes * kernel_.granule_k;
  args->b_packed = packed;
  if (column_rows_ > 0) {
    args->b_from = packed != nullptr ? BFrom::kColumnsKept : BFrom::kColumns;
  } else {
    args->b_from = packed != nullptr ? BFrom::kSourceKept : BFrom::kSource;
  }
}

PrefetchWalk BSource::walk(int64_t k0, int64_t k, int64_t panel, int64_t panels) const {
  if (k <= 0 || panels <= 0 || panel >= this->panels() * halves()) return {};
  // Panels of the second half may follow (halves_join).
  const int64_t first = panel % this->panels() * kernel_.nr;
  const bool both = panel < this->panels() && panel + panels > this->panels();
  const int64_t cols = std::min(panels * kernel_.nr, cols_ * (both ? halves() : 1) - first);
  if (is_packed()) {
    return {packed_at(k0, panel), ceil_div(cols, kernel_.nr) * panel_bytes(k), 0, 1};
  }
  if (lies_in_rows()) return {at(k0, panel), cols * element_bytes(), k_bytes(), k};
  if (lies_in_columns()) return {at(k0, panel), k * element_bytes(), column_bytes(), cols};
  return {};
}

}  // namespace cadre::cpu
