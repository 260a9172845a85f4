// Products of FP8 codes, one block of scales at a time.
#include "cpu/scaled_sums.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/convert.h"

namespace cadre::cpu {
namespace {

/// Moves on by k values, whole granules.
void advance(const GemmKernel& kernel, int64_t k, TileArgs* args) {
  const int64_t granules = k / kernel.granule_k;
  const int64_t rows = kernel.interleaves_a ? args->rows : 1;
  args->a = static_cast<const char*>(args->a) + granules * rows * kernel.granule_bytes;
  const bool columns = args->b_from == BFrom::kColumns || args->b_from == BFrom::kColumnsKept;
  const int64_t b_bytes =
      columns ? k * static_cast<int64_t>(size_of(args->b_dtype)) : granules * args->b_granule_bytes;
  args->b = static_cast<const char*>(args->b) + b_bytes;
  if (args->b_packed != nullptr) {
    args->b_packed = static_cast<char*>(args->b_packed) + granules * b_granule_bytes(kernel);
  }
}

}  // namespace

float scale_factor(const ScaleRef& scales, int64_t outer_block, int64_t inner) {
  const int64_t at = outer_block * scales.outer_stride + inner * scales.inner_stride;
  const auto scale = static_cast<float>(load_as_double(scales.data, scales.dtype, at));
  return std::isinf(scale) ? std::numeric_limits<float>::quiet_NaN() : scale;
}

ScaledSums::ScaledSums(const WorkUnit& unit, const GemmKernel& kernel, const ASource& a,
                       const BSource& b)
    : kernel_(kernel),
      a_(a),
      b_(b),
      given_(unit.item->a_scales.given() && unit.item->k > 0),
      k_(unit.item->k),
      block_k_(given_ ? plan::inner_block_of(unit.item->a_scales.mode) : 0) {}

int64_t ScaledSums::scratch_bytes(int64_t k, int64_t panels) const {
  if (!given_) return 0;
  const int64_t floats = kernel_.mr + blocks_of(k) * panels * kernel_.nr;
  return partial_bytes(panels) + floats * static_cast<int64_t>(sizeof(float));
}

void ScaledSums::use(char* memory, int64_t panels) {
  partial_ = memory;
  row_scales_ = reinterpret_cast<float*>(memory + partial_bytes(panels));
  column_scales_ = row_scales_ + kernel_.mr;
}

void ScaledSums::prepare(KRange k, int64_t panel, int64_t panels) {
  if (!given_) return;
  first_block_ = block_k_ == 0 ? 0 : k.begin / block_k_;
  first_panel_ = panel;
  prepared_panels_ = panels;
  for (int64_t i = 0; i < blocks_of(k.count); ++i) {
    b_.scales(panel, panels, first_block_ + i, column_scales_ + i * panels * kernel_.nr);
  }
}

void ScaledSums::multiply(const TileArgs& args, KRange k, int64_t row, int64_t panel) const {
  if (!given_) return kernel_.multiply(args);
  if (block_k_ == 0) {
    kernel_.multiply(args);
    if (k.begin + k.count == k_) add(args, args.acc, true, 0, row, panel);
    return;
  }
  for (int64_t done = 0; done < k.count; done += block_k_) {
    TileArgs part = args;
    advance(kernel_, done, &part);
    part.granules = granules_of(kernel_, std::min(block_k_, k.count - done));
    part.acc = partial_;
    part.first = true;
    kernel_.multiply(part);
    add(args, partial_, args.first && done == 0, (k.begin + done) / block_k_, row, panel);
  }
}

void ScaledSums::add(const TileArgs& args, const void* sums, bool first, int64_t inner, int64_t row,
                     int64_t panel) const {
  a_.scales(row, args.rows, inner, row_scales_);
  const int64_t column =
      ((inner - first_block_) * prepared_panels_ + panel - first_panel_) * kernel_.nr;
  kernel_.add_scaled({.sums = sums,
                      .total = args.acc,
                      .acc_panel_bytes = args.acc_panel_bytes,
                      .panels = args.panels,
                      .rows = args.rows,
                      .first = first,
                      .row_scales = row_scales_,
                      .column_scales = column_scales_ + column});
}

}  // namespace cadre::cpu
