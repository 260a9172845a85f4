// Cuts a list of products into rectangles of output that threads take one after the other.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/gemm_driver.h"

namespace cadre::cpu {

struct WorkUnit {
  const GemmItem* item;
  int64_t m_begin, m_end;
  int64_t n_begin, n_end;
  bool resident;  ///< few rows: all of packed A stays in cache and B passes once
};

/// Largest first; a few units for each thread wherever the work allows.
std::vector<WorkUnit> make_work_units(const std::vector<GemmItem>& items, const GemmPlan& plan);

}  // namespace cadre::cpu
