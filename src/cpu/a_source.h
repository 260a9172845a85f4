// Where a unit's rows of A come from, packed for the kernel: consecutive rows, or rows by index.
#pragma once

#include <cstdint>

#include "cpu/work_units.h"

namespace cadre::cpu {

class ASource {
 public:
  ASource(const WorkUnit& unit, const GemmKernel& kernel)
      : kernel_(kernel), item_(*unit.item), first_row_(unit.m_begin) {}

  /// Memory that rows by index pass through, at most `rows` of k values at a time.
  int64_t gather_bytes(int64_t rows, int64_t k) const;
  void gather_in(char* memory) { gathered_ = memory; }

  /// Rows [row, row + rows) and k values [k0, k0 + k), as the kernel reads them.
  void pack(int64_t row, int64_t rows, int64_t k0, int64_t k, char* dst) const;
  /// The same rows as panels of columns of the transpose, each panel_bytes long.
  void pack_turned(int64_t row, int64_t rows, int64_t k, char* dst, int64_t panel_bytes) const;
  /// The scales of rows and of one block of inner values.
  void scales(int64_t row, int64_t rows, int64_t inner, float* to) const;
  /// Their memory, where it has one stride.
  PrefetchWalk walk(int64_t row, int64_t rows, int64_t k0, int64_t k) const;

 private:
  const GemmKernel& kernel_;
  const GemmItem& item_;
  int64_t first_row_;
  char* gathered_ = nullptr;
};

}  // namespace cadre::cpu
