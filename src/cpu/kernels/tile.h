// The inner loop: a register tile of rows x (kVectors * kLanes) accumulators, over one granule of k
// after another. Every output element is one chain of multiply-adds in ascending k, continued
// through memory between blocks of k, so its bits do not depend on the tile, the block or the
// thread it is computed in. For kernel files only.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "cpu/kernels/copy_walk.h"
#include "cpu/kernels/gemm_kernel.h"
#include "cpu/kernels/lines_ahead.h"
#include "cpu/kernels/register_tile.h"

namespace cadre::cpu {
namespace {

// An Op offers:
//   Acc, Vec, kLanes, kVectors (nr = kLanes * kVectors), kMaxRows (mr), kGranuleBytes, kGranuleK,
//   kSubtractsSurplus
//   Acc zero(), load_acc(const char*), multiply_add(Acc, Vec a, Vec b), subtract_surplus(Acc, const
//   char*); Vec load_b(const char*), broadcast_a(const char*)
//   void store_acc(char*, Acc), store_past_cache(char*, Acc), finish_past_cache()
// where a multiply-add can broadcast its value of A itself:
//   kFirstFoldedRow: from this row on it does; Acc multiply_add_folded(Acc, const char* a, Vec b)
// where its loads stay in the registers of the loads before:
//   void reload_b(Vec&, const char*), rebroadcast_a(Vec&, const char*)
// where the rows of packed A are interleaved (GemmKernel::interleaves_a):
//   kInterleavesA
// where finished sums can be stored in a narrower type (GemmKernel::rounded_dtype):
//   void store_rounded(char*, const Acc (&)[kVectors]), store_rounded_past_cache
// where B is packed beside the products:
//   kSourceFlip: bits of a granule that packing inverts
// and where it reads a B as it lies:
//   kColumnRows, 0 where it packs columns contiguous along k; void store_b(char*, Vec)
//
// A Source says how such a B is read, one for each of its types; an Op is the Source of its own:
//   kSourceRowBytes (nr elements)
//   void load_source(const char* row, int64_t k_bytes, Vec (&)[kV])
//   load_column(const char*), a vector of a column, and void transpose(… (&)[kLanes]) of those
//   kColumnBytes of that vector in memory, where it is wider itself
// and, where it is widened:
//   kDType, kColumnGranules (in a lane of such a vector)
//   kColumnParts: transpose is completed by void transpose_part(… (&)[kLanes], int part), each just
//   before its use, so that shuffles and multiply-adds go side by side
//   Vec granule(const … (&)[kLanes], int i), number i along k

// A transposed block of B takes as many registers as it has lanes; the accumulators need the rest.
inline constexpr int kMaxColumnRows = 8;

template <class Op, int kRows, BFrom kFrom, class Source>
void multiply_rows(const TileArgs& t) {
  constexpr int kV = Op::kVectors;
  constexpr int64_t kVecBytes = Op::kLanes * Op::kGranuleBytes;
  constexpr bool kPacked = kFrom == BFrom::kPanels || kFrom == BFrom::kPanelsBeside;
  constexpr bool kAgain = kPacked && requires { &Op::reload_b; };
  using Rows = PackedRows<Op, kRows>;
  const int64_t b_step = kPacked ? kV * kVecBytes : t.b_granule_bytes;
  const int64_t lines =
      (t.prefetch->lines * kPrefetchSteps + kPrefetchGranules - 1) / kPrefetchGranules;
  std::conditional_t<kPacked, LinesAhead, PacedLinesAhead> ahead(*t.prefetch);
  const bool prefetches_out = t.out != nullptr && !t.out_past_cache;
  for (int64_t panel = 0; panel < t.panels; ++panel) {
    const char* a = static_cast<const char*>(t.a);
    const char* b = static_cast<const char*>(t.b) + panel * t.b_panel_bytes;
    char* kept = static_cast<char*>(t.b_packed);
    if constexpr (kFrom == BFrom::kSourceKept) kept += panel * t.b_packed_panel_bytes;
    const char* acc_memory = static_cast<const char*>(t.acc) + panel * t.acc_panel_bytes;

    Tile<Op, kRows> acc;
    if (t.first) {
      zero_tile<Op, kRows>(acc);
    } else {
      load_tile<Op, kRows>(acc, acc_memory);
    }

    typename Op::Vec av, bv[kV];
    if constexpr (kAgain) {
      av = Op::zero();
      for (auto& x : bv) x = Op::zero();
    }
    const auto step = [&]() __attribute__((always_inline)) {
      if constexpr (kPacked) {
        for (int v = 0; v < kV; ++v) read_b<Op, kAgain>(bv[v], b + v * kVecBytes);
      } else {
        if (kFrom == BFrom::kSourceKept || t.b_ahead_bytes != 0) {
          prefetch_granule<Op, Source>(b + t.b_ahead_bytes, t.b_k_bytes);
        }
        Source::load_source(b, t.b_k_bytes, bv);
        if constexpr (kFrom == BFrom::kSourceKept) {
          for (int v = 0; v < kV; ++v) Op::store_b(kept + v * kVecBytes, bv[v]);
          kept += kV * kVecBytes;
        }
      }
      add_products<Op, kRows, kAgain>(acc, av, a, bv);
      a += Rows::kStepBytes;
      b += b_step;
    };
    int64_t done = 0;
    for (; done + kPrefetchGranules <= t.granules; done += kPrefetchGranules) {
      if (!t.first) prefetch_tile<Op, kRows>(acc_memory + t.acc_panel_bytes, done);
      if (prefetches_out) prefetch_out<Op, kRows>(t, panel, done);
      for (int64_t i = 0; i < kPrefetchGranules; i += kPrefetchSteps) {
        ahead.advance(lines);
        if constexpr (kFrom == BFrom::kPanelsBeside) advance_copy(*t.copy, Op::kSourceFlip);
#pragma GCC unroll 4
        for (int64_t j = 0; j < kPrefetchSteps; ++j) step();
      }
    }
    for (; done < t.granules; ++done) step();

    subtract_surplus<Op, kRows>(acc, t);
    store_tile<Op, kRows>(acc, t, panel);
  }
  ahead.finish();
  if (t.out_past_cache) Op::finish_past_cache();
}

// One block of a B that is read as it lies, added to the sums of all its panels. What it needs is
// in registers (but the walk, see PacedLinesAhead): on a core that is shared, what a panel takes
// beside its loads is time in which nothing is asked of memory.
template <class Op, int kRows, bool kAhead, class Source>
[[gnu::noinline]] void add_block(const TileArgs& t, int64_t lines) {
  using Rows = PackedRows<Op, kRows>;
  // Steps of one multiply-add for each vector are so short that those of the loop count.
  constexpr bool kShort = kAhead && kRows == 1 && Op::kGranuleK == 1;
  constexpr int64_t kSteps = kShort ? 2 * kPrefetchSteps : kPrefetchSteps;
  const int64_t granules = t.granules, k_bytes = t.b_k_bytes, b_step = t.b_granule_bytes;
  const int64_t panel_bytes = t.b_panel_bytes, sums_bytes = t.acc_panel_bytes;
  const int64_t ahead_bytes = t.b_ahead_bytes;
  const auto* const block_a = static_cast<const char*>(t.a);
  const auto* panel_b = static_cast<const char*>(t.b);
  auto* sums = static_cast<char*>(t.acc);
  PrefetchWalk& walk = *t.prefetch;
  for (int64_t panels = t.panels; panels > 0; --panels) {
    Tile<Op, kRows> acc;
    load_tile<Op, kRows>(acc, sums);
    const char* a = block_a;
    const char* b = panel_b;
    const char* ahead = panel_b + ahead_bytes;
    typename Op::Vec av, bv[Op::kVectors];
    const auto step = [&]() __attribute__((always_inline)) {
      if constexpr (kAhead) prefetch_granule<Op, Source>(ahead, k_bytes);
      Source::load_source(b, k_bytes, bv);
      add_products<Op, kRows, false>(acc, av, a, bv);
      a += Rows::kStepBytes;
      b += b_step;
      if constexpr (kAhead) ahead += b_step;
      // One pointer each: the compiler would make more of them than there are registers.
      __asm__("" : "+r"(b), "+r"(ahead));
    };
    int64_t left = granules;
    for (; left >= kSteps; left -= kSteps) {
      if constexpr (!kAhead) advance_prefetch(walk, lines);
#pragma GCC unroll 8
      for (int64_t j = 0; j < kSteps; ++j) step();
    }
    for (; left > 0; --left) step();
    store_rows<Op, kRows>(acc, sums, kTileRowBytes<Op>);
    panel_b += panel_bytes;
    sums += sums_bytes;
  }
}

// B as it lies, for the only row tile, which passes once: block_granules of all panels before the
// next ones.
template <class Op, int kRows, class Source>
void multiply_blocks(const TileArgs& args) {
  using Rows = PackedRows<Op, kRows>;
  TileArgs block = args;
  if (args.block_granules > 0 && args.block_granules < args.granules) {
    const int64_t lines =
        (args.prefetch->lines * kPrefetchSteps + kPrefetchGranules - 1) / kPrefetchGranules;
    if (args.first) {
      Tile<Op, kRows> zeros;
      zero_tile<Op, kRows>(zeros);
      auto* sums = static_cast<char*>(args.acc);
      for (int64_t panel = 0; panel < args.panels; ++panel, sums += args.acc_panel_bytes)
        store_rows<Op, kRows>(zeros, sums, kTileRowBytes<Op>);
    }
    block.first = false;
    block.granules = args.block_granules;
    int64_t left = args.granules;
    for (; left > block.granules; left -= block.granules) {
      if (args.b_ahead_bytes != 0) {
        add_block<Op, kRows, true, Source>(block, lines);
      } else {
        add_block<Op, kRows, false, Source>(block, lines);
      }
      block.a = static_cast<const char*>(block.a) + block.granules * Rows::kStepBytes;
      block.b = static_cast<const char*>(block.b) + block.granules * block.b_granule_bytes;
    }
    block.granules = left;
  }
  multiply_rows<Op, kRows, BFrom::kSource, Source>(block);
}

// With a broadcast that no other vector needs.
template <class Op>
inline typename Op::Acc multiply_add_once(typename Op::Acc acc, const char* a, typename Op::Vec b) {
  if constexpr (requires { Op::kFirstFoldedRow; }) {
    return Op::multiply_add_folded(acc, a, b);
  } else {
    return Op::multiply_add(acc, Op::broadcast_a(a), b);
  }
}

template <class Op, class Source>
constexpr int64_t column_bytes() {
  if constexpr (requires { Source::kColumnBytes; }) {
    return Source::kColumnBytes;
  } else {
    return int64_t{Op::kLanes} * Op::kGranuleBytes;
  }
}

// A transposed block of columns: kCount granules along k, in parts.
template <class Source, int kLanes>
struct ColumnBlock {
  static constexpr int kCount = kLanes, kParts = 1;
};
template <class Source, int kLanes>
requires(Source::kColumnGranules > 1) struct ColumnBlock<Source, kLanes> : Source {
  static constexpr int kCount = kLanes * Source::kColumnGranules, kParts = Source::kColumnParts;
};

// B with columns contiguous along k, for few rows: kLanes columns at a time are transposed in
// registers and used at once.
template <class Op, int kRows, bool kKept, class Source>
void multiply_columns(const TileArgs& t) {
  using Block = ColumnBlock<Source, Op::kLanes>;
  constexpr int kLanes = Op::kLanes;
  constexpr int kCountOfPart = Block::kCount / Block::kParts;
  constexpr int64_t kVecBytes = kLanes * Op::kGranuleBytes;
  using Rows = PackedRows<Op, kRows>;
  constexpr int64_t kBlocksOfPrefetch = kPrefetchGranules * Op::kVectors / Block::kCount;
  const int64_t lines = (t.prefetch->lines + kBlocksOfPrefetch - 1) / kBlocksOfPrefetch;
  for (int64_t panel = 0; panel < t.panels; ++panel) {
    Tile<Op, kRows> acc;
    if (t.first) {
      zero_tile<Op, kRows>(acc);
    } else {
      load_tile<Op, kRows>(acc, static_cast<const char*>(t.acc) + panel * t.acc_panel_bytes);
    }
    const char* columns = static_cast<const char*>(t.b) + panel * t.b_panel_bytes;
#pragma GCC unroll 4
    for (int v = 0; v < Op::kVectors; ++v, columns += kLanes * t.b_column_bytes) {
      const char* a = static_cast<const char*>(t.a);
      const char* step = columns;
      char* kept = static_cast<char*>(t.b_packed);
      if constexpr (kKept) kept += panel * t.b_packed_panel_bytes + v * kVecBytes;
      for (int64_t g = 0; g < t.granules; g += Block::kCount) {
        decltype(Source::load_column(step)) block[kLanes];
        const char* column = step;
        for (int i = 0; i < kLanes; ++i, column += t.b_column_bytes) {
          block[i] = Source::load_column(column);
          if (t.b_ahead_bytes != 0) __builtin_prefetch(column + t.b_ahead_bytes, 0, 2);
        }
        advance_prefetch(*t.prefetch, lines);
        Source::transpose(block);
        if constexpr (Block::kCount == kLanes) {
          if constexpr (kKept) {
            for (int i = 0; i < kLanes; ++i, kept += Op::kVectors * kVecBytes)
              Op::store_b(kept, block[i]);
          }
          for (int i = 0; i < kLanes; ++i, a += Rows::kStepBytes)
            for (int r = 0; r < kRows; ++r)
              acc[r][v] = multiply_add_once<Op>(acc[r][v], a + r * Rows::kRowBytes, block[i]);
        } else {
#pragma GCC unroll 4
          for (int part = 0; part < Block::kParts; ++part) {
            Block::transpose_part(block, part);
#pragma GCC unroll 32
            for (int i = part * kCountOfPart; i < (part + 1) * kCountOfPart; ++i) {
              const typename Op::Vec b = Block::granule(block, i);
              if constexpr (kKept) {
                Op::store_b(kept, b);
                kept += Op::kVectors * kVecBytes;
              }
              for (int r = 0; r < kRows; ++r)
                acc[r][v] = multiply_add_once<Op>(acc[r][v], a + r * Rows::kRowBytes, b);
              a += Rows::kStepBytes;
            }
          }
        }
        step += column_bytes<Op, Source>();
      }
    }
    subtract_surplus<Op, kRows>(acc, t);
    store_tile<Op, kRows, false>(acc, t, panel);
  }
  if (t.out_past_cache) Op::finish_past_cache();
}

// Instances for kFirst rows and more.
template <class Op, BFrom kFrom, class Source, int kFirst, int... kMore>
void multiply_dispatch(const TileArgs& args, std::integer_sequence<int, kMore...>) {
  using Function = void (*)(const TileArgs&);
  if constexpr (kFrom == BFrom::kColumns || kFrom == BFrom::kColumnsKept) {
    constexpr bool kKept = kFrom == BFrom::kColumnsKept;
    static constexpr Function kByRows[] = {&multiply_columns<Op, kFirst + kMore, kKept, Source>...};
    kByRows[args.rows - kFirst](args);
  } else if constexpr (kFrom == BFrom::kSource) {
    static constexpr Function kByRows[] = {&multiply_blocks<Op, kFirst + kMore, Source>...};
    kByRows[args.rows - kFirst](args);
  } else {
    static constexpr Function kByRows[] = {&multiply_rows<Op, kFirst + kMore, kFrom, Source>...};
    kByRows[args.rows - kFirst](args);
  }
}

template <class Op, BFrom kFrom, class Source, int kFirst, int kLast>
void multiply_from(const TileArgs& args) {
  multiply_dispatch<Op, kFrom, Source, kFirst>(
      args, std::make_integer_sequence<int, kLast - kFirst + 1>{});
}

// What is kept is for the row tiles after the first one, which has at least half of the rows that
// it can have: rows are dealt out evenly.
template <class Op, class Source>
void multiply_source(const TileArgs& args) {
  constexpr int kRows = Op::kMaxRows, kFewRows = Op::kColumnRows;
  switch (args.b_from) {
    case BFrom::kSource:
      return multiply_from<Op, BFrom::kSource, Source, 1, kRows>(args);
    case BFrom::kSourceKept:
      return multiply_from<Op, BFrom::kSourceKept, Source, (kRows + 1) / 2, kRows>(args);
    default:
      break;
  }
  if constexpr (kFewRows > 0) {
    if (args.b_from == BFrom::kColumns)
      return multiply_from<Op, BFrom::kColumns, Source, 1, kFewRows>(args);
    multiply_from<Op, BFrom::kColumnsKept, Source, (kFewRows + 2) / 2, kFewRows>(args);
  }
}

// Sources: those that say their type (kDType) and, last, the Op itself for its own.
template <class Op, class... Sources>
void multiply(const TileArgs& args) {
  constexpr int kRows = Op::kMaxRows;
  if (args.b_from == BFrom::kPanels) return multiply_from<Op, BFrom::kPanels, Op, 1, kRows>(args);
  if constexpr (requires { Op::kSourceFlip; }) {
    if (args.b_from == BFrom::kPanelsBeside)
      return multiply_from<Op, BFrom::kPanelsBeside, Op, 1, kRows>(args);
  }
  [[maybe_unused]] const auto multiply_of = [&]<class Source>(Source*) {
    if constexpr (requires { Source::kDType; }) {
      if (args.b_dtype != Source::kDType) return false;
    }
    multiply_source<Op, Source>(args);
    return true;
  };
  (void)(multiply_of(static_cast<Sources*>(nullptr)) || ...);
}

// The type bit of a Source that widens, and how many granules a lane of its columns holds.
template <class Source>
constexpr uint32_t widened_dtype() {
  if constexpr (requires { Source::kDType; }) return 1u << static_cast<int>(Source::kDType);
  return 0;
}
template <class Source>
constexpr int column_granules() {
  if constexpr (requires { Source::kColumnGranules; }) return Source::kColumnGranules;
  return 1;
}
constexpr int largest(int a, int b) { return a > b ? a : b; }

// A kernel whose multiply is the loop above: everything that follows from the Op and its Sources.
// The table names the rest: name, acc_dtype, source_dtype, pack_a, pack_b, epilogue, tuning.
template <class Op, class... Sources>
constexpr GemmKernel vector_kernel(GemmKernel kernel) {
  kernel.mr = Op::kMaxRows;
  kernel.nr = Op::kVectors * Op::kLanes;
  kernel.granule_k = kernel.k_step = Op::kGranuleK;
  kernel.granule_bytes = Op::kGranuleBytes;
  kernel.widened_dtypes = (0u | ... | widened_dtype<Sources>());
  if constexpr (sizeof...(Sources) > 0) {
    kernel.column_rows = Op::kColumnRows;
    int granules = 1;
    ((granules = largest(granules, column_granules<Sources>())), ...);
    kernel.column_k = Op::kLanes * Op::kGranuleK * granules;
  }
  kernel.interleaves_a = requires { Op::kInterleavesA; };
  if constexpr (requires { Op::kSourceFlip; }) kernel.source_flip = Op::kSourceFlip;
  kernel.multiply = &multiply<Op, Sources...>;
  return kernel;
}

}  // namespace
}  // namespace cadre::cpu
