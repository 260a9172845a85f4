// Packing rows of A, and the memory they come from.
#include "cpu/a_source.h"

#include <algorithm>

#include "cpu/row_gather.h"
#include "plan/group_offsets.h"

namespace cadre::cpu {

int64_t ASource::gather_bytes(int64_t rows, int64_t k) const {
  const bool gathers = item_.a_rows.given() || item_.a_cols.given();
  return gathers ? rows * k * static_cast<int64_t>(size_of(item_.a.dtype)) : 0;
}

void ASource::pack(int64_t row, int64_t rows, int64_t k0, int64_t k, char* dst) const {
  const Rectangle rectangle{first_row_ + row, k0, rows, k};
  const MatrixRef from =
      item_.a_rows.given()   ? gather_rows(item_.a, item_.a_rows, rectangle, gathered_)
      : item_.a_cols.given() ? gather_cols(item_.a, item_.a_cols, rectangle, gathered_)
                             : part(item_.a, first_row_ + row, k0);
  kernel_.pack_a(from, rows, k, dst);
}

void ASource::pack_turned(int64_t row, int64_t rows, int64_t k, char* dst,
                          int64_t panel_bytes) const {
  const MatrixRef& a = item_.a;
  const MatrixRef turned{a.data, a.dtype, a.col_stride, a.row_stride};
  const int64_t next_bytes = kernel_.nr * a.row_stride * static_cast<int64_t>(size_of(a.dtype));
  for (int64_t done = 0; done < rows; done += kernel_.nr) {
    pack_panel_of(kernel_, turned, item_.a_cols, item_.a_rows,
                  {0, first_row_ + row + done, k, std::min<int64_t>(kernel_.nr, rows - done)},
                  dst + done / kernel_.nr * panel_bytes,
                  done + int64_t{2} * kernel_.nr <= rows ? next_bytes : 0);
  }
}

void ASource::scales(int64_t row, int64_t rows, int64_t inner, float* to) const {
  const RowIndex& index = item_.a_rows;
  for (int64_t i = 0; i < rows; ++i) {
    int64_t at = first_row_ + row + i;
    if (index.given()) at = plan::read_index(index.data, index.dtype, at * index.stride);
    to[i] = at < 0 ? 1.0f : scale_factor(item_.a_scales, at / item_.a_scales.outer_block, inner);
  }
}

PrefetchWalk ASource::walk(int64_t row, int64_t rows, int64_t k0, int64_t k) const {
  if (gathered_ != nullptr) return {};
  const MatrixRef a = part(item_.a, first_row_ + row, k0);
  const auto size = static_cast<int64_t>(size_of(a.dtype));
  const char* start = static_cast<const char*>(a.data);
  if (a.col_stride == 1) return {start, k * size, a.row_stride * size, rows};
  if (a.row_stride == 1) return {start, rows * size, a.col_stride * size, k};
  return {};
}

}  // namespace cadre::cpu
