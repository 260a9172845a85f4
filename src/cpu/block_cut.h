// How a unit of many rows cuts its B into blocks that are packed into L2 one after the other.
#pragma once

#include "cpu/unit.h"

namespace cadre::cpu {

/// A part of B, from all of which packed panels are in L2 at a time. Blocks are worked on in the
/// order of k, then of columns.
struct Block {
  int64_t k_index, k0, k;
  int64_t half;           ///< those of a gate and of what it gates take turns
  int64_t panel, panels;  ///< the first one, of the unit, and how many
  int64_t full_panels;
  bool last;  ///< of k
};

class BlockCut {
 public:
  explicit BlockCut(const Unit& unit);

  int64_t count() const { return n_blocks * k_blocks; }
  /// An empty one behind the last.
  Block block_at(int64_t index) const;

  int64_t k_blocks = 1, k_block = 0;       ///< blocks along k, and k values of one
  int64_t n_blocks = 1, block_panels = 0;  ///< blocks along n, and panels of one
  bool keeps_a = false;                    ///< packed A stays for the next block of columns
  bool packs_beside = false;               ///< a block is packed beside the products of another

 private:
  const Unit& unit_;
};

}  // namespace cadre::cpu
