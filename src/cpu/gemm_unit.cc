// One work unit. Two ways through the same kernel, chosen by the number of rows; both add each
// element over ascending k into one accumulator, so both give the same bits:
//   blocked   many rows: a block of B is packed into L2 and used for all rows, which pass once for
//   each block resident  few rows: all of A stays packed in cache and B passes once, straight from
//   memory
#include "cpu/gemm_unit.h"

#include <algorithm>

#include "core/convert.h"
#include "cpu/scratch.h"

namespace cadre::cpu {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

MatrixRef part(const MatrixRef& matrix, int64_t row, int64_t col) {
  return {element_at(matrix, row, col), matrix.dtype, matrix.row_stride, matrix.col_stride};
}

VectorRef part(const VectorRef& vector, int64_t first) {
  if (!vector.data) return vector;
  const auto bytes = first * vector.stride * static_cast<int64_t>(size_of(vector.dtype));
  return {static_cast<const char*>(vector.data) + bytes, vector.dtype, vector.stride};
}

/// Hands out consecutive pieces of the thread's scratch memory; first counts, then serves.
class Arena {
 public:
  explicit Arena(char* base) : next_(base) {}
  char* take(int64_t bytes) {
    char* piece = next_;
    next_ += round_up(bytes, 64) + 64;  // one line apart, so that no two pieces share one
    return piece;
  }

 private:
  char* next_;
};

class UnitRun {
 public:
  UnitRun(const WorkUnit& unit, const GemmPlan& plan)
      : unit_(unit),
        item_(*unit.item),
        kernel_(*plan.kernel),
        blocking_(plan.blocking),
        rows_(unit.m_end - unit.m_begin),
        cols_(unit.n_end - unit.n_begin),
        tiles_(ceil_div(rows_, kernel_.mr)),
        panels_(ceil_div(cols_, kernel_.nr)),
        a_(part(item_.a, unit.m_begin, 0)),
        b_(part(item_.b, 0, unit.n_begin)) {}

  bool blocked();
  bool resident();

 private:
  int64_t granules_of(int64_t k) const {
    return ceil_div(round_up(k, kernel_.k_step), kernel_.granule_k);
  }
  int64_t a_tile_bytes() const { return kernel_.mr * kPackedRowStride * kernel_.granule_bytes; }
  int64_t b_panel_bytes(int64_t k) const {
    return granules_of(k) * kernel_.nr * kernel_.granule_bytes + kernel_.panel_extra_bytes;
  }
  int64_t acc_tile_bytes() const {
    return int64_t{kernel_.mr} * kernel_.nr * static_cast<int64_t>(size_of(kernel_.acc_dtype));
  }
  /// Rows are dealt out evenly: 16 rows of a 14-row tile are 8 and 8.
  int64_t tile_begin(int64_t tile) const { return rows_ * tile / tiles_; }
  int tile_rows(int64_t tile) const {
    return static_cast<int>(tile_begin(tile + 1) - tile_begin(tile));
  }
  int64_t panel_cols(int64_t panel) const {
    return std::min<int64_t>(kernel_.nr, cols_ - panel * kernel_.nr);
  }
  bool b_along_n() const { return b_.col_stride == 1; }

  int64_t bias_bytes() const { return item_.bias.data ? panels_ * kernel_.nr * 8 : 0; }
  const void* widen_bias(char* memory) const;
  void finish(int64_t tile, int64_t panel, int64_t panels, const char* acc) const;
  void resident_by_panel(const char* a, char* b, char* acc) const;
  void resident_by_row(const char* a, char* b, char* acc) const;
  void multiply_piece(const char* a, int64_t k0, int64_t k, int64_t tile, TileArgs args) const;
  PrefetchWalk walk_over(int64_t k0, int64_t k) const;

  const WorkUnit& unit_;
  const GemmItem& item_;
  const GemmKernel& kernel_;
  const Blocking& blocking_;
  int64_t rows_, cols_, tiles_, panels_;
  MatrixRef a_, b_;
  const void* bias_ = nullptr;
};

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

/// The epilogue of a row tile over consecutive panels.
void UnitRun::finish(int64_t tile, int64_t panel, int64_t panels, const char* acc) const {
  const int64_t row = unit_.m_begin + tile_begin(tile);
  const int64_t col = unit_.n_begin + panel * kernel_.nr;
  const int64_t bias_size = kernel_.acc_dtype == DType::kF32 ? 4 : 8;
  const char* bias = static_cast<const char*>(bias_);
  kernel_.epilogue({.acc = acc,
                    .acc_panel_bytes = acc_tile_bytes(),
                    .rows = tile_rows(tile),
                    .cols = std::min(panels * kernel_.nr, cols_ - panel * kernel_.nr),
                    .d = part(item_.d, row, col),
                    .c = item_.beta != 0 ? part(item_.c, row, col) : MatrixRef{},
                    .bias = bias ? bias + panel * kernel_.nr * bias_size : nullptr,
                    .bias_scale = part(item_.bias_scale, row),
                    .row_scale = part(item_.row_scale, row),
                    .alpha = item_.alpha,
                    .beta = item_.beta});
}

/// The source of the block of B at k0, as the kernel prefetches it.
PrefetchWalk UnitRun::walk_over(int64_t k0, int64_t k) const {
  if (k <= 0) return {};
  const auto size = static_cast<int64_t>(size_of(b_.dtype));
  const char* start = static_cast<const char*>(element_at(b_, k0, 0));
  if (b_.col_stride == 1) return {start, cols_ * size, b_.row_stride * size, k, 0};
  if (b_.row_stride == 1) return {start, k * size, b_.col_stride * size, cols_, 0};
  return {};
}

bool UnitRun::blocked() {
  const int64_t k_blocks = std::max<int64_t>(ceil_div(item_.k, blocking_.k_block), 1);
  const int64_t k_step = std::max<int64_t>(int64_t{16} * kernel_.granule_k, kernel_.k_step);
  const int64_t k_block = round_up(std::max<int64_t>(ceil_div(item_.k, k_blocks), 1), k_step);
  const int64_t acc_tiles = k_blocks > 1 ? tiles_ : 1;
  const int64_t acc_bytes = panels_ * acc_tile_bytes();
  const int64_t sizes[] = {a_tile_bytes(), panels_ * b_panel_bytes(k_block), acc_tiles * acc_bytes,
                           bias_bytes()};
  int64_t total = 0;
  for (const int64_t size : sizes) total += round_up(size, 64) + 64;
  auto* memory = static_cast<char*>(Scratch::of_this_thread().reserve(static_cast<size_t>(total)));
  if (!memory) return false;
  Arena arena(memory);
  char* const a_packed = arena.take(sizes[0]);
  char* const b_packed = arena.take(sizes[1]);
  char* const acc = arena.take(sizes[2]);
  bias_ = widen_bias(arena.take(sizes[3]));

  const auto b_size = static_cast<int64_t>(size_of(b_.dtype));
  for (int64_t block = 0; block < k_blocks; ++block) {
    const int64_t k0 = std::min(block * k_block, item_.k);
    const int64_t k = std::min(k_block, item_.k - k0);
    const bool last = block == k_blocks - 1;
    // B: [k, cols] -> panels.
    const int64_t panel_bytes = b_panel_bytes(k);
    const int64_t ahead = b_along_n() ? kernel_.nr * b_size : kernel_.nr * b_.col_stride * b_size;
    for (int64_t panel = 0; panel < panels_; ++panel) {
      kernel_.pack_b(part(b_, k0, panel * kernel_.nr), k, panel_cols(panel),
                     panel + 1 < panels_ ? ahead : 0, b_packed + panel * panel_bytes);
    }
    PrefetchWalk walk =
        last ? PrefetchWalk{} : walk_over(k0 + k, std::min(k_block, item_.k - k0 - k));
    // A: every row tile against all panels.
    for (int64_t tile = 0; tile < tiles_; ++tile) {
      kernel_.pack_a(part(a_, tile_begin(tile), k0), tile_rows(tile), k, a_packed);
      char* const tile_acc = acc + (acc_tiles > 1 ? tile : 0) * acc_bytes;
      kernel_.multiply({.a = a_packed,
                        .b = b_packed,
                        .b_panel_bytes = panel_bytes,
                        .b_granule_bytes = int64_t{kernel_.nr} * kernel_.granule_bytes,
                        .acc = tile_acc,
                        .acc_panel_bytes = acc_tile_bytes(),
                        .granules = granules_of(k),
                        .panels = panels_,
                        .rows = tile_rows(tile),
                        .first = block == 0,
                        .prefetch = &walk});
      if (last) finish(tile, 0, panels_, tile_acc);
    }
  }
  return true;
}

bool UnitRun::resident() {
  const int64_t segment_k = kMaxGranules * kernel_.granule_k;
  const int64_t segments = std::max<int64_t>(ceil_div(item_.k, segment_k), 1);
  const bool by_row = b_along_n();
  const int64_t piece_k = by_row ? blocking_.stream_k : blocking_.panel_k;
  const int64_t sizes[] = {segments * tiles_ * a_tile_bytes(), b_panel_bytes(piece_k),
                           (by_row ? panels_ : 1) * tiles_ * acc_tile_bytes(), bias_bytes()};
  int64_t total = 0;
  for (const int64_t size : sizes) total += round_up(size, 64) + 64;
  auto* memory = static_cast<char*>(Scratch::of_this_thread().reserve(static_cast<size_t>(total)));
  if (!memory) return false;
  Arena arena(memory);
  char* const a_packed = arena.take(sizes[0]);
  char* const b_packed = arena.take(sizes[1]);
  char* const acc = arena.take(sizes[2]);
  bias_ = widen_bias(arena.take(sizes[3]));

  // A: all rows, in segments of k that a packed row can hold.
  for (int64_t segment = 0; segment < segments; ++segment) {
    const int64_t k0 = segment * segment_k;
    for (int64_t tile = 0; tile < tiles_; ++tile) {
      kernel_.pack_a(part(a_, tile_begin(tile), k0), tile_rows(tile),
                     std::min(segment_k, item_.k - k0),
                     a_packed + (segment * tiles_ + tile) * a_tile_bytes());
    }
  }
  if (by_row) {
    resident_by_row(a_packed, b_packed, acc);
  } else {
    resident_by_panel(a_packed, b_packed, acc);
  }
  return true;
}

/// k values [k0, k0 + k) of one row tile; a piece never crosses a segment, because it divides it.
void UnitRun::multiply_piece(const char* a, int64_t k0, int64_t k, int64_t tile,
                             TileArgs args) const {
  const int64_t segment_k = kMaxGranules * kernel_.granule_k;
  const int64_t inside = k0 % segment_k / kernel_.granule_k;
  PrefetchWalk none;
  args.a = a + (k0 / segment_k * tiles_ + tile) * a_tile_bytes() + inside * kernel_.granule_bytes;
  args.acc_panel_bytes = acc_tile_bytes();
  args.granules = granules_of(k);
  args.rows = tile_rows(tile);
  args.first = k0 == 0;
  if (!args.prefetch) args.prefetch = &none;
  kernel_.multiply(args);
}

/// B contiguous along k: one panel after the other; each piece of a panel is transposed into L1 and
/// used at once.
void UnitRun::resident_by_panel(const char* a, char* b, char* acc) const {
  const auto b_size = static_cast<int64_t>(size_of(b_.dtype));
  const int64_t piece_k = blocking_.panel_k;
  for (int64_t panel = 0; panel < panels_; ++panel) {
    int64_t k0 = 0;
    do {
      const int64_t k = std::min(piece_k, item_.k - k0);
      const bool last = k0 + k >= item_.k;
      const int64_t to_next = last ? kernel_.nr * b_.col_stride - k0 : piece_k;
      kernel_.pack_b(part(b_, k0, panel * kernel_.nr), k, panel_cols(panel),
                     last && panel + 1 == panels_ ? 0 : std::max<int64_t>(to_next * b_size, 0), b);
      for (int64_t tile = 0; tile < tiles_; ++tile) {
        multiply_piece(a, k0, k, tile,
                       {.b = b,
                        .b_granule_bytes = int64_t{kernel_.nr} * kernel_.granule_bytes,
                        .acc = acc + tile * acc_tile_bytes(),
                        .panels = 1});
      }
      k0 += k;
    } while (k0 < item_.k);
    for (int64_t tile = 0; tile < tiles_; ++tile)
      finish(tile, panel, 1, acc + tile * acc_tile_bytes());
  }
}

/// B contiguous along n: a few rows of B at a time, read in address order across all panels.
void UnitRun::resident_by_row(const char* a, char* b, char* acc) const {
  const auto b_size = static_cast<int64_t>(size_of(b_.dtype));
  const bool direct = kernel_.reads_unpacked_f32 && b_.dtype == DType::kF32 && tiles_ == 1;
  const int64_t full_panels = cols_ / kernel_.nr;
  const int64_t acc_bytes = panels_ * acc_tile_bytes();
  int64_t k0 = 0;
  do {
    const int64_t k = std::min(blocking_.stream_k, item_.k - k0);
    int64_t panel = 0;
    if (direct && full_panels > 0) {
      multiply_piece(a, k0, k, 0,
                     {.b = element_at(b_, k0, 0),
                      .b_panel_bytes = kernel_.nr * b_size,
                      .b_granule_bytes = b_.row_stride * b_size,
                      .acc = acc,
                      .panels = full_panels});
      panel = full_panels;
    }
    for (; panel < panels_; ++panel) {
      kernel_.pack_b(part(b_, k0, panel * kernel_.nr), k, panel_cols(panel),
                     panel + 1 < panels_ ? kernel_.nr * b_size : 0, b);
      for (int64_t tile = 0; tile < tiles_; ++tile) {
        multiply_piece(a, k0, k, tile,
                       {.b = b,
                        .b_granule_bytes = int64_t{kernel_.nr} * kernel_.granule_bytes,
                        .acc = acc + tile * acc_bytes + panel * acc_tile_bytes(),
                        .panels = 1});
      }
    }
    k0 += k;
  } while (k0 < item_.k);
  for (int64_t tile = 0; tile < tiles_; ++tile) finish(tile, 0, panels_, acc + tile * acc_bytes);
}

}  // namespace

bool multiply_unit(const WorkUnit& unit, const GemmPlan& plan) {
  UnitRun run(unit, plan);
  return unit.resident ? run.resident() : run.blocked();
}

}  // namespace cadre::cpu
