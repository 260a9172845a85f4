// Where a unit's sums go: straight into D by the kernel, or through the epilogue.
#pragma once

#include <cstdint>

#include "cpu/work_units.h"

namespace cadre::cpu {

class UnitOutput {
 public:
  /// Columns of B that are read as they lie gain nothing by rounding their few sums themselves
  /// (`may_round`).
  UnitOutput(const WorkUnit& unit, const GemmKernel& kernel, bool may_round);

  /// Memory for the bias in the epilogue's own type, and widening it there.
  int64_t bias_bytes() const;
  void widen_bias(char* memory);

  /// Nothing is left to do to the sums but to store them.
  bool is_plain() const { return plain_; }
  /// Lets the kernel store finished sums from a row on straight into D, where D takes them as they
  /// are and the panel is whole.
  bool point_at(int64_t row, int64_t panel, TileArgs* args) const;
  /// Sums of consecutive rows and panels, and of their gates where these are panels of their own.
  struct Finished {
    int64_t row;
    int rows;
    int64_t panel, panels;  ///< of a half
    const char *acc, *gate_acc;
    int64_t acc_panel_bytes;
  };
  /// The epilogue.
  void finish(const Finished& sums) const;

 private:
  int64_t cols() const { return unit_.n_end - unit_.n_begin; }

  const WorkUnit& unit_;
  const GemmItem& item_;
  const GemmKernel& kernel_;
  bool plain_, past_cache_;
  const char* bias_ = nullptr;
};

}  // namespace cadre::cpu
