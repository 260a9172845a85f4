// Computes one work unit (a rectangle of one product's output) on the calling thread. Three ways
// lead through the same kernel, chosen by the number of rows and by how B lies; all add each
// element over ascending k into one accumulator, so all give the same bits:
//   blocked   many rows: a block of B is packed into L2 and used for all rows, which pass once for
//             each block
//   resident  few rows: all of A stays packed in cache and B passes once, straight from memory
//   turned    AMX, B contiguous along k: its columns are the rows of the left factor, as they lie
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/a_source.h"
#include "cpu/b_source.h"
#include "cpu/panel_sizes.h"
#include "cpu/scaled_sums.h"
#include "cpu/unit_output.h"
#include "cpu/work_units.h"

namespace cadre::cpu {

/// False when there is no memory for the packed panels.
bool multiply_unit(const WorkUnit& unit, const GemmPlan& plan);

bool multiply_blocked(const WorkUnit& unit, const GemmPlan& plan);
bool multiply_resident(const WorkUnit& unit, const GemmPlan& plan);
bool multiply_turned(const WorkUnit& unit, const GemmPlan& plan);

/// Rows are dealt out to row tiles evenly, 16 rows of a 14-row tile as 8 and 8, but for a first
/// tile that can only have few (`first_rows_max`, unless that is 0).
class RowTiles {
 public:
  RowTiles(int64_t rows, int64_t mr, int64_t first_rows_max);

  int64_t rows() const { return rows_; }
  int64_t count() const { return count_; }
  int64_t begin(int64_t tile) const {
    if (first_rows_ == 0) return rows_ * tile / count_;
    return tile == 0 ? 0 : first_rows_ + (rows_ - first_rows_) * (tile - 1) / (count_ - 1);
  }
  int rows_of(int64_t tile) const { return static_cast<int>(begin(tile + 1) - begin(tile)); }

 private:
  int64_t rows_, count_;
  int64_t first_rows_ = 0;  ///< of a first tile that differs from the others
};

/// What every way through a unit knows of it.
struct Unit {
  Unit(const WorkUnit& unit, const GemmPlan& plan);

  const GemmKernel& kernel;
  const Blocking& blocking;
  int threads;
  int64_t k;
  ASource a;
  BSource b;
  ScaledSums sums;
  RowTiles rows;
  UnitOutput out;

  int64_t granules(int64_t k_values) const { return granules_of(kernel, k_values); }
  /// Steps of a multiplication in which the kernel advances a prefetch walk.
  int64_t prefetch_steps(int64_t k_values) const {
    return granules(k_values) < 16 ? 1 : granules(k_values) / 16;
  }
  /// What a shifted B adds to each sum of packed rows (kSurplusGranule).
  const void* surplus_of(const char* packed_rows) const {
    return packed_rows + kSurplusGranule * kernel.granule_bytes;
  }
};

/// Parts of these sizes, one after the other, in the thread's scratch memory, each on cache lines
/// of its own; false when there is no memory.
bool take_scratch(const int64_t* sizes, size_t count, char** parts);
template <size_t kParts>
bool take_scratch(const int64_t (&sizes)[kParts], char* (&parts)[kParts]) {
  return take_scratch(sizes, kParts, parts);
}

/// Cache lines that a walk will ask for.
int64_t lines_of(const PrefetchWalk& walk);
/// Asks at once for all that is left of a walk.
void prefetch_all(PrefetchWalk* walk);

}  // namespace cadre::cpu
