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

/// A walk over the 14 rows of 1 KiB that a tile of A takes needs 28 steps, and a panel makes 16.
constexpr int64_t kRowPrefetchPanels = 2;

MatrixRef part(const MatrixRef& matrix, int64_t row, int64_t col) {
  return {element_at(matrix, row, col), matrix.dtype, matrix.row_stride, matrix.col_stride};
}

VectorRef part(const VectorRef& vector, int64_t first) {
  if (!vector.data) return vector;
  const auto bytes = first * vector.stride * static_cast<int64_t>(size_of(vector.dtype));
  return {static_cast<const char*>(vector.data) + bytes, vector.dtype, vector.stride};
}

/// Hands out consecutive pieces of the thread's scratch memory.
class Arena {
 public:
  explicit Arena(char* base) : next_(base) {}
  char* take(int64_t bytes) {
    char* piece = next_;
    next_ += padded(bytes);
    return piece;
  }
  /// Pieces start on cache lines of their own.
  static int64_t padded(int64_t bytes) { return round_up(bytes, 64) + 64; }

 private:
  char* next_;
};

/// Asks at once for all that is left of a walk.
void prefetch_all(PrefetchWalk* walk) {
  for (; walk->rows_left > 0; --walk->rows_left) {
    for (int64_t byte = walk->column_bytes; byte < walk->row_bytes; byte += 64) {
      __builtin_prefetch(walk->row + byte, 0, 2);
    }
    walk->row += walk->stride_bytes;
    walk->column_bytes = 0;
  }
}

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

  /// Results that outweigh both the operands and the caches (weight gradients of few rows).
  bool past_cache() const {
    const auto size = static_cast<int64_t>(size_of(item_.d.dtype));
    return item_.k < std::min(item_.m, item_.n) / 2 &&
           item_.m * item_.n * size > 2 * cache_sizes().l2_bytes;
  }
  int64_t bias_bytes() const { return item_.bias.data ? panels_ * kernel_.nr * 8 : 0; }
  /// Panels of the unit that were packed before; k0 is where a block of k starts.
  const char* packed_at(int64_t k0, int64_t panel) const {
    const PackedLayout& layout = unit_.packed->layout;
    return unit_.packed->data +
           layout.offset_bytes(k0 / layout.k_block, unit_.n_begin / kernel_.nr + panel);
  }
  const void* widen_bias(char* memory) const;
  void finish(int64_t tile, int64_t panel, int64_t panels, const char* acc) const;
  struct Piece {
    int64_t k, panels;
  };
  void stream_pieces(const Piece& piece, const char* a, char* b, char* acc) const;
  void stream_rows(const char* a, char* b, char* acc) const;
  void multiply_piece(const char* a, int64_t k0, int64_t k, int64_t tile, TileArgs args) const;
  PrefetchWalk walk_over_rows(int64_t tile, int64_t k0, int64_t k) const;
  PrefetchWalk walk_over(int64_t k0, int64_t k, int64_t panel, int64_t panels) const;

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
                    .beta = item_.beta,
                    .past_cache = past_cache()});
}

/// The source of k values and panels of B, as rows of memory to prefetch.
PrefetchWalk UnitRun::walk_over(int64_t k0, int64_t k, int64_t panel, int64_t panels) const {
  const int64_t col = panel * kernel_.nr;
  const int64_t cols = std::min(panels * kernel_.nr, cols_ - col);
  if (k <= 0 || cols <= 0) return {};
  if (unit_.packed) {
    return {packed_at(k0, panel), ceil_div(cols, kernel_.nr) * b_panel_bytes(k), 0, 1, 0};
  }
  const auto size = static_cast<int64_t>(size_of(b_.dtype));
  const char* start = static_cast<const char*>(element_at(b_, k0, col));
  if (b_.col_stride == 1) return {start, cols * size, b_.row_stride * size, k, 0};
  if (b_.row_stride == 1) return {start, k * size, b_.col_stride * size, cols, 0};
  return {};
}

/// The source of a row tile's k values, where its rows are contiguous.
PrefetchWalk UnitRun::walk_over_rows(int64_t tile, int64_t k0, int64_t k) const {
  if (a_.col_stride != 1) return {};
  const auto size = static_cast<int64_t>(size_of(a_.dtype));
  return {static_cast<const char*>(element_at(a_, tile_begin(tile), k0)), k * size,
          a_.row_stride * size, tile_rows(tile), 0};
}

bool UnitRun::blocked() {
  const int64_t k_blocks = unit_.packed
                               ? unit_.packed->layout.blocks()
                               : std::max<int64_t>(ceil_div(item_.k, blocking_.k_block), 1);
  const int64_t k_step = std::max<int64_t>(int64_t{16} * kernel_.granule_k, kernel_.k_step);
  const int64_t even_block = round_up(std::max<int64_t>(ceil_div(item_.k, k_blocks), 1), k_step);
  const int64_t k_block = unit_.packed ? unit_.packed->layout.k_block : even_block;
  const int64_t acc_tiles = k_blocks > 1 ? tiles_ : 1;
  const int64_t acc_bytes = panels_ * acc_tile_bytes();
  const int64_t b_bytes = unit_.packed ? 0 : panels_ * b_panel_bytes(k_block);
  const int64_t sizes[] = {a_tile_bytes(), b_bytes, acc_tiles * acc_bytes, bias_bytes()};
  int64_t total = 0;
  for (const int64_t size : sizes) total += Arena::padded(size);
  auto* memory = static_cast<char*>(Scratch::of_this_thread().reserve(static_cast<size_t>(total)));
  if (!memory) return false;
  Arena arena(memory);
  char* const a_packed = arena.take(sizes[0]);
  char* const b_scratch = arena.take(sizes[1]);
  char* const acc = arena.take(sizes[2]);
  bias_ = widen_bias(arena.take(sizes[3]));

  for (int64_t block = 0; block < k_blocks; ++block) {
    const int64_t k0 = std::min(block * k_block, item_.k);
    const int64_t k = std::min(k_block, item_.k - k0);
    const bool last = block == k_blocks - 1;
    // B: [k, cols] -> panels.
    const int64_t panel_bytes = b_panel_bytes(k);
    for (int64_t panel = 0; panel < panels_ && !unit_.packed; ++panel) {
      kernel_.pack_b(part(b_, k0, panel * kernel_.nr), k, panel_cols(panel),
                     b_scratch + panel * panel_bytes);
    }
    const char* const b_packed = unit_.packed ? packed_at(k0, 0) : b_scratch;
    PrefetchWalk walk =
        last ? PrefetchWalk{} : walk_over(k0 + k, std::min(k_block, item_.k - k0 - k), 0, panels_);
    // A: every row tile against all panels.
    for (int64_t tile = 0; tile < tiles_; ++tile) {
      kernel_.pack_a(part(a_, tile_begin(tile), k0), tile_rows(tile), k, a_packed);
      char* const tile_acc = acc + (acc_tiles > 1 ? tile : 0) * acc_bytes;
      // The first panels bring the next rows of A from memory, the others the next block of B.
      PrefetchWalk next_rows = tile + 1 < tiles_ ? walk_over_rows(tile + 1, k0, k) : PrefetchWalk{};
      const int64_t split = std::min<int64_t>(kRowPrefetchPanels, panels_);
      TileArgs args{.a = a_packed,
                    .b = b_packed,
                    .b_panel_bytes = panel_bytes,
                    .b_granule_bytes = int64_t{kernel_.nr} * kernel_.granule_bytes,
                    .acc = tile_acc,
                    .acc_panel_bytes = acc_tile_bytes(),
                    .granules = granules_of(k),
                    .panels = split,
                    .rows = tile_rows(tile),
                    .first = block == 0,
                    .prefetch = &next_rows};
      kernel_.multiply(args);
      args.b = b_packed + split * panel_bytes;
      args.acc = tile_acc + split * acc_tile_bytes();
      args.panels = panels_ - split;
      args.prefetch = &walk;
      kernel_.multiply(args);
      if (last) finish(tile, 0, panels_, tile_acc);
    }
  }
  return true;
}

bool UnitRun::resident() {
  const int64_t segment_k = kMaxGranules * kernel_.granule_k;
  const int64_t segments = std::max<int64_t>(ceil_div(item_.k, segment_k), 1);
  const bool along_n = b_.col_stride == 1 && !unit_.packed;
  const bool unpacked =
      along_n && tiles_ == 1 && kernel_.reads_unpacked_f32 && b_.dtype == DType::kF32;
  Piece piece{.k = unpacked ? blocking_.stream_k : blocking_.piece_k,
              .panels = along_n ? std::min(blocking_.row_panels, panels_) : 1};
  if (unit_.packed) piece.k = unit_.packed->layout.k_block;
  const int64_t acc_panels = unpacked ? panels_ : piece.panels;
  const int64_t sizes[] = {segments * tiles_ * a_tile_bytes(),
                           unit_.packed ? 0 : piece.panels * b_panel_bytes(piece.k),
                           acc_panels * tiles_ * acc_tile_bytes(), bias_bytes()};
  int64_t total = 0;
  for (const int64_t size : sizes) total += Arena::padded(size);
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
  if (unpacked) {
    stream_rows(a_packed, b_packed, acc);
  } else {
    stream_pieces(piece, a_packed, b_packed, acc);
  }
  return true;
}

/// B passes in pieces, all of k for some panels before the next; each is packed and used at once,
/// while the one after it is on its way from memory.
void UnitRun::stream_pieces(const Piece& piece, const char* a, char* b, char* acc) const {
  const int64_t k_pieces = std::max<int64_t>(ceil_div(item_.k, piece.k), 1);
  const int64_t pieces = k_pieces * ceil_div(panels_, piece.panels);
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t k0 = i % k_pieces * piece.k;
    const int64_t k = std::min(piece.k, item_.k - k0);
    const int64_t panel0 = i / k_pieces * piece.panels;
    const int64_t panels = std::min(piece.panels, panels_ - panel0);
    const int64_t next_k0 = (i + 1) % k_pieces * piece.k;
    PrefetchWalk next = walk_over(next_k0, std::min(piece.k, item_.k - next_k0),
                                  (i + 1) / k_pieces * piece.panels, piece.panels);
    // A single tile has too few steps to spread the prefetches over: ask before packing.
    if (tiles_ == 1) prefetch_all(&next);
    const int64_t panel_bytes = b_panel_bytes(k);
    for (int64_t j = 0; j < panels && !unit_.packed; ++j) {
      kernel_.pack_b(part(b_, k0, (panel0 + j) * kernel_.nr), k, panel_cols(panel0 + j),
                     b + j * panel_bytes);
    }
    for (int64_t tile = 0; tile < tiles_; ++tile) {
      char* const tile_acc = acc + tile * piece.panels * acc_tile_bytes();
      multiply_piece(a, k0, k, tile,
                     {.b = unit_.packed ? packed_at(k0, panel0) : b,
                      .b_panel_bytes = panel_bytes,
                      .b_granule_bytes = int64_t{kernel_.nr} * kernel_.granule_bytes,
                      .acc = tile_acc,
                      .panels = panels,
                      .prefetch = &next});
      if (k0 + k >= item_.k) finish(tile, panel0, panels, tile_acc);
    }
    prefetch_all(&next);
  }
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

/// f32 B contiguous along n, one row tile: B is used where it lies, a few rows at a time, in
/// address order.
void UnitRun::stream_rows(const char* a, char* b, char* acc) const {
  const auto b_size = static_cast<int64_t>(size_of(b_.dtype));
  const int64_t full_panels = cols_ / kernel_.nr;
  int64_t k0 = 0;
  do {
    const int64_t k = std::min(blocking_.stream_k, item_.k - k0);
    if (full_panels > 0) {
      multiply_piece(a, k0, k, 0,
                     {.b = element_at(b_, k0, 0),
                      .b_panel_bytes = kernel_.nr * b_size,
                      .b_granule_bytes = b_.row_stride * b_size,
                      .acc = acc,
                      .panels = full_panels});
    }
    if (full_panels < panels_) {
      kernel_.pack_b(part(b_, k0, full_panels * kernel_.nr), k, panel_cols(full_panels), b);
      multiply_piece(a, k0, k, 0,
                     {.b = b,
                      .b_granule_bytes = int64_t{kernel_.nr} * kernel_.granule_bytes,
                      .acc = acc + full_panels * acc_tile_bytes(),
                      .panels = 1});
    }
    k0 += k;
  } while (k0 < item_.k);
  finish(0, 0, panels_, acc);
}

}  // namespace

bool multiply_unit(const WorkUnit& unit, const GemmPlan& plan) {
  UnitRun run(unit, plan);
  return unit.resident ? run.resident() : run.blocked();
}

}  // namespace cadre::cpu
