// Sums of FP8 operands: codes are multiplied as they are, and the sum of the k values that share
// their scales is multiplied by these. The ways through a unit multiply through this class, which
// does nothing more for other operands.
#pragma once

#include <cstdint>

#include "cpu/a_source.h"
#include "cpu/b_source.h"
#include "cpu/kernels/gemm_kernel.h"

namespace cadre::cpu {

/// Of the inner dim: whole blocks of scales.
struct KRange {
  int64_t begin, count;
};

class ScaledSums {
 public:
  ScaledSums(const WorkUnit& unit, const GemmKernel& kernel, const ASource& a, const BSource& b);

  /// k values that share their scales, a power of two; 0 where all do.
  int64_t block_k() const { return block_k_; }
  /// Memory for products of at most `k` values with at most so many panels, one row tile at a time.
  int64_t scratch_bytes(int64_t k, int64_t panels) const;
  void use(char* memory, int64_t panels);

  /// Fetches the scales of the part of B that is multiplied next.
  void prepare(KRange k, int64_t panel, int64_t panels);
  /// GemmKernel::multiply of args.panels panels from `panel` on, inside the prepared part, with the
  /// row tile from `row` on. args.acc holds scaled sums when all of k has been multiplied.
  void multiply(const TileArgs& args, KRange k, int64_t row, int64_t panel) const;

 private:
  int64_t blocks_of(int64_t k) const { return block_k_ == 0 ? 1 : ceil_div(k, block_k_); }
  int64_t partial_bytes(int64_t panels) const {
    return block_k_ == 0 ? 0 : round_up(panels * acc_tile_bytes(kernel_), 64);
  }
  void add(const TileArgs& args, const void* sums, bool first, int64_t inner, int64_t row,
           int64_t panel) const;

  const GemmKernel& kernel_;
  const ASource& a_;
  const BSource& b_;
  bool given_;
  int64_t k_, block_k_;
  char* partial_ = nullptr;         ///< sums of one block of k
  float* row_scales_ = nullptr;     ///< of a tile
  float* column_scales_ = nullptr;  ///< [blocks of k][columns of the prepared part]
  int64_t first_block_ = 0, first_panel_ = 0, prepared_panels_ = 0;
};

}  // namespace cadre::cpu
