// A whole matrix B packed for one kernel: shared by the threads that work on a large expert, or
// kept by the caller (cadre::pack_weights).
#pragma once

#include <cstdint>

#include "cpu/blocking.h"
#include "cpu/gemm_item.h"
#include "cpu/kernels/gemm_kernel.h"

namespace cadre::cpu {

/// Blocks of k, one after the other; in a block one panel after the other, each as pack_b leaves
/// it.
struct PackedLayout {
  const GemmKernel* kernel;
  int64_t k, n;
  int64_t k_block;  ///< a power of two of granules: it divides a panel of A

  int64_t blocks() const;  ///< at least 1, also for k = 0
  int64_t panels() const;
  int64_t k_of(int64_t block) const;
  int64_t panel_bytes(int64_t block) const;
  int64_t offset_bytes(int64_t block, int64_t panel) const;
  int64_t size_bytes() const;
};

PackedLayout make_packed_layout(const GemmKernel& kernel, const Blocking& blocking, int64_t k,
                                int64_t n);

/// Packs one panel of one block of `b` ([k, n], its rows by index if there is one) to its place in
/// `data`.
void pack_panel(const PackedLayout& layout, const MatrixRef& b, const RowIndex& rows, int64_t block,
                int64_t panel, char* data);

struct PackedMatrix {
  PackedLayout layout;
  const char* data;
};

}  // namespace cadre::cpu
