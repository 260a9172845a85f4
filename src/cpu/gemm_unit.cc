// The parts of a work unit that do not depend on the way through it. Three ways lead through the
// same kernel, chosen by the number of rows and by how B lies; all add each element over ascending
// k into one accumulator, so all give the same bits:
//   blocked   many rows: a block of B is packed into L2 and used for all rows, which pass once for
//             each block
//   resident  few rows: all of A stays packed in cache and B passes once, straight from memory
//   turned    AMX, B contiguous along k: its columns are the rows of the left factor, as they lie
#include "cpu/gemm_unit.h"

#include "core/convert.h"
#include "cpu/unit_run.h"

namespace cadre::cpu {
namespace {

VectorRef part(const VectorRef& vector, int64_t first) {
  if (!vector.data) return vector;
  const auto bytes = first * vector.stride * static_cast<int64_t>(size_of(vector.dtype));
  return {static_cast<const char*>(vector.data) + bytes, vector.dtype, vector.stride};
}

}  // namespace

int64_t lines_of(const PrefetchWalk& walk) { return walk.rows_left * ceil_div(walk.row_bytes, 64); }

void prefetch_all(PrefetchWalk* walk) {
  for (; walk->rows_left > 0; --walk->rows_left) {
    for (int64_t byte = walk->column_bytes; byte < walk->row_bytes; byte += 64) {
      __builtin_prefetch(walk->row + byte, 0, 2);
    }
    walk->row += walk->stride_bytes;
    walk->column_bytes = 0;
  }
}

/// Nothing is left to do to the sums but to store them, rounded where multiply can.
bool UnitRun::is_plain_out() const {
  const auto size = size_of(item_.d.dtype);
  return item_.alpha == 1 && item_.beta == 0 && !item_.bias.data && !item_.row_scale.data &&
         (item_.d.dtype == kernel_.acc_dtype || item_.d.dtype == kernel_.rounded_dtype) &&
         item_.d.col_stride == 1 && reinterpret_cast<uintptr_t>(item_.d.data) % size == 0;
}

/// Results that outweigh both the operands and the caches (weight gradients of few rows).
bool UnitRun::is_past_cache() const {
  const auto size = static_cast<int64_t>(size_of(item_.d.dtype));
  return item_.k < std::min(item_.m, item_.n) / 2 &&
         item_.m * item_.n * size > 2 * cache_sizes().l2_bytes;
}

bool UnitRun::point_at_out(int64_t row, int64_t panel, TileArgs* args) const {
  const bool rounded = item_.d.dtype != kernel_.acc_dtype;
  // Columns read as they lie gain nothing by rounding their few sums themselves.
  if (!plain_out_ || panel >= full_panels_ || (rounded && few_rows_ > 0)) return false;
  const auto size = static_cast<int64_t>(size_of(item_.d.dtype));
  args->out = element_at(item_.d, unit_.m_begin + row, unit_.n_begin + panel * kernel_.nr);
  args->out_rounded = rounded;
  args->out_row_bytes = item_.d.row_stride * size;
  args->out_panel_bytes = kernel_.nr * size;
  args->out_past_cache = past_cache_ && reinterpret_cast<uintptr_t>(args->out) % 64 == 0 &&
                         args->out_row_bytes % 64 == 0 && args->out_panel_bytes % 64 == 0;
  return true;
}

const void* UnitRun::widen_bias(char* memory) const {
  if (!item_.bias.data) return nullptr;
  const bool f32 = kernel_.acc_dtype == DType::kF32;
  const VectorRef bias = part(item_.bias, unit_.n_begin);
  for (int64_t j = 0; j < cols_; ++j) {
    const double value = load_as_double(bias.data, bias.dtype, j * bias.stride);
    if (f32) {
      reinterpret_cast<float*>(memory)[j] = static_cast<float>(value);
    } else {
      reinterpret_cast<double*>(memory)[j] = value;
    }
  }
  return memory;
}

void UnitRun::finish(int64_t first_row, int rows, int64_t panel, int64_t panels, const char* acc,
                     int64_t acc_panel_bytes) const {
  const int64_t row = unit_.m_begin + first_row;
  const int64_t col = unit_.n_begin + panel * kernel_.nr;
  const int64_t bias_size = kernel_.acc_dtype == DType::kF32 ? 4 : 8;
  const char* bias = static_cast<const char*>(bias_);
  kernel_.epilogue({.acc = acc,
                    .acc_panel_bytes = acc_panel_bytes,
                    .rows = rows,
                    .cols = std::min(panels * kernel_.nr, cols_ - panel * kernel_.nr),
                    .d = cpu::part(item_.d, row, col),
                    .c = item_.beta != 0 ? cpu::part(item_.c, row, col) : MatrixRef{},
                    .bias = bias ? bias + panel * kernel_.nr * bias_size : nullptr,
                    .bias_scale = part(item_.bias_scale, row),
                    .row_scale = part(item_.row_scale, row),
                    .alpha = item_.alpha,
                    .beta = item_.beta,
                    .past_cache = past_cache_});
}

void UnitRun::point_at_source(int64_t k0, int64_t panel, char* packed, TileArgs* args) const {
  const auto size = static_cast<int64_t>(size_of(b_.dtype));
  args->b = element_at(b_, k0, panel * kernel_.nr);
  args->b_panel_bytes = kernel_.nr * b_.col_stride * size;
  args->b_dtype = b_.dtype;
  args->b_k_bytes = b_.row_stride * size;
  args->b_column_bytes = b_.col_stride * size;
  args->b_granule_bytes = args->b_k_bytes * kernel_.granule_k;
  args->b_packed = packed;
  if (few_rows_ > 0) {
    args->b_from = packed != nullptr ? BFrom::kColumnsKept : BFrom::kColumns;
  } else {
    args->b_from = packed != nullptr ? BFrom::kSourceKept : BFrom::kSource;
  }
}

PrefetchWalk UnitRun::walk_over(int64_t k0, int64_t k, int64_t panel, int64_t panels) const {
  const int64_t col = panel * kernel_.nr;
  const int64_t cols = std::min(panels * kernel_.nr, cols_ - col);
  if (k <= 0 || cols <= 0) return {};
  if (unit_.packed) {
    return {packed_at(k0, panel), ceil_div(cols, kernel_.nr) * b_panel_bytes(k), 0, 1};
  }
  const auto size = static_cast<int64_t>(size_of(b_.dtype));
  const char* start = static_cast<const char*>(element_at(b_, k0, col));
  if (b_.col_stride == 1) return {start, cols * size, b_.row_stride * size, k};
  if (b_.row_stride == 1) return {start, k * size, b_.col_stride * size, cols};
  return {};
}

PrefetchWalk UnitRun::walk_over_rows(int64_t tile, int64_t k0, int64_t k) const {
  const auto size = static_cast<int64_t>(size_of(a_.dtype));
  const int64_t rows = tile_rows(tile);
  const char* start = static_cast<const char*>(element_at(a_, tile_begin(tile), k0));
  if (a_.col_stride == 1) return {start, k * size, a_.row_stride * size, rows};
  if (a_.row_stride == 1) return {start, rows * size, a_.col_stride * size, k};
  return {};
}

bool multiply_unit(const WorkUnit& unit, const GemmPlan& plan, SharedBlock* shared) {
  UnitRun run(unit, plan);
  if (unit.turned) return run.turned();
  return unit.resident ? run.resident() : run.blocked(shared);
}

bool can_share(const WorkUnit& unit, const GemmPlan& plan) {
  return !unit.resident && !unit.turned && UnitRun(unit, plan).can_share();
}

void help_with_unit(const WorkUnit& unit, const GemmPlan& plan, SharedBlock* shared) {
  if (shared->is_open()) UnitRun(unit, plan).help(shared);
}

}  // namespace cadre::cpu
