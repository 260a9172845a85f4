// AMX kernels: bf16 x bf16 and int8 x int8 on tile registers of 16 rows of 64 bytes.
//
// Four of the eight tiles hold a 32 x 32 block of accumulators, two hold 32 rows of A, two hold 32
// columns of B: four tile products (16 cycles each) for four tile loads (8 cycles each), so the
// loads hide behind the products. A granule is four bytes (two bf16 or four int8), a step 16
// granules: one row of an A tile, and the height of a B tile. Rows beyond the last one are left out
// by configuring shorter tiles. tdpbf16ps treats subnormals as zero, as vdpbf16ps does
// (docs/numerics.md).
#include "cpu/kernels/amx_tiles.h"
#include "cpu/kernels/amx_turned.h"
#include "cpu/kernels/epilogue.h"
#include "cpu/kernels/granule_avx512.h"
#include "cpu/kernels/kernel_list.h"
#include "cpu/kernels/pack.h"
#include "cpu/kernels/row_walk.h"
#include "cpu/kernels/tile.h"

namespace cadre::cpu {
namespace {

// A line of 64 bytes takes about five cycles to pack, in which tiles could multiply and add 2560
// pairs of its 32 values; measured in place, where the tiles reach a third of that, it is 20 to 40.
constexpr int kPackCost = 40;

// 32 rows of A of so many granules of bf16 stay in L1 (32 of 48 KiB) while panels of B come from
// L2. With int8 that would halve blocks which hold all of k of most layers, and so pass sums
// through memory that need not.
constexpr int64_t kKeptGranulesBf16 = 256;

// Memory serves stretches of so many lines faster than single ones of many rows in turn (16
// threads: 133 instead of 126 GB/s).
constexpr int64_t kStretchLines = 4;
constexpr int64_t kStretchBytes = kStretchLines * 64;

// A step reads a line, or a part of one, of each of kRowsOfStep rows of B, and the steps of a
// stretch read them side by side. What they will read `ahead_bytes` later is asked for in whole
// stretches, those of a part of the rows in each step: as many lines as it reads itself.
template <int64_t kRowsOfStep, int64_t kRowBytesOfStep>
inline void prefetch_stretches(const char* step, int64_t index, int64_t row_bytes,
                               int64_t ahead_bytes) {
  constexpr int64_t kSteps = kStretchBytes / kRowBytesOfStep;
  constexpr int64_t kRowsOfPart = kRowsOfStep / kSteps;
  static_assert(kRowsOfPart * kSteps == kRowsOfStep);
  const int64_t part = index % kSteps;
  const char* row = step - part * kRowBytesOfStep + part * kRowsOfPart * row_bytes + ahead_bytes;
  for (int64_t i = 0; i < kRowsOfPart; ++i, row += row_bytes)
    for (int64_t line = 0; line < kStretchLines; ++line) __builtin_prefetch(row + line * 64, 0, 2);
}

// A step of B as the tiles want it, made of rows of B as they lie: that of a panel.
template <class Loader>
inline void make_step(const TileArgs& t, const char* b, int64_t panel, char* step) {
  using Elem = typename Loader::Elem;
  constexpr int64_t kStepK = kStepGranules * Loader::kGranuleK;
  constexpr auto kElemBytes = static_cast<int64_t>(sizeof(Elem));
  constexpr int64_t kSteps = kStretchBytes / (kNr * kElemBytes);
  int64_t ahead_bytes = t.b_ahead_bytes;
  if (ahead_bytes != 0 && panel < t.panels / kSteps * kSteps) {
    prefetch_stretches<kStepK, kNr * kElemBytes>(b, panel, t.b_k_bytes, ahead_bytes);
    ahead_bytes = 0;
  }
  pack_panel_across<Loader, kNr>(reinterpret_cast<const Elem*>(b), t.b_k_bytes / kElemBytes, kStepK,
                                 kNr, step, ahead_bytes);
}

// Zeros, or the sums of the blocks of k before. They come by once for each block: past L1, where A
// is.
template <bool kBottom>
inline void load_sums(const TileArgs& t, int64_t panel) {
  if (t.first) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kBottom) {
      _tile_zero(2);
      _tile_zero(3);
    }
    return;
  }
  const char* const acc = static_cast<const char*>(t.acc) + panel * t.acc_panel_bytes;
  _tile_stream_loadd(0, acc, kPanelRowBytes);
  _tile_stream_loadd(1, acc + kTileBytes, kPanelRowBytes);
  if constexpr (kBottom) {
    const char* const acc_bottom = acc + kTileRows * kPanelRowBytes;
    _tile_stream_loadd(2, acc_bottom, kPanelRowBytes);
    _tile_stream_loadd(3, acc_bottom + kTileBytes, kPanelRowBytes);
  }
}

// Back to the accumulators or, finished, to the result.
template <bool kBottom>
inline void store_sums(const TileArgs& t, int64_t panel) {
  char* const to = t.out != nullptr ? static_cast<char*>(t.out) + panel * t.out_panel_bytes
                                    : static_cast<char*>(t.acc) + panel * t.acc_panel_bytes;
  const int64_t row_bytes = t.out != nullptr ? t.out_row_bytes : kPanelRowBytes;
  _tile_stored(0, to, row_bytes);
  _tile_stored(1, to + kTileBytes, row_bytes);
  if constexpr (kBottom) {
    _tile_stored(2, to + kTileRows * row_bytes, row_bytes);
    _tile_stored(3, to + kTileRows * row_bytes + kTileBytes, row_bytes);
  }
}

// B in packed panels. Each comes from L2 once for a row tile: past L1, which has A. A tile of the
// next step is loaded as soon as the last product that needs the register has begun. While tiles
// multiply, most of the core has nothing to do, so it may pack the next block (kBeside).
template <class Product, bool kBottom, bool kBeside>
void multiply_packed(const TileArgs& t) {
  const int64_t steps = t.granules / kStepGranules;
  for (int64_t panel = 0; panel < t.panels; ++panel) {
    const char* a = static_cast<const char*>(t.a);
    const char* b = static_cast<const char*>(t.b) + panel * t.b_panel_bytes;
    load_sums<kBottom>(t, panel);
    if (steps > 0) {
      _tile_stream_loadd(6, b, kPanelRowBytes);
      _tile_loadd(4, a, kPackedRowBytes);
      _tile_stream_loadd(7, b + kTileBytes, kPanelRowBytes);
      if constexpr (kBottom) _tile_loadd(5, a + kTileRows * kPackedRowBytes, kPackedRowBytes);
    }
    for (int64_t step = 1; step < steps; ++step) {
      prefetch_step(t, panel, step - 1);
      if constexpr (kBeside) pack_rows_beside(*t.rows_beside);
      a += kTileBytes;
      b += kStepGranules * kPanelRowBytes;
      Product::top_left();
      Product::top_right();
      _tile_loadd(4, a, kPackedRowBytes);
      if constexpr (kBottom) Product::bottom_left();
      _tile_stream_loadd(6, b, kPanelRowBytes);
      if constexpr (kBottom) Product::bottom_right();
      _tile_stream_loadd(7, b + kTileBytes, kPanelRowBytes);
      if constexpr (kBottom) _tile_loadd(5, a + kTileRows * kPackedRowBytes, kPackedRowBytes);
    }
    if (steps > 0) {
      prefetch_step(t, panel, steps - 1);
      if constexpr (kBeside) pack_rows_beside(*t.rows_beside);
      Product::top_left();
      Product::top_right();
      if constexpr (kBottom) {
        Product::bottom_left();
        Product::bottom_right();
      }
    }
    store_sums<kBottom>(t, panel);
  }
}

// B in rows; what is made of it step by step goes to b_packed, where there is one, else through two
// buffers in turn.
template <class Product, class Loader, bool kBottom>
void multiply_source(const TileArgs& t) {
  constexpr int64_t kStepBytes = kStepGranules * kPanelRowBytes;
  alignas(64) char steps[2 * kStepBytes];
  for (int64_t panel = 0; panel < t.panels; ++panel) {
    const char* a = static_cast<const char*>(t.a);
    const char* b = static_cast<const char*>(t.b) + panel * t.b_panel_bytes;
    char* const kept = t.b_packed == nullptr
                           ? nullptr
                           : static_cast<char*>(t.b_packed) + panel * t.b_packed_panel_bytes;
    load_sums<kBottom>(t, panel);
    for (int64_t g = 0; g < t.granules; g += kStepGranules) {
      prefetch_step(t, panel, g / kStepGranules);
      char* const step =
          kept != nullptr ? kept + g * kPanelRowBytes : steps + g / kStepGranules % 2 * kStepBytes;
      make_step<Loader>(t, b, panel, step);
      _tile_loadd(6, step, kPanelRowBytes);
      _tile_loadd(7, step + kTileBytes, kPanelRowBytes);
      _tile_loadd(4, a, kPackedRowBytes);
      Product::top_left();
      Product::top_right();
      if constexpr (kBottom) {
        _tile_loadd(5, a + kTileRows * kPackedRowBytes, kPackedRowBytes);
        Product::bottom_left();
        Product::bottom_right();
      }
      a += kTileBytes;
      b += t.b_k_bytes * kStepGranules * Loader::kGranuleK;
    }
    store_sums<kBottom>(t, panel);
  }
}

// Blocks of all panels, one after the other.
template <class Product, class Loader, bool kBottom>
void multiply_blocks(const TileArgs& args) {
  TileArgs block = args;
  block.out = nullptr;
  if (args.block_granules > 0) block.granules = args.block_granules;
  int64_t left = args.granules;
  do {
    if (left <= block.granules) {
      block.granules = left;
      block.out = args.out;
    }
    multiply_source<Product, Loader, kBottom>(block);
    left -= block.granules;
    block.first = false;
    block.a = static_cast<const char*>(block.a) + block.granules / kStepGranules * kTileBytes;
    block.b = static_cast<const char*>(block.b) + block.granules * block.b_granule_bytes;
  } while (left > 0);
}

template <class Product, class Loader, bool kBottom>
void multiply_from(const TileArgs& args) {
  if constexpr (Loader::kGranuleK == kQuad) {
    if (args.b_from == BFrom::kPanelsBeside) return multiply_packed<Product, kBottom, true>(args);
  }
  if (args.b_from == BFrom::kPanels) {
    multiply_packed<Product, kBottom, false>(args);
  } else {
    multiply_blocks<Product, Loader, kBottom>(args);
  }
}

template <class Product, class Loader>
void multiply_tiles(const TileArgs& args) {
  const int top = args.rows < kTileRows ? args.rows : kTileRows;
  const TileConfig config(top, args.rows - top);
  load_config(config);
  if (args.rows > kTileRows) {
    multiply_from<Product, Loader, true>(args);
  } else {
    multiply_from<Product, Loader, false>(args);
  }
  _tile_release();
}

// As for the vector kernels, and zeros up to a whole step.
template <class Loader>
void pack_b_steps(const MatrixRef& b, int64_t k, int64_t cols, void* dst, int64_t ahead_bytes) {
  pack_b_from<Loader, kNr>(b, k, cols, dst, ahead_bytes);
  const int64_t granules = divide_up(k, Loader::kGranuleK);
  const int64_t padded = divide_up(granules, kStepGranules) * kStepGranules;
  std::memset(static_cast<char*>(dst) + granules * kPanelRowBytes, 0,
              static_cast<size_t>((padded - granules) * kPanelRowBytes));
}

}  // namespace

const GemmKernel kGemmAmxBf16 = {
    .name = "amx_bf16",
    .acc_dtype = DType::kF32,
    .mr = kRows,
    .nr = kNr,
    .granule_k = 2,
    .k_step = 2 * kStepGranules,
    .source_dtype = DType::kBF16,
    .tuning = {.pack_cost = kPackCost, .kept_granules = kKeptGranulesBf16},
    .pack_a = &pack_a_from<PairLoaderBf16>,
    .pack_b = &pack_b_steps<PairLoaderBf16>,
    .multiply = &multiply_tiles<ProductBf16, PairLoaderBf16>,
    .epilogue = &epilogue_float<VecF32, float, kNr>,
    .activated = &activated_f32_avx512,
    .multiply_turned = &multiply_turned<ProductBf16>};

const GemmKernel kGemmAmxInt8 = {.name = "amx_int8",
                                 .acc_dtype = DType::kI32,
                                 .mr = kRows,
                                 .nr = kNr,
                                 .granule_k = 4,
                                 .k_step = 4 * kStepGranules,
                                 .source_dtype = DType::kI8,
                                 .tuning = {.pack_cost = kPackCost},
                                 .pack_a = &pack_a_from<QuadLoaderInt8<0>>,
                                 .pack_b = &pack_b_steps<QuadLoaderInt8<0>>,
                                 .multiply = &multiply_tiles<ProductInt8, QuadLoaderInt8<0>>,
                                 .epilogue = &epilogue_int32<VecF64, kNr>,
                                 .activated = &activated_int32_avx512,
                                 .pack_rows = &pack_rows,
                                 .multiply_turned = &multiply_turned<ProductInt8>};

}  // namespace cadre::cpu
