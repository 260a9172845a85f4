// Packing rows of A, and the memory they come from.
#include "cpu/a_source.h"

#include <algorithm>

namespace cadre::cpu {

void ASource::pack_turned(int64_t row, int64_t rows, int64_t k, char* dst,
                          int64_t panel_bytes) const {
  for (int64_t done = 0; done < rows; done += kernel_.nr) {
    const MatrixRef from = part(a_, row + done, 0);
    const MatrixRef turned{from.data, from.dtype, from.col_stride, from.row_stride};
    const int64_t next_bytes =
        kernel_.nr * from.row_stride * static_cast<int64_t>(size_of(from.dtype));
    kernel_.pack_b(turned, k, std::min<int64_t>(kernel_.nr, rows - done),
                   dst + done / kernel_.nr * panel_bytes,
                   done + int64_t{2} * kernel_.nr <= rows ? next_bytes : 0);
  }
}

PrefetchWalk ASource::walk(int64_t row, int64_t rows, int64_t k0, int64_t k) const {
  const auto size = static_cast<int64_t>(size_of(a_.dtype));
  const char* start = static_cast<const char*>(element_at(a_, row, k0));
  if (a_.col_stride == 1) return {start, k * size, a_.row_stride * size, rows};
  if (a_.row_stride == 1) return {start, rows * size, a_.col_stride * size, k};
  return {};
}

}  // namespace cadre::cpu
