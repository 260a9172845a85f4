// GemmKernel: what one instruction set offers for one way of computing, as a table of functions and
// sizes. The blocked driver (cpu/gemm_driver.cc) knows kernels only through this table. No code
// lives here: kernel files are compiled for other instruction sets than the rest, so anything they
// share with it must be plain data.
#pragma once

#include <cstdint>

#include "cadre/dtype.h"
#include "cpu/gemm_item.h"

namespace cadre::cpu {

// A packed row of A holds at most this many granules. The row stride is a constant so that the
// inner loop can address every row of a tile from one pointer; the 16 extra granules put the rows
// of a tile into different cache sets (a stride of 528 * 4 bytes is 33 lines, coprime to the
// power-of-two number of sets).
inline constexpr int64_t kMaxGranules = 512;
inline constexpr int64_t kPackedRowStride = kMaxGranules + 16;
// Kernels that compute with a shifted B (Op::kSubtractsSurplus) find in this granule of a packed
// row what the shift has added to each of its sums.
inline constexpr int64_t kSurplusGranule = kMaxGranules;

// A lazily advanced walk over source memory that is needed next; the inner loop issues its
// prefetches, `lines` of them in every kPrefetchGranules steps.
struct PrefetchWalk {
  const char* row = nullptr;  // start of the current row
  int64_t row_bytes = 0;      // contiguous bytes of a row
  int64_t stride_bytes = 0;   // to the next row
  int64_t rows_left = 0;      // 0: nothing to do
  int64_t column_bytes = 0;   // next byte of the current row
  int64_t lines = 8;
};

// Panels of B that are packed beside the products of the block before, from columns contiguous
// along k whose granules stay as they are: a batch of four columns and a line of each at a time,
// then the next columns of the panel, the next lines, the next panel. The inner loop does a part of
// it in every kPrefetchSteps steps (kernels/copy_walk.h).
inline constexpr int64_t kBatchColumns = 4;
inline constexpr int64_t kLineBytes = 64;
inline constexpr int64_t kBatchUnit = 1024;
struct CopyWalk {
  struct Place {
    const char* batch = nullptr;
    int64_t column = 0, row = 0;  // of the panel; rows of kLineBytes
    int64_t batches_left = 0;     // of all panels
  };
  Place next, ahead;         // what to copy, and what to prefetch
  char* to = nullptr;        // where the next batch's first granule goes
  int64_t wait = 0;          // batches to prefetch before the first copy
  int64_t columns = 0;       // of a panel; 0: nothing to do
  int64_t rows = 0;          // batches of a column
  int64_t column_bytes = 0;  // source: from a column to the next
  int64_t row_bytes = 0;     // panel: from a granule row to the next
  int64_t per_step = 0;      // batches in a step, in parts of kBatchUnit
  int64_t due = 0;
};

// Panels of B that are packed from rows whose columns are next to each other, at once or beside the
// products of the block before, in the order of addresses: the rows of a granule side by side, a
// batch of kLineBytes of each at a time (kernels/row_walk.h).
struct RowWalk {
  const char* rows = nullptr;  // the first of the next granule's rows
  int64_t k_bytes = 0;         // source: from one row to the next
  int64_t row_bytes = 0;       // of a row, whole batches
  int64_t column_bytes = 0;    // next batch of these rows
  int64_t granules_left = 0;   // 0: nothing to do
  char* to = nullptr;          // where these granules go in the first panel
  int64_t panel_bytes = 0;     // from one panel to the next
  PrefetchWalk ahead;          // what is asked for, some time before it is packed
  int64_t wait = 0;            // batches to ask for before the first is packed
  int64_t per_step = 0;        // batches in a step, in parts of kBatchUnit
  int64_t due = 0;
};

// Where the inner loop finds B.
enum class BFrom {
  kPanels,        // packed panels
  kPanelsBeside,  // the same, and the next ones are packed beside (TileArgs::copy or rows_beside)
  kSource,        // the matrix itself, its columns next to each other (GemmKernel::source_dtype)
  kSourceKept,    // the same, and what was read is left behind as packed panels in b_packed
  kColumns,      // the matrix itself, its columns contiguous along k, whole panels and vectors of k
  kColumnsKept,  // the same, and left behind
};

// One block of the multiplication: `rows` rows of packed A against `panels` panels of B.
struct TileArgs {
  const void* a = nullptr;      // [rows][kPackedRowStride] granules, or interleaved
  int64_t a_panel_bytes = 0;    // turned: from one panel of rows to the next
  const void* b = nullptr;      // panel 0
  int64_t b_panel_bytes = 0;    // from one panel to the next
  int64_t b_granule_bytes = 0;  // from one granule row of a panel to the next
  void* acc = nullptr;          // tile 0: [rows][nr] accumulators
  int64_t acc_panel_bytes = 0;  // from one tile to the next
  int64_t granules = 0;         // steps over k, one granule each
  int64_t panels = 0;
  int rows = 0;                      // 1 … mr; turned: any number
  bool first = false;                // start from zero instead of from acc
  const void* a_surplus = nullptr;   // of row 0 (kSurplusGranule): to be subtracted, or null
  PrefetchWalk* prefetch = nullptr;  // never null
  CopyWalk* copy = nullptr;          // kPanelsBeside: what to pack, from columns
  RowWalk* rows_beside = nullptr;    // or, where the kernel has pack_rows, from rows
  BFrom b_from = BFrom::kPanels;
  DType b_dtype = DType::kInvalid;  // source, columns
  int64_t b_k_bytes = 0;            // source: from one k to the next
  int64_t b_column_bytes = 0;       // columns: from one column to the next
  int64_t block_granules = 0;       // kSource: of all panels, before the next ones; 0: all
  int64_t b_ahead_bytes = 0;        // source, columns: from what is read to what to prefetch, or 0
  void* b_packed = nullptr;         // kept: panel 0, [granules][nr] granules
  int64_t b_packed_panel_bytes = 0;
  void* out = nullptr;       // finished sums of tile 0 go here instead of into acc
  bool out_rounded = false;  // as GemmKernel::rounded_dtype
  int64_t out_row_bytes = 0;
  int64_t out_panel_bytes = 0;
  bool out_past_cache = false;  // out is aligned to 64 bytes and not needed soon
};

// A rectangle of finished accumulators and everything the epilogue formula needs.
struct EpilogueArgs {
  const void* acc;  // tiles [rows][nr], acc_panel_bytes apart
  int64_t acc_panel_bytes;
  int64_t rows, cols;
  MatrixRef d, c;    // at this rectangle's first element; c is read only if beta != 0
  const void* bias;  // [cols] in the epilogue's own type, or null
  VectorRef bias_scale, row_scale;  // at the first row
  double alpha, beta;
  bool past_cache;  // d is large and not needed soon: write it without reading it into the caches
  // With an activation: cols are those of d, and step->pre begins at this rectangle. Where gates
  // are panels of their own (GemmItem::is_paired), acc and bias are those of what they gate.
  const ActivationStep* step;
  const void *gate_acc, *gate_bias;
  int64_t up_columns;  // of pre: from a gate to what it gates
};

// Sums of unscaled codes of FP8, of k values that share their scales, and what they are added to.
struct ScaledArgs {
  const void* sums = nullptr;  // tiles [rows][nr], acc_panel_bytes apart
  void* total = nullptr;       // the same; may be sums
  int64_t acc_panel_bytes = 0;
  int64_t panels = 0;
  int rows = 0;
  bool first = false;                    // total is set
  const float* row_scales = nullptr;     // [rows]
  const float* column_scales = nullptr;  // [panels * nr]
};

// What was measured rather than derived from the tile: one place for each kernel's figures.
struct Tuning {
  // Multiply-adds that take as long as packing one value. It weighs packing against products where
  // work is cut into units (Zen 4: tgmm of 1024 rows on two threads 65.3 to 61.2 ms), and a kernel
  // whose tile has no more rows than this packs B before its products, not during them.
  int pack_cost = 6;
  // Granules of a block of k where all of A is kept packed: a whole packed row, since its panels
  // come from L2 anyway and sums then pass through memory half as often (2.7 % at 256 rows, 4 % at
  // 64 on Zen 4), but where a tile's rows of A should stay in L1 (AMX).
  int64_t kept_granules = kMaxGranules;
  // Columns of the next block of B are packed beside the products (CopyWalk): a core whose load and
  // store slots are its own has them free (Zen 4 at 64 rows: f32 4, bf16 6.6, int8 7 %). A tile of
  // 12 sums has too few products for it (AVX2 lost 8 %), and so has a shared core (AMX host, f32:
  // 6 to 12 % slower).
  bool packs_beside = false;
  // Few rows: B is prefetched in the order of its addresses. Zen 4 reads 33 GB/s so, and 14 to 29
  // from rows or columns side by side (f32 [k, n] at one row 9.7 to 7.9 ms).
  bool streams_in_order = false;
  // That too where B is contiguous along n; not on the AMX host, which reads rows side by side
  // faster (one row of f32 1.65 times).
  bool rows_in_order = true;
};

// A newcomer writes an Op (tile.h) or its own multiply, and names pack_a, pack_b and epilogue of
// pack.h and epilogue.h; vector_kernel<Op> (tile.h) fills in what follows from the Op.
struct GemmKernel {
  const char* name = nullptr;
  DType acc_dtype = DType::kInvalid;  // f32, f64 or int32
  int mr = 0, nr = 0;                 // tile: rows and columns
  int granule_k = 1;                  // k values in one granule (what the inner loop broadcasts)
  int granule_bytes = 4;
  int k_step = 1;                        // packed k is padded with zeros to a multiple of this
  DType source_dtype = DType::kInvalid;  // of a B that is read as it lies, in either of two orders
  uint32_t widened_dtypes = 0;  // the same, widened on the way: a bit (1 << dtype) for each type
  int column_rows = 0;          // with columns contiguous along k, for at most this many rows
  int column_k = 1;             // and so many values of k at a time
  bool interleaves_a = false;   // a tile's packed rows are [granules][rows]
  uint32_t source_flip = 0;     // bits of a granule of such a B that packing inverts
  DType rounded_dtype = DType::kInvalid;  // that multiply can round finished sums to
  Tuning tuning{};

  // dst rows of kPackedRowStride granules <- a[rows, k]; interleaved, a granule of each row in
  // turn, in the same memory.
  void (*pack_a)(const MatrixRef& a, int64_t rows, int64_t k, void* dst) = nullptr;
  // One panel: dst [granules(k)][nr] granules <- b[k, cols], cols <= nr, the rest zero. What lies
  // ahead_bytes behind each line that is read is prefetched, unless that is 0.
  void (*pack_b)(const MatrixRef& b, int64_t k, int64_t cols, void* dst,
                 int64_t ahead_bytes) = nullptr;
  void (*multiply)(const TileArgs& args) = nullptr;
  void (*epilogue)(const EpilogueArgs& args) = nullptr;
  void (*activated)(const EpilogueArgs& args) = nullptr;  // the same with an activation
  // Where the kernel takes FP8: total += row_scale * column_scale * sums.
  void (*add_scaled)(const ScaledArgs& args) = nullptr;
  // Where there is one: so many batches of rows of source_dtype, whole steps of k; multiply does it
  // beside the products.
  void (*pack_rows)(RowWalk& walk, int64_t batches) = nullptr;
  // Where there is one: all of k at once, from a B of source_dtype as it lies, its columns
  // contiguous along k (whole panels, and k a multiple of k_step), and panels of nr rows of A that
  // pack_b has packed as columns of its transpose. Sums go to tiles [row panel][panel].
  void (*multiply_turned)(const TileArgs& args) = nullptr;
};

}  // namespace cadre::cpu
