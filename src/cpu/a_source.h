// Where a unit's rows of A come from: packed for the kernel, or asked for ahead of that.
#pragma once

#include <cstdint>

#include "cpu/work_units.h"

namespace cadre::cpu {

class ASource {
 public:
  ASource(const WorkUnit& unit, const GemmKernel& kernel)
      : kernel_(kernel), a_(part(unit.item->a, unit.m_begin, 0)) {}

  /// Rows [row, row + rows) and k values [k0, k0 + k), as the kernel reads them.
  void pack(int64_t row, int64_t rows, int64_t k0, int64_t k, char* dst) const {
    kernel_.pack_a(part(a_, row, k0), rows, k, dst);
  }
  /// The same rows as panels of columns of the transpose, each panel_bytes long.
  void pack_turned(int64_t row, int64_t rows, int64_t k, char* dst, int64_t panel_bytes) const;
  /// Their memory.
  PrefetchWalk walk(int64_t row, int64_t rows, int64_t k0, int64_t k) const;

 private:
  const GemmKernel& kernel_;
  MatrixRef a_;
};

}  // namespace cadre::cpu
