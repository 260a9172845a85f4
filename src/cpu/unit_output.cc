// Decides what the kernel may store itself, and calls the epilogue for the rest.
#include "cpu/unit_output.h"

#include <algorithm>

#include "core/convert.h"
#include "cpu/cache.h"
#include "cpu/panel_sizes.h"

namespace cadre::cpu {
namespace {

VectorRef part(const VectorRef& vector, int64_t first) {
  if (!vector.data) return vector;
  const auto bytes = first * vector.stride * static_cast<int64_t>(size_of(vector.dtype));
  return {static_cast<const char*>(vector.data) + bytes, vector.dtype, vector.stride};
}

/// Nothing is left to do to the sums but to store them, rounded where multiply can.
bool stores_sums_as_they_are(const GemmItem& item, const GemmKernel& kernel, bool may_round) {
  return !item.activates() && !item.a_scales.given() && item.alpha == 1 && item.beta == 0 &&
         !item.bias.data && !item.row_scale.data &&
         (item.d.dtype == kernel.acc_dtype ||
          (may_round && item.d.dtype == kernel.rounded_dtype)) &&
         item.d.col_stride == 1 &&
         reinterpret_cast<uintptr_t>(item.d.data) % size_of(item.d.dtype) == 0;
}

/// Results that outweigh both the operands and the caches (weight gradients of few rows).
bool outweighs_caches(const GemmItem& item) {
  const auto size = static_cast<int64_t>(size_of(item.d.dtype));
  return item.k < std::min(item.m, item.n) / 2 &&
         item.m * item.n * size > 2 * cache_sizes().l2_bytes;
}

}  // namespace

UnitOutput::UnitOutput(const WorkUnit& unit, const GemmKernel& kernel, bool may_round)
    : unit_(unit),
      item_(*unit.item),
      kernel_(kernel),
      plain_(stores_sums_as_they_are(item_, kernel, may_round)),
      past_cache_(outweighs_caches(item_)) {}

int64_t UnitOutput::bias_bytes() const {
  const int64_t columns = round_up(cols(), kernel_.nr) * (item_.is_paired() ? 2 : 1);
  return item_.bias.data ? columns * 8 : 0;
}

/// In the order of panels, with zeros behind the last column of each half.
void UnitOutput::widen_bias(char* memory) {
  if (!item_.bias.data) return;
  bias_ = memory;
  const VectorRef bias = part(item_.bias, unit_.n_begin);
  const int64_t half_cols = round_up(cols(), kernel_.nr);
  for (int64_t i = 0; i < half_cols * (item_.is_paired() ? 2 : 1); ++i) {
    const int64_t j = i % half_cols;
    const int64_t column = j + i / half_cols * item_.result_cols();
    const double value =
        j < cols() ? load_as_double(bias.data, bias.dtype, column * bias.stride) : 0.0;
    if (kernel_.acc_dtype == DType::kF32) {
      reinterpret_cast<float*>(memory)[i] = static_cast<float>(value);
    } else {
      reinterpret_cast<double*>(memory)[i] = value;
    }
  }
}

bool UnitOutput::point_at(int64_t row, int64_t panel, TileArgs* args) const {
  if (!plain_ || panel >= cols() / kernel_.nr) return false;
  const auto size = static_cast<int64_t>(size_of(item_.d.dtype));
  args->out = element_at(item_.d, unit_.m_begin + row, unit_.n_begin + panel * kernel_.nr);
  args->out_rounded = item_.d.dtype != kernel_.acc_dtype;
  args->out_row_bytes = item_.d.row_stride * size;
  args->out_panel_bytes = kernel_.nr * size;
  args->out_past_cache = past_cache_ && reinterpret_cast<uintptr_t>(args->out) % 64 == 0 &&
                         args->out_row_bytes % 64 == 0 && args->out_panel_bytes % 64 == 0;
  return true;
}

void UnitOutput::finish(const Finished& sums) const {
  const int64_t row = unit_.m_begin + sums.row;
  // Columns of the unit; two of them make a result where gates lie between what they gate.
  const int64_t begin = unit_.n_begin + sums.panel * kernel_.nr;
  const int64_t end = std::min(begin + sums.panels * kernel_.nr, unit_.n_end);
  const int64_t per_result = item_.is_paired() ? 1 : item_.step.activation.columns();
  const int64_t col = begin / per_result;
  const int64_t bias_size = kernel_.acc_dtype == DType::kF32 ? 4 : 8;
  const char* const bias = bias_ ? bias_ + sums.panel * kernel_.nr * bias_size : nullptr;
  const int64_t half_bias = round_up(cols(), kernel_.nr) * bias_size;
  EpilogueArgs args{.acc = sums.acc,
                    .acc_panel_bytes = sums.acc_panel_bytes,
                    .rows = sums.rows,
                    .cols = end / per_result - col,
                    .d = cpu::part(item_.d, row, col),
                    .c = item_.beta != 0 ? cpu::part(item_.c, row, col) : MatrixRef{},
                    .bias = bias,
                    .bias_scale = part(item_.bias_scale, row),
                    .row_scale = part(item_.row_scale, row),
                    .alpha = item_.alpha,
                    .beta = item_.beta,
                    .past_cache = past_cache_,
                    .step = nullptr,
                    .gate_acc = sums.gate_acc,
                    .gate_bias = bias,
                    .up_columns = item_.result_cols()};
  if (!item_.activates()) return kernel_.epilogue(args);
  if (sums.gate_acc != nullptr && bias != nullptr) args.bias = bias + half_bias;
  ActivationStep step = item_.step;
  if (step.pre.data != nullptr) step.pre = cpu::part(step.pre, row, begin);
  args.step = &step;
  kernel_.activated(args);
}

}  // namespace cadre::cpu
