// Cuts a list of products into rectangles of output that threads take one after the other.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/gemm_driver.h"
#include "cpu/packed_matrix.h"

namespace cadre::cpu {

struct WorkUnit {
  const GemmItem* item;
  int64_t m_begin, m_end;
  int64_t n_begin, n_end;
  const PackedMatrix* packed;  ///< all of B, packed before; null: the unit packs what it needs
  bool resident;               ///< few rows: all of packed A stays in cache and B passes once
  bool turned = false;         ///< B is multiplied as it lies, A' as the right factor
};

/// True when B would be packed by several units (a large expert on several threads), so that it is
/// better packed once, by all threads, and shared.
bool shares_packed_b(const GemmItem& item, double total_work, const GemmPlan& plan);

/// `packed[i]` (or null) belongs to `items[i]`; the vector may be empty. Largest first; a few units
/// for each thread wherever the work allows.
std::vector<WorkUnit> make_work_units(const std::vector<GemmItem>& items,
                                      const std::vector<const PackedMatrix*>& packed,
                                      const GemmPlan& plan);

/// How finely to cut: of some numbers the one with which the last thread is expected to finish
/// first, counting what each unit packs.
int choose_units_per_thread(const std::vector<GemmItem>& items, const GemmPlan& plan);

/// Multiply-adds of all items, weighted as the units are.
double total_work(const std::vector<GemmItem>& items);

}  // namespace cadre::cpu
