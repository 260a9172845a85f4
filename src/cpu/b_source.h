// Where a unit's panels of B come from: packed before the call, packed by the unit, or read by the
// kernel as they lie. The ways through a unit ask here and nowhere else.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/panel_sizes.h"
#include "cpu/row_gather.h"
#include "cpu/work_units.h"

namespace cadre::cpu {

class BSource {
 public:
  BSource(const WorkUnit& unit, const GemmKernel& kernel);

  /// 2 where columns of a gate and of what it gates lie apart (GemmItem::is_paired): the second
  /// half's panels are numbered after those of the first.
  int64_t halves() const { return half_cols_ > 0 ? 2 : 1; }
  /// Of a half.
  int64_t panels() const { return ceil_div(cols_, kernel_.nr); }
  int64_t full_panels() const { return cols_ / kernel_.nr; }
  /// Panels of both halves are one after the other in memory, too.
  bool halves_join() const { return half_cols_ == panels() * kernel_.nr; }
  int64_t element_bytes() const { return static_cast<int64_t>(size_of(b_.dtype)); }
  /// A panel's part of a row of B.
  int64_t panel_row_bytes() const { return kernel_.nr * element_bytes(); }
  int64_t column_bytes() const { return b_.col_stride * element_bytes(); }

  bool is_packed() const { return packed_ != nullptr; }
  /// Columns next to each other, or contiguous along k.
  bool lies_in_rows() const { return is_strided() && b_.col_stride == 1; }
  bool lies_in_columns() const { return is_strided() && b_.row_stride == 1 && b_.col_stride != 1; }
  /// The kernel can read rows of B as they lie.
  bool reads_rows() const { return lies_in_rows() && takes_dtype(); }
  /// The same for columns: for at most so many rows of A, 0 where it can't. That pays where B comes
  /// straight from memory (few rows), not where a block of it is packed for many.
  int64_t column_rows() const { return column_rows_; }
  /// B is one stream of rows that follow one another without much in between.
  bool rows_are_dense(int64_t panels) const { return b_.row_stride < (panels + 1) * kernel_.nr; }
  /// Whole panels of k values are read as they lie by the first of `tiles` row tiles. What doesn't
  /// fill a granule or, along k, a vector, must be packed.
  bool reads_in_place(int64_t k, int64_t tiles) const;
  /// The kernel packs rows as they lie, whole lines of them (GemmKernel::pack_rows).
  bool packs_lines() const {
    return kernel_.pack_rows != nullptr && lies_in_rows() && b_.dtype == kernel_.source_dtype;
  }
  /// The kernel can pack columns beside the products of another block.
  bool packs_columns_beside() const {
    return kernel_.tuning.packs_beside && lies_in_columns() && b_.dtype == kernel_.source_dtype;
  }

  /// From one packed panel to the next. Panels that are written side by side, a row of each in
  /// turn, would share two sets of L1 if they were a power of two apart: then two lines more.
  int64_t panel_bytes(int64_t k) const {
    return granules_of(kernel_, k) * b_granule_bytes(kernel_) + (packs_lines() ? 128 : 0);
  }
  /// k values of a block, if B was packed before.
  int64_t packed_k_block() const { return packed_->layout.k_block; }
  /// A panel that was packed before; k0 is where a block of k starts.
  const char* packed_at(int64_t k0, int64_t panel) const {
    const PackedLayout& layout = packed_->layout;
    const int64_t number = first_panel_ + column_of(panel) / kernel_.nr;
    return packed_->data + layout.offset_bytes(k0 / layout.k_block, number);
  }
  const char* at(int64_t k0, int64_t panel) const {
    return static_cast<const char*>(element_at(b_, k0, column_of(panel)));
  }
  int64_t k_bytes() const { return b_.row_stride * element_bytes(); }

  /// Packs one panel; what lies ahead_bytes behind each line that is read is prefetched.
  void pack(int64_t k0, int64_t k, int64_t panel, char* dst, int64_t ahead_bytes) const {
    pack_panel_of(kernel_, b_, index_, {}, {k0, column_of(panel), k, panel_cols(panel)}, dst,
                  ahead_bytes);
  }
  /// The scales of the columns of some panels and of one block of inner values, zeros behind the
  /// last column.
  void scales(int64_t panel, int64_t panels, int64_t inner, float* to) const;
  /// Panels from [k0, panel] on, for a row tile to read where they lie and, given memory, to leave
  /// behind packed.
  void point_at(int64_t k0, int64_t panel, char* packed, TileArgs* args) const;
  /// The memory of k values and panels, as rows to prefetch.
  PrefetchWalk walk(int64_t k0, int64_t k, int64_t panel, int64_t panels) const;

 private:
  int64_t column_of(int64_t panel) const {
    return panel % panels() * kernel_.nr + panel / panels() * half_cols_;
  }
  int64_t panel_cols(int64_t panel) const {
    return std::min<int64_t>(kernel_.nr, cols_ - panel % panels() * kernel_.nr);
  }
  /// In memory of the caller, rows of B one stride apart.
  bool is_strided() const { return !is_packed() && !index_.given(); }
  /// Vectors along k hold values of one scale.
  bool columns_are_of_one_scale() const {
    return plan::inner_block_of(scales_.mode) % kernel_.column_k == 0;
  }
  bool takes_dtype() const {
    return b_.dtype == kernel_.source_dtype ||
           (kernel_.widened_dtypes >> static_cast<int>(b_.dtype) & 1) != 0;
  }

  const GemmKernel& kernel_;
  const ScaleRef& scales_;
  MatrixRef b_;
  const RowIndex& index_;
  const PackedMatrix* packed_;
  int64_t cols_, first_col_, first_panel_;
  int64_t half_cols_;  ///< from a gate to what it gates, or 0
  bool resident_;
  int64_t column_rows_;
};

}  // namespace cadre::cpu
